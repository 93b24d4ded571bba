// SPDX-License-Identifier: Apache-2.0
/**
 * Tries what pages say: every fenced block of README.md and the pages beside it, docs, and the READMEs of examples and packages, by its mark
 * (`pages/blocks.ts`). Fragments of TypeScript are checked behind the preludes of `pages/preludes.md`.
 *
 * Each page has a folder with `model/`, a small llama checkpoint, and the repository's `examples` and `bench`; above it
 * are the packages and the command. Usage:
 *
 *   node scripts/doc-test.ts [--parse | --quick] [FILE ...]
 *
 * With --parse nothing runs; with --quick no block that is marked `full`. Commands and types are checked always.
 */
import { spawnSync } from "node:child_process"
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync
} from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { type Block, blocksOf, flagsOf, has, markFault, valueOf } from "./pages/blocks.ts"
import { callFaults, isFlag } from "./pages/shellCalls.ts"

const root = path.resolve(import.meta.dirname, "..")

interface Page {
  readonly file: string
  readonly blocks: ReadonlyArray<Block>
  readonly folder: string
}

const where = ({ file }: Page, { line }: Block): string => `${path.relative(root, file)}:${line}`

const preludes = new Map(
  blocksOf(readFileSync(path.join(root, "scripts/pages/preludes.md"), "utf8")).map((block) => [
    valueOf(block, "prelude"),
    block.text
  ])
)

const linkSources = (folder: string): void => {
  for (const name of ["examples", "bench"]) symlinkSync(path.join(root, name), path.join(folder, name))
}

/** What the folders of all pages lie in: packages as they are found from there, and the command. */
const makeTop = (): string => {
  const top = mkdtempSync(path.join(tmpdir(), "tensorferry-docs-"))
  const modules = path.join(top, "node_modules")
  mkdirSync(path.join(modules, "@tensorferry"), { recursive: true })
  for (const name of readdirSync(path.join(root, "packages")))
    symlinkSync(path.join(root, "packages", name), path.join(modules, "@tensorferry", name))
  for (const name of ["effect", "@effect", "@types", ".bin"])
    symlinkSync(path.join(root, "node_modules", name), path.join(modules, name))
  writeFileSync(path.join(top, "package.json"), '{ "private": true, "type": "module" }\n')
  linkSources(top)
  const made = spawnSync(process.execPath, [path.join(root, "examples/llama-small/make.ts"), path.join(top, "model")])
  if (made.status !== 0) throw new Error(`no model: ${String(made.stderr)}`)
  return top
}

/** A fragment where its prelude says; imports stand on top of a file, wherever the fragment goes. */
const behind = (prelude: string, fragment: string): string => {
  const imports = fragment.match(/^import .*\n/gm) ?? []
  const rest = fragment.replaceAll(/^import .*\n/gm, "")
  return imports.join("") + prelude.replace(/^\/\/ block\n/m, () => rest)
}

/** A page's folder, with the files that the page writes and its fragments behind their preludes. */
const makeFolder = (top: string, file: string, blocks: ReadonlyArray<Block>): string => {
  const folder = path.join(top, path.relative(root, file).replaceAll(/[/.]+/g, "-"))
  mkdirSync(folder, { recursive: true })
  cpSync(path.join(top, "model"), path.join(folder, "model"), { recursive: true })
  linkSources(folder)
  for (const block of blocks) {
    const prelude = preludes.get(valueOf(block, "prelude"))
    const name = prelude === undefined ? valueOf(block, "file") : `fragments/line-${block.line}.ts`
    if (name === undefined) continue
    mkdirSync(path.dirname(path.join(folder, name)), { recursive: true })
    writeFileSync(path.join(folder, name), prelude === undefined ? block.text : behind(prelude, block.text))
  }
  return folder
}

/** What is wrong with a page by itself: marks, commands, preludes. */
const faultsOf = async (page: Page): Promise<ReadonlyArray<string>> => {
  const faults: Array<string> = []
  // The page may have gone into a folder of its own before.
  const isOfPage = (name: string): boolean =>
    existsSync(path.join(page.folder, name)) ||
    page.blocks.some((block) => valueOf(block, "file")?.endsWith(`/${name}`))
  for (const block of page.blocks) {
    const found: Array<string> = []
    const mark = markFault(block)
    if (mark !== undefined) found.push(mark)
    else if (block.language === "sh") found.push(...(await callFaults(block.text, isOfPage)))
    const prelude = valueOf(block, "prelude")
    if (prelude !== undefined && preludes.get(prelude)?.includes("\n// block\n") !== true)
      found.push(`scripts/pages/preludes.md has no prelude "${prelude}" with a line "// block"`)
    faults.push(...found.map((fault) => `${where(page, block)}: ${fault}`))
  }
  for (const { flag, line } of flagsOf(readFileSync(page.file, "utf8")))
    if (!isFlag(flag)) faults.push(`${path.relative(root, page.file)}:${line}: nothing has a flag --${flag}`)
  return faults
}

/** The compiler's word on the TypeScript of all pages; file names in it are those of pages, and of lines for fragments. */
const typeFaults = (top: string): ReadonlyArray<string> => {
  const config = {
    extends: path.join(root, "tsconfig.lint.json"),
    compilerOptions: { types: ["node"], typeRoots: [path.join(root, "node_modules/@types")], plugins: [] },
    include: ["*/**/*.ts"],
    exclude: ["node_modules", "examples", "bench", "*/examples", "*/bench"]
  }
  writeFileSync(path.join(top, "tsconfig.json"), JSON.stringify(config))
  const tsc = path.join(root, "node_modules/.bin/tsc")
  const { status, stdout } = spawnSync(tsc, ["-p", top, "--pretty", "false"], { cwd: top, encoding: "utf8" })
  return status === 0 ? [] : [stdout]
}

const foreign = /^(RANK|WORLD_SIZE|LOCAL_|MASTER_|SLURM_|OMPI_|TENSORFERRY_)/

const environment = (top: string): NodeJS.ProcessEnv => ({
  ...Object.fromEntries(Object.entries(process.env).filter(([name]) => !foreign.test(name) && name !== "NODE_OPTIONS")),
  PATH: `${path.join(top, "node_modules/.bin")}:${path.dirname(process.execPath)}:${process.env.PATH ?? ""}`
})

/** Longest time of one block. */
const blockMillis = 300_000

/** Runs a page's blocks in order, each where the one before has gone, to the first that does not end as it says. */
const runFaults = (page: Page, top: string, isChosen: (block: Block) => boolean): ReadonlyArray<string> => {
  let cwd = page.folder
  const gone = path.join(top, "gone")
  for (const block of page.blocks.filter(isChosen)) {
    const wanted = Number(valueOf(block, "exit") ?? 0)
    const begun = performance.now()
    const { status, stdout, stderr } = spawnSync(
      "bash",
      ["-euo", "pipefail", "-c", `trap 'pwd >"$GONE"' EXIT\n${block.text}`],
      {
        cwd,
        encoding: "utf8",
        env: { ...environment(top), GONE: gone },
        timeout: blockMillis
      }
    )
    console.log(`${where(page, block)}  ${((performance.now() - begun) / 1000).toFixed(1)} s`)
    if (existsSync(gone)) cwd = readFileSync(gone, "utf8").trim()
    if (status !== wanted) {
      const said = `${stdout.slice(-2000)}${stderr.slice(-2000)}`
      return [`${where(page, block)}: ended with ${status} instead of ${wanted}\n${said}`]
    }
    const next = page.blocks[page.blocks.indexOf(block) + 1]
    if (next !== undefined && has(next, "output") && !`${stdout}${stderr}`.includes(next.text))
      return [`${where(page, next)}: this was not printed, but\n${stdout}${stderr}`]
  }
  return []
}

const markdownOf = (folder: string): ReadonlyArray<string> =>
  readdirSync(path.join(root, folder))
    .filter((name) => name.endsWith(".md"))
    .map((name) => path.join(root, folder, name))

/** All pages; `docs/reference` is generated. */
const allPages = (): ReadonlyArray<string> => [
  ...markdownOf("."),
  ...["docs", "docs/benchmarks", "docs/adr", "examples"].flatMap(markdownOf),
  ...["examples", "packages"].flatMap((parent) =>
    readdirSync(path.join(root, parent), { withFileTypes: true })
      .filter((entry) => entry.isDirectory())
      .flatMap(({ name }) => markdownOf(`${parent}/${name}`))
  )
]

const main = async (): Promise<void> => {
  const args = process.argv.slice(2)
  const named = args.filter((arg) => !arg.startsWith("--")).map((name) => path.resolve(name))
  const isChosen = (block: Block): boolean =>
    has(block, "run") && !args.includes("--parse") && !(args.includes("--quick") && has(block, "full"))
  const top = makeTop()
  try {
    const pages = (named.length > 0 ? named : allPages()).map((file): Page => {
      const blocks = blocksOf(readFileSync(file, "utf8"))
      return { file, blocks, folder: makeFolder(top, file, blocks) }
    })
    const faults: Array<string> = []
    for (const page of pages) faults.push(...(await faultsOf(page)))
    if (pages.some(({ blocks }) => blocks.some(({ language }) => language === "ts"))) faults.push(...typeFaults(top))
    for (const page of pages) faults.push(...runFaults(page, top, isChosen))
    console.log(faults.length === 0 ? "pages: no fault" : faults.join("\n"))
    if (faults.length > 0) process.exitCode = 1
  } finally {
    rmSync(top, { recursive: true, force: true })
  }
}

await main()
