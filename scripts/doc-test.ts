/**
 * Tries what pages say: the fenced blocks of README.md and docs/*.md, page by page, in order, in a folder of its own.
 *
 *   ```ts file=spool/index.ts   is written there; all such TypeScript of a page is checked by the compiler
 *   ```sh run                   runs in bash; `exit=1` where it must end so
 *   ```sh  or  ```ts parse      cannot run here (a device, a launcher): its syntax is checked
 *
 * The folder has the packages, the command `tensorferry`, and a small llama checkpoint `model/`. Usage:
 * node scripts/doc-test.ts [--parse] [FILE ...]; with --parse nothing runs.
 */
import { spawnSync } from "node:child_process"
import {
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync
} from "node:fs"
import { stripTypeScriptTypes } from "node:module"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { pathToFileURL } from "node:url"

const root = path.resolve(import.meta.dirname, "..")

export interface Block {
  readonly language: string
  readonly marks: ReadonlyArray<string>
  readonly text: string
  /** Line of the page on which it begins. */
  readonly line: number
}

export const blocksOf = (page: string): ReadonlyArray<Block> => {
  const blocks: Array<Block> = []
  let open:
    | { readonly fence: string; readonly info: string; readonly line: number; readonly lines: Array<string> }
    | undefined
  for (const [at, line] of page.split("\n").entries()) {
    const fence = /^(```+)(.*)$/.exec(line)
    if (open === undefined) {
      if (fence !== null) open = { fence: fence[1]!, info: fence[2]!.trim(), line: at + 1, lines: [] }
    } else if (fence !== null && fence[1] === open.fence && fence[2]!.trim() === "") {
      const [language = "", ...marks] = open.info.split(/\s+/)
      blocks.push({ language, marks, text: `${open.lines.join("\n")}\n`, line: open.line })
      open = undefined
    } else open.lines.push(line)
  }
  return blocks
}

const valueOf = ({ marks }: Block, name: string): string | undefined =>
  marks.find((mark) => mark.startsWith(`${name}=`))?.slice(name.length + 1)

/** What is wrong with the syntax of a block; undefined for nothing, and for languages that are not known. */
export const syntaxFault = ({ language, text, marks }: Block): string | undefined => {
  if (language === "sh") {
    const { status, stderr } = spawnSync("bash", ["-n"], { input: text, encoding: "utf8" })
    return status === 0 ? undefined : stderr.trim()
  }
  const mustParse = marks.length > 0
  if (!mustParse || (language !== "ts" && language !== "json")) return undefined
  try {
    if (language === "json") JSON.parse(text)
    else stripTypeScriptTypes(text)
    return undefined
  } catch (cause) {
    return String(cause)
  }
}

/** A folder as the reader of a page has it. */
const makeFolder = (): string => {
  const folder = mkdtempSync(path.join(tmpdir(), "tensorferry-docs-"))
  const modules = path.join(folder, "node_modules")
  mkdirSync(path.join(modules, "@tensorferry"), { recursive: true })
  for (const name of readdirSync(path.join(root, "packages"))) {
    symlinkSync(path.join(root, "packages", name), path.join(modules, "@tensorferry", name))
  }
  for (const name of ["effect", "@effect", "@types"])
    symlinkSync(path.join(root, "node_modules", name), path.join(modules, name))
  mkdirSync(path.join(folder, "bin"))
  const command = path.join(folder, "bin/tensorferry")
  writeFileSync(
    command,
    `#!/bin/sh\nexec "${process.execPath}" "${path.join(root, "packages/cli/src/main.ts")}" "$@"\n`
  )
  chmodSync(command, 0o755)
  writeFileSync(path.join(folder, "package.json"), '{ "private": true, "type": "module" }\n')
  const made = spawnSync(process.execPath, [
    path.join(root, "examples/llama-small/make.ts"),
    path.join(folder, "model")
  ])
  if (made.status !== 0) throw new Error(`no model: ${String(made.stderr)}`)
  return folder
}

/** The compiler's word on all TypeScript of a folder that a page wrote. */
const typeFaults = (folder: string): string => {
  const config = {
    extends: path.join(root, "tsconfig.lint.json"),
    compilerOptions: { types: ["node"], typeRoots: [path.join(root, "node_modules/@types")], plugins: [] },
    include: ["**/*.ts"],
    exclude: ["node_modules"]
  }
  writeFileSync(path.join(folder, "tsconfig.json"), JSON.stringify(config))
  const { status, stdout } = spawnSync(path.join(root, "node_modules/.bin/tsc"), ["-p", folder], { encoding: "utf8" })
  return status === 0 ? "" : stdout
}

const foreign = /^(RANK|WORLD_SIZE|LOCAL_|MASTER_|SLURM_|OMPI_|TENSORFERRY_)/

const environment = (folder: string): NodeJS.ProcessEnv => ({
  ...Object.fromEntries(Object.entries(process.env).filter(([name]) => !foreign.test(name) && name !== "NODE_OPTIONS")),
  PATH: `${path.join(folder, "bin")}:${path.dirname(process.execPath)}:${process.env.PATH ?? ""}`
})

/** Longest time of one block. */
const blockMillis = 300_000

/** What is wrong with a page; empty where all is right. */
export const testPage = (
  file: string,
  { mustRun, tell = () => {} }: { readonly mustRun: boolean; readonly tell?: (line: string) => void }
): ReadonlyArray<string> => {
  const blocks = blocksOf(readFileSync(file, "utf8"))
  const where = (block: Block): string => `${path.relative(root, file)}:${block.line}`
  const faults = blocks.flatMap((block) => {
    const fault = syntaxFault(block)
    return fault === undefined ? [] : [`${where(block)}: ${fault}`]
  })
  const isTried = blocks.some((block) => block.marks.includes("run") || valueOf(block, "file") !== undefined)
  if (faults.length > 0 || !mustRun || !isTried) return faults
  const folder = makeFolder()
  try {
    for (const block of blocks) {
      const name = valueOf(block, "file")
      if (name === undefined) continue
      mkdirSync(path.dirname(path.join(folder, name)), { recursive: true })
      writeFileSync(path.join(folder, name), block.text)
    }
    const hasTypes = blocks.some((block) => valueOf(block, "file")?.endsWith(".ts"))
    const wrong = hasTypes ? typeFaults(folder) : ""
    if (wrong !== "") return [`${path.relative(root, file)}: ${wrong}`]
    for (const block of blocks.filter(({ marks }) => marks.includes("run"))) {
      const wanted = Number(valueOf(block, "exit") ?? 0)
      tell(where(block))
      const { status, stdout, stderr } = spawnSync("bash", ["-euo", "pipefail", "-c", block.text], {
        cwd: folder,
        encoding: "utf8",
        env: environment(folder),
        timeout: blockMillis
      })
      if (status !== wanted) {
        return [
          `${where(block)}: ended with ${status} instead of ${wanted}\n${stdout.slice(-2000)}${stderr.slice(-2000)}`
        ]
      }
    }
    return []
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

export const pages = (): ReadonlyArray<string> => [
  path.join(root, "README.md"),
  ...readdirSync(path.join(root, "docs"))
    .filter((name) => name.endsWith(".md"))
    .map((name) => path.join(root, "docs", name))
]

const main = (): void => {
  const args = process.argv.slice(2)
  const mustRun = !args.includes("--parse")
  const named = args.filter((arg) => arg !== "--parse").map((name) => path.resolve(name))
  const faults = (named.length > 0 ? named : pages()).flatMap((file) => testPage(file, { mustRun, tell: console.log }))
  console.log(faults.length === 0 ? "pages: no fault" : faults.join("\n"))
  if (faults.length > 0) process.exitCode = 1
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) main()
