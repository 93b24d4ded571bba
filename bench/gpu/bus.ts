// SPDX-License-Identifier: Apache-2.0
/**
 * The tensor bus with PyTorch: agents as processes of their own, one per device, and two Python processes whose tensors they
 * move between the devices. Without a GPU the same with tensors of the host, as a rehearsal.
 */
import { type ChildProcess, spawn, spawnSync } from "node:child_process"
import { existsSync, mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { createInterface } from "node:readline"
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as NodeServices from "@effect/platform-node/NodeServices"
import { agent } from "@tensorferry/cli/commands"
import * as Command from "effect/cli/Command"
import * as Effect from "effect/Effect"
import { python } from "./python.ts"

/** `tensorferry agent` with these arguments. */
export const agentMain = (args: ReadonlyArray<string>): void => {
  const root = Command.make("tensorferry").pipe(Command.withSubcommands([agent]))
  NodeRuntime.runMain(
    Command.runWith(root, { version: "0.1.0" })(["agent", ...args]).pipe(Effect.provide(NodeServices.layer))
  )
}

export interface BusCheck {
  /** Starts this program again. */
  readonly program: ReadonlyArray<string>
  /** The Python files, and liblmdb. */
  readonly data: string
  readonly onGpu: boolean
  readonly backends: ReadonlyArray<string>
  readonly batches: number
  /** Transfers of each batch. */
  readonly rounds: number
  /** Of the longest tensor. */
  readonly megabytes: number
}

export interface BusResult {
  readonly passed: boolean
  readonly lines: ReadonlyArray<string>
  readonly facts: ReadonlyArray<unknown>
}

/** Longer than a check takes. */
export const limitSeconds = 240

/** Why the check cannot run on so many devices, or undefined. */
export const busProblem = (onGpu: boolean, devices = 2): string | undefined => {
  const asked = onGpu ? "import torch; print(torch.cuda.device_count())" : `import torch; print(${devices})`
  const found = spawnSync(python, ["-c", asked], { encoding: "utf8" })
  if (found.error !== undefined) return `${python} cannot be run: ${found.error.message}`
  if (found.status !== 0) return `${python} has no usable torch: ${found.stderr.trim().split("\n").at(-1)}`
  return Number(found.stdout) >= devices
    ? undefined
    : `torch sees ${found.stdout.trim()} GPUs; the check needs ${devices}`
}

/** A process, and what it has said. */
export interface Started {
  readonly child: ChildProcess
  readonly lines: Array<string>
  readonly errors: () => string
  readonly firstLine: Promise<void>
  readonly ended: Promise<number | NodeJS.Signals>
}

/** Starts a process and reads its lines. */
export const startProcess = (command: string, args: ReadonlyArray<string>, env: NodeJS.ProcessEnv): Started => {
  const child = spawn(command, args, { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, ...env } })
  const lines: Array<string> = []
  let errors = ""
  child.stderr.on("data", (chunk) => {
    errors = (errors + String(chunk)).slice(-4000)
  })
  const ended = new Promise<number | NodeJS.Signals>((resolve) => {
    child.once("close", (code, signal) => resolve(signal ?? code ?? 0))
  })
  const firstLine = new Promise<void>((resolve) => {
    createInterface({ input: child.stdout }).on("line", (line) => {
      lines.push(line)
      resolve()
    })
    void ended.then(() => resolve())
  })
  return { child, lines, errors: () => errors, firstLine, ended }
}

/** What the two Python processes run, and where. */
interface Clients {
  readonly script: string
  readonly deviceOf: (rank: number) => number
  /** Behind the stem, the sides and the device; `folder` is the agents'. */
  readonly args: (folder: string) => ReadonlyArray<string>
}

const runBackend = async (check: BusCheck, backend: string, pair: Clients): Promise<BusResult> => {
  const folder = mkdtempSync(path.join(tmpdir(), "tensorferry-bus-"))
  const started: Array<Started> = []
  const limit = setTimeout(() => {
    for (const { child } of started) child.kill("SIGKILL")
  }, limitSeconds * 1000)
  try {
    const libraries = existsSync(path.join(check.data, "liblmdb.so.0")) ? [check.data] : []
    const env = { LD_LIBRARY_PATH: [...libraries, process.env.LD_LIBRARY_PATH ?? ""].filter(Boolean).join(":") }
    const startAgent = async (rank: number, ...where: ReadonlyArray<string>) => {
      const options = [
        ...["--rank", String(rank), "--folder", folder, "--store", ...where],
        ...["--backend", backend, "--deadline", "60", "--json"],
        ...(check.onGpu ? ["--device", String(pair.deviceOf(rank))] : [])
      ]
      const agent = startProcess(check.program[0]!, [...check.program.slice(1), "agent", ...options], env)
      started.push(agent)
      await agent.firstLine
      if (agent.lines.length === 0) throw new Error(`Agent ${rank} ended before it served: ${agent.errors()}`)
      const { store } = JSON.parse(agent.lines[0]!) as { readonly store: string }
      return { agent, store }
    }
    const first = await startAgent(0, "127.0.0.1:0", "--serve")
    const second = await startAgent(1, first.store)
    const agents = [first.agent, second.agent]
    const clients = (["a", "b"] as const).map((side, rank) => {
      const args = [
        path.join(check.data, pair.script),
        path.join(folder, `agent_rank${rank}`),
        ...[side, side === "a" ? "b" : "a", check.onGpu ? `cuda:${pair.deviceOf(rank)}` : "cpu"],
        ...pair.args(folder)
      ]
      return startProcess(python, args, env)
    })
    started.push(...clients)
    const ends = await Promise.all(clients.map(({ ended }) => ended))
    const lines = clients.flatMap((client, at) => [
      ...client.lines,
      ...(ends[at] === 0 ? [] : [`client ${at} ended with ${ends[at]}: ${client.errors().slice(-1500)}`])
    ])
    for (const { child, ended } of agents.toReversed()) {
      child.kill("SIGTERM")
      await ended
    }
    const isWrong = ends.some((end) => end !== 0)
    if (isWrong) for (const each of agents) lines.push(`agent: ${each.errors().slice(-1500)}`)
    return {
      passed: !isWrong,
      lines,
      facts: clients.flatMap(({ lines: said }) =>
        said.filter((line) => line.startsWith("{")).map((line) => JSON.parse(line))
      )
    }
  } finally {
    clearTimeout(limit)
    for (const { child } of started) child.kill("SIGKILL")
    rmSync(folder, { recursive: true, force: true })
  }
}

/** By backend, in their order. */
export const checkBus = async (check: BusCheck): Promise<ReadonlyArray<readonly [string, BusResult]>> => {
  const pair: Clients = {
    script: "bus_torch.py",
    deviceOf: (rank) => rank,
    args: () => [check.batches, check.rounds, check.megabytes].map(String)
  }
  const results: Array<readonly [string, BusResult]> = []
  for (const backend of check.backends) results.push([backend, await runBackend(check, backend, pair)])
  return results
}

/** Updates of a whole model on one device, beside what PyTorch's users do without the bus. */
export const measureBusWeights = (check: BusCheck, backend: string, shrink: number): Promise<BusResult> =>
  runBackend(check, backend, {
    script: "bus_weights.py",
    deviceOf: () => 0,
    args: (folder) => [String(check.rounds), String(shrink), folder]
  })
