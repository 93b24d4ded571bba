// SPDX-License-Identifier: Apache-2.0
/**
 * What a block of shell calls, and whether that exists. Bash itself reads the block, loops and quotes included, in an
 * empty folder and without a path: every command that it does not find is written down instead of being run.
 */
import { spawnSync } from "node:child_process"
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { commandLineFault } from "./commandLine.ts"

const root = path.resolve(import.meta.dirname, "../..")

type Call = ReadonlyArray<string>

/** Separators that no command line has. */
const recorder = `
exec 9>"$RECORD"
cd() { :; }
# One write for each: calls in the background may come at the same time.
command_not_found_handle() { local call; printf -v call '%s\\x1f' "$@"; printf '%s\\x1e' "$call" >&9; }
`

/** The calls of a block; a text where bash cannot read it. */
const callsOf = (text: string): ReadonlyArray<Call> | string => {
  const syntax = spawnSync("bash", ["-n"], { input: text, encoding: "utf8" })
  if (syntax.status !== 0) return syntax.stderr.trim()
  const folder = mkdtempSync(path.join(tmpdir(), "tensorferry-calls-"))
  const record = path.join(folder, "record")
  writeFileSync(path.join(folder, "block.sh"), recorder + text)
  const { status, stderr } = spawnSync("/bin/bash", [path.join(folder, "block.sh")], {
    cwd: folder,
    encoding: "utf8",
    env: { PATH: path.join(folder, "nothing"), HOME: folder, RECORD: record },
    timeout: 30_000
  })
  const written = existsSync(record) ? readFileSync(record, "utf8") : ""
  rmSync(folder, { recursive: true, force: true })
  if (status !== 0 || stderr !== "") return `bash ended with ${status}: ${stderr.trim()}`
  return written
    .split("\x1e")
    .slice(0, -1)
    .map((call) => call.split("\x1f").slice(0, -1))
}

const read = (name: string): string => readFileSync(path.join(root, name), "utf8")

const manifest = JSON.parse(read("package.json")) as { readonly packageManager: string; readonly scripts: object }
const scripts = Object.keys(manifest.scripts)
const ofPnpm = ["install", "pack"]
const ofNpm = ["init", "install", "pkg", "publish"]

const missing = (what: string, name: string | undefined, known: boolean): string | undefined =>
  known ? undefined : `${what} "${name ?? ""}" does not exist`

const isFile = (name: string | undefined): boolean => name !== undefined && existsSync(path.join(root, name))

/** Flags that the checks for GPUs read, wherever they are started from. */
const gpuFlagFault = (args: Call): string | undefined => {
  const unknown = args
    .filter((arg) => arg.startsWith("--"))
    .find((arg) => !read("bench/gpu/main.ts").includes(`flag("${arg.slice(2)}")`))
  return unknown === undefined ? undefined : `${unknown} is no flag of bench/gpu/main.ts`
}

const flagSources = [
  "packages/cli/src/commands",
  "packages/cli/src/output",
  "scripts",
  "bench/gpu",
  "examples/tensor-bus"
].flatMap((folder) =>
  readdirSync(path.join(root, folder))
    .filter((name) => name.endsWith(".ts"))
    .map((name) => `${folder}/${name}`)
)

/** Flags of npm, vitest and pnpm, and those that every command line of effect has. */
const foreignFlags = ["ignore-scripts", "project", "lockfile-only", "help", "version", "completions"]

/** Whether any command of the repository has the flag: for what pages name in passing. */
export const isFlag = (flag: string): boolean =>
  foreignFlags.includes(flag) ||
  // A default may stand before the name.
  flagSources.some((name) => new RegExp(`\\((\\w+, )?"${flag}"|"--${flag}"`).test(read(name)))

/** A launcher's own flags are its affair; what it starts is ours. */
const launched = (args: Call): Promise<string | undefined> | string => {
  const at = args.indexOf("tensorferry")
  return at < 0 ? "starts no tensorferry" : commandLineFault(args.slice(at + 1))
}

const pnpmFault = ([first, ...rest]: Call): string | undefined => {
  const [name, ...args] = first === "run" ? rest : [first, ...rest]
  const suite = args.find((arg) => arg !== undefined && !arg.startsWith("--"))
  if (name === "bench" && suite !== undefined)
    return missing("bench", suite, new RegExp(`^ +"?${suite}"?: async`, "m").test(read("bench/run.ts")))
  return missing("script", name, [...scripts, ...ofPnpm].includes(name ?? ""))
}

/** `npx --yes pnpm@VERSION`, in the version that the repository pins, or a command of ours. */
const npxFault = (args: Call): Promise<string | undefined> | string | undefined => {
  const at = args.findIndex((arg) => arg.startsWith("pnpm@"))
  if (at < 0) return launched(args)
  return args[at] === manifest.packageManager ? pnpmFault(args.slice(at + 1)) : `it is ${manifest.packageManager} here`
}

/** Files are the repository's or the page's own; a project is a package's folder. */
const vitestFault = (args: Call, isOfPage: (file: string) => boolean): string | undefined => {
  for (let at = 0; at < args.length; at++) {
    const [arg, next] = [args[at]!, args[at + 1] ?? ""]
    const isProject =
      [`packages/${next}`, next].some((folder) => isFile(`${folder}/package.json`)) || next === "examples"
    const fault =
      arg === "--project" ? missing("project", next, isProject) : missing("file", arg, isFile(arg) || isOfPage(arg))
    if (arg === "--project" || arg === "-t") at++
    if (arg !== "-t" && fault !== undefined) return fault
  }
  return undefined
}

const judges: Readonly<
  Record<string, (args: Call, isOfPage: (file: string) => boolean) => Promise<string | undefined> | string | undefined>
> = {
  tensorferry: (args) => commandLineFault(args),
  torchrun: launched,
  srun: launched,
  mpirun: launched,
  npx: npxFault,
  pnpm: pnpmFault,
  npm: ([name, script]) =>
    name === "run" || name === "test"
      ? undefined
      : missing("npm's command", name ?? script, ofNpm.includes(name ?? "")),
  make: ([target]) => missing("target", target, new RegExp(`^${target}:`, "m").test(read("Makefile"))),
  node: ([file, ...args], isOfPage) =>
    file === "bench/gpu/main.ts"
      ? gpuFlagFault(args)
      : missing("file", file, isFile(file) || (file !== undefined && isOfPage(file))),
  python: ([file], isOfPage) => missing("file", file, isFile(file) || (file !== undefined && isOfPage(file))),
  pip: ([install, what]) =>
    install === "install" ? missing("package", what, isFile(`${what}/pyproject.toml`)) : "is to install",
  vitest: ([run, ...args], isOfPage) => (run === "run" ? vitestFault(args, isOfPage) : "is to be called with run"),
  bash: ([file, ...args]) => (file === "gpu-bundle/run.sh" ? gpuFlagFault(args) : missing("file", file, isFile(file))),
  cat: () => undefined,
  mkdir: () => undefined,
  git: () => undefined
}

/** What is wrong with the commands of a block. `isOfPage` tells files that the page itself writes. */
export const callFaults = async (text: string, isOfPage: (file: string) => boolean): Promise<ReadonlyArray<string>> => {
  const calls = callsOf(text)
  if (typeof calls === "string") return [calls]
  const faults: Array<string> = []
  for (const [name = "", ...args] of calls) {
    const judge = judges[name]
    const fault = judge === undefined ? "is no command that pages may call" : await judge(args, isOfPage)
    if (fault !== undefined) faults.push(`${[name, ...args].join(" ")}: ${fault}`)
  }
  return faults
}
