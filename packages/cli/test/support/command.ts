// SPDX-License-Identifier: Apache-2.0
/**
 * Runs the real command in a process group of its own, so that a test can find its ranks, signal them all, and see that
 * nothing of it is left. Whatever a test leaves behind is killed by `endAll`.
 */
import { type ChildProcess, spawn } from "node:child_process"
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { assert } from "@effect/vitest"

const main = fileURLToPath(new URL("../../src/main.ts", import.meta.url))

/** Variables by which a launcher or a user changes what the command does. */
const foreign = /^(RANK|WORLD_SIZE|LOCAL_|MASTER_|SLURM_|OMPI_|TENSORFERRY_)/

const cleanEnvironment = (): NodeJS.ProcessEnv =>
  Object.fromEntries(Object.entries(process.env).filter(([name]) => !foreign.test(name) && name !== "NODE_OPTIONS"))

export interface Ended {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
  readonly stdout: string
  readonly stderr: string
}

export interface Running {
  readonly child: ChildProcess
  /** The command's process and the group that its ranks are in. */
  readonly pid: number
  readonly ended: Promise<Ended>
}

const running = new Set<Running>()

export interface RunOptions {
  readonly env?: NodeJS.ProcessEnv
  readonly cwd?: string
  /** Milliseconds after which the command counts as hanging. */
  readonly limit?: number
}

export const start = (args: ReadonlyArray<string>, options: RunOptions = {}): Running => {
  const child = spawn(process.execPath, [main, ...args], {
    stdio: ["ignore", "pipe", "pipe"],
    detached: true,
    env: { ...cleanEnvironment(), ...options.env },
    ...(options.cwd === undefined ? {} : { cwd: options.cwd })
  })
  let stdout = ""
  let stderr = ""
  child.stdout.on("data", (chunk) => {
    stdout += String(chunk)
  })
  child.stderr.on("data", (chunk) => {
    stderr += String(chunk)
  })
  const pid = child.pid!
  const ended = new Promise<Ended>((resolve, reject) => {
    const limit = options.limit ?? 60_000
    const timer = setTimeout(() => {
      killGroup(pid)
      reject(new Error(`The command hangs: ${args.join(" ")}\n${stdout}\n${stderr}`))
    }, limit)
    child.once("exit", (code, signal) => {
      clearTimeout(timer)
      // Output is complete when the pipes close; a rank that outlives the command does not hold them.
      child.once("close", () => resolve({ code, signal, stdout, stderr }))
    })
  })
  const command: Running = { child, pid, ended }
  running.add(command)
  return command
}

export const run = (args: ReadonlyArray<string>, options?: RunOptions): Promise<Ended> => start(args, options).ended

/** Runs commands two at a time; how each ended, in order. */
export const runAll = async (all: ReadonlyArray<ReadonlyArray<string>>): Promise<ReadonlyArray<Ended>> => {
  const ended: Array<Ended> = []
  for (let at = 0; at < all.length; at += 2) {
    ended.push(...(await Promise.all(all.slice(at, at + 2).map((args) => run(args)))))
  }
  return ended
}

const killGroup = (group: number): void => {
  try {
    process.kill(-group, "SIGKILL")
  } catch {
    // The group is gone.
  }
}

export const endAll = (): void => {
  for (const { pid } of running) killGroup(pid)
  running.clear()
}

interface ProcessFacts {
  readonly pid: number
  readonly group: number
  readonly state: string
  readonly args: ReadonlyArray<string>
}

const factsOf = (pid: number): ProcessFacts | undefined => {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8")
    const [state, , group] = stat.slice(stat.lastIndexOf(")") + 2).split(" ")
    return { pid, group: Number(group), state: state!, args: readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0") }
  } catch {
    return undefined
  }
}

/** Processes of the group that still exist; one that has ended and only waits to be noticed does not count. */
export const membersOf = (group: number): ReadonlyArray<ProcessFacts> =>
  readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map((name) => factsOf(Number(name)))
    .filter((facts) => facts !== undefined)
    .filter((facts) => facts.group === group && facts.state !== "Z")

/** Process numbers by rank. */
export const ranksOf = (group: number): ReadonlyMap<number, number> =>
  new Map(
    membersOf(group).flatMap(({ pid, args }) => {
      const at = args.findIndex((arg) => /rankMain\.[tj]s$/.test(arg))
      return at < 0 || args[at + 1] !== "rank" ? [] : [[Number(args[at + 2]), pid] as const]
    })
  )

/** Waits until a condition holds; fails when it does not within the limit. */
export const eventually = async <A>(what: string, limit: number, look: () => A | undefined): Promise<A> => {
  const end = performance.now() + limit
  for (;;) {
    const found = look()
    if (found !== undefined) return found
    if (performance.now() > end) throw new Error(`${what}: not within ${limit} ms`)
    await pause(5)
  }
}

export const pause = (millis: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, millis))

/** The process of a rank, as soon as it exists. */
export const rankProcess = (command: Running, rank: number): Promise<number> =>
  eventually(`the process of rank ${rank}`, 30_000, () => ranksOf(command.pid).get(rank))

/** Sends a signal; false where the process is gone already. */
export const signal = (pid: number, name: NodeJS.Signals): boolean => {
  try {
    return process.kill(pid, name)
  } catch {
    return false
  }
}

/** Every process of the command is gone, soon. */
export const assertNothingRuns = (command: Running, limit = 5_000): Promise<true> =>
  eventually(`the end of all processes of ${command.pid}`, limit, () =>
    membersOf(command.pid).length === 0 ? true : undefined
  )

export interface FailureJson {
  readonly tag: string
  readonly reason: string
  readonly message: string
  readonly rank?: number
  readonly ranks: ReadonlyArray<number>
  readonly fields: {
    readonly file?: string
    readonly paramName?: string
    readonly detail: string
    readonly remedy: string
  } | null
}

/** The failures that a command with --json printed. */
export const failuresOf = (ended: Ended): ReadonlyArray<FailureJson> => {
  const parsed = JSON.parse(ended.stdout) as { readonly ok: boolean; readonly errors: ReadonlyArray<FailureJson> }
  assert.isFalse(parsed.ok)
  assert.isNotEmpty(parsed.errors)
  for (const error of parsed.errors) assert.notStrictEqual(error.tag, "Defect", error.message)
  return parsed.errors
}

/** A folder for one test. */
export const scratch = (): { readonly path: string; readonly [Symbol.dispose]: () => void } => {
  const path = mkdtempSync(join(tmpdir(), "tensorferry-test-"))
  return { path, [Symbol.dispose]: () => rmSync(path, { recursive: true, force: true }) }
}

/** Names in a folder that belong to no finished output. */
export const temporaryNames = (folder: string): ReadonlyArray<string> =>
  readdirSync(folder, { recursive: true })
    .map(String)
    .filter((name) => name.includes(".tmp-"))

/** Numbers from 0 to 1, the same for the same seed. */
export const seeded = (seed: number): (() => number) => {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

export { freePort } from "@tensorferry/testing/machine/freePort"
/** More rounds, and combinations that take minutes. */
export { isSoak } from "@tensorferry/testing/testLevel"
