// SPDX-License-Identifier: Apache-2.0
/**
 * Tries what pages say: every fenced block of README.md and the pages beside it, docs, and the READMEs of examples and packages, by its mark
 * (`pages/blocks.ts`). Fragments of TypeScript are tried in the file of the page that they go into, each by itself.
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
import {
  type Block,
  baseOf,
  blocksOf,
  fileOf,
  flagsOf,
  has,
  importFault,
  joined,
  markFault,
  nameFault,
  valueOf
} from "./pages/blocks.ts"
import { callFaults, isFlag } from "./pages/shellCalls.ts"

const root = path.resolve(import.meta.dirname, "..")

interface Page {
  readonly file: string
  readonly text: string
  readonly blocks: ReadonlyArray<Block>
  readonly folder: string
}

const where = ({ file }: Page, { line }: Block): string => `${path.relative(root, file)}:${line}`

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

/** A page's folder, with the files that the page writes and its fragments in theirs. */
const makeFolder = (top: string, file: string, blocks: ReadonlyArray<Block>): string => {
  const folder = path.join(top, path.relative(root, file).replaceAll(/[/.]+/g, "-"))
  mkdirSync(folder, { recursive: true })
  cpSync(path.join(top, "model"), path.join(folder, "model"), { recursive: true })
  linkSources(folder)
  for (const block of blocks) {
    const name = fileOf(block)
    if (name === undefined) continue
    const base = baseOf(blocks, block)
    mkdirSync(path.dirname(path.join(folder, name)), { recursive: true })
    writeFileSync(path.join(folder, name), base === undefined ? block.text : joined(base, block))
  }
  return folder
}

/** What is wrong with a page by itself: marks, commands, imports, fragments without a file. */
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
    const into = valueOf(block, "in")
    if (into !== undefined && baseOf(page.blocks, block) === undefined)
      found.push(`no block above has the file "${into}" with a line "// Here goes a fragment below."`)
    const unnamed = nameFault(page.text, block)
    if (unnamed !== undefined) found.push(unnamed)
    const imports = importFault(block)
    if (imports !== undefined) found.push(imports)
    faults.push(...found.map((fault) => `${where(page, block)}: ${fault}`))
  }
  for (const { flag, line } of flagsOf(page.text))
    if (!isFlag(flag)) faults.push(`${path.relative(root, page.file)}:${line}: nothing has a flag --${flag}`)
  return faults
}

/** The compiler's word on the TypeScript of all pages; file names in it are those of pages; those of fragments begin with their line. */
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

const simulator = path.join(root, "packages/simulators/build/nvshmem/libtensorferry_nvshmem_simulator.so")

/** Variables that put a simulated GPU in the place of the vendor's libraries. */
const simulated: NodeJS.ProcessEnv = {
  ...Object.fromEntries(
    ["CUDA_RUNTIME", "CUDA_DRIVER", "CUDA_NVRTC", "NVSHMEM"].map((library) => [`TENSORFERRY_${library}`, simulator])
  ),
  TENSORFERRY_GPU_SIMULATOR: "devices=8",
  TENSORFERRY_NVSHMEM_SIMULATOR: "heap=1024m"
}

/** Longest time of one block. */
const blockMillis = 300_000

/** Runs a page's blocks in order, each where the one before has gone, to the first that does not end as it says. */
const runFaults = (page: Page, top: string, isChosen: (block: Block) => boolean): ReadonlyArray<string> => {
  let cwd = page.folder
  const gone = path.join(top, "gone")
  for (const block of page.blocks.filter(isChosen)) {
    if (has(block, "simulated") && !existsSync(simulator)) {
      console.log(`${where(page, block)}  skipped: the simulators are not built`)
      continue
    }
    const wanted = Number(valueOf(block, "exit") ?? 0)
    const begun = performance.now()
    const isShell = block.language === "sh"
    const text = isShell ? block.text : `node ${path.basename(fileOf(block)!)}`
    const { status, stdout, stderr } = spawnSync(
      "bash",
      ["-euo", "pipefail", "-c", `trap 'pwd >"$GONE"' EXIT\n${text}`],
      {
        cwd: isShell ? cwd : path.join(page.folder, path.dirname(fileOf(block)!)),
        encoding: "utf8",
        env: { ...environment(top), ...(has(block, "simulated") ? simulated : {}), GONE: gone },
        timeout: blockMillis
      }
    )
    console.log(`${where(page, block)}  ${((performance.now() - begun) / 1000).toFixed(1)} s`)
    if (isShell && existsSync(gone)) cwd = readFileSync(gone, "utf8").trim()
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
  const isRun = (block: Block): boolean =>
    has(block, "run") || (valueOf(block, "in") !== undefined && !has(block, "types"))
  const isChosen = (block: Block): boolean =>
    isRun(block) && !args.includes("--parse") && !(args.includes("--quick") && has(block, "full"))
  const top = makeTop()
  try {
    const pages = (named.length > 0 ? named : allPages()).map((file): Page => {
      const text = readFileSync(file, "utf8")
      const blocks = blocksOf(text)
      return { file, text, blocks, folder: makeFolder(top, file, blocks) }
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
