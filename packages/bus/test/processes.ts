// SPDX-License-Identifier: Apache-2.0
/**
 * Agents as processes of their own, over LMDB files, and clients of them within this process.
 */
import { type ChildProcess, spawn } from "node:child_process"
import { readdirSync, rmSync } from "node:fs"
import { join } from "node:path"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import { afterAll } from "@effect/vitest"
import { HostMemory as HostMemoryLayers } from "@tensorferry/backend-torch-copy"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import { placeOf } from "../src/bootstrap.ts"
import * as Clients from "../src/client/TensorBusClient.ts"
import * as CommandQueueLmdb from "../src/queue/CommandQueueLmdb.ts"
import * as AgentStateLmdb from "../src/state/AgentStateLmdb.ts"
import type { AgentInput } from "./fixtures/agent.ts"
import { scratch } from "./support.ts"

export { oneEach } from "./onePair.ts"

export const script = (name: string) => fileURLToPath(new URL(`./fixtures/${name}`, import.meta.url))

export const exited = (child: ChildProcess) =>
  Effect.callback<number | NodeJS.Signals>((resume) => {
    const tell = () => resume(Effect.succeed(child.signalCode ?? child.exitCode ?? 0))
    if (child.exitCode !== null || child.signalCode !== null) return tell()
    child.once("exit", tell)
  })

export const kill = (child: ChildProcess, signal: NodeJS.Signals) =>
  Effect.suspend(() => {
    child.kill(signal)
    return exited(child)
  })

/** A process of a fixture; ends with the scope. Answers it and its first line. */
export const run = (name: string, args: ReadonlyArray<string>) =>
  Effect.gen(function* () {
    const child = yield* Effect.acquireRelease(
      Effect.sync(() =>
        spawn(process.execPath, [script(name), ...args], {
          stdio: ["ignore", "pipe", "pipe"]
        })
      ),
      (made) => kill(made, "SIGKILL")
    )
    let said = ""
    child.stderr.on("data", (chunk) => {
      said += String(chunk)
    })
    const line = yield* Effect.callback<string>((resume) => {
      createInterface({ input: child.stdout }).once("line", (text) => resume(Effect.succeed(text)))
      child.once("exit", () => resume(Effect.die(`${name} ended: ${said}`)))
    })
    return { child, line }
  })

/** A process that answers lines with lines; ends with the scope. */
export const converse = (name: string, args: ReadonlyArray<string>) =>
  Effect.gen(function* () {
    const child = yield* Effect.acquireRelease(
      Effect.sync(() =>
        spawn(process.execPath, [script(name), ...args], {
          stdio: ["pipe", "pipe", "inherit"]
        })
      ),
      (made) => kill(made, "SIGKILL")
    )
    const lines = yield* Queue.unbounded<string>()
    createInterface({ input: child.stdout }).on("line", (line) => Queue.offerUnsafe(lines, line))
    const say = (line: string) => Effect.sync(() => child.stdin.write(`${line}\n`))
    yield* Queue.take(lines)
    return { child, say, answer: Queue.take(lines) }
  })

export const startAgent = (input: AgentInput) =>
  Effect.map(run("agent.ts", [JSON.stringify(input)]), ({ child, line }) => ({
    child,
    port: (JSON.parse(line) as { readonly port: number }).port
  }))

export const all = <A, E, R>(effects: ReadonlyArray<Effect.Effect<A, E, R>>) =>
  Effect.all(effects, { concurrency: "unbounded" })

export const memoryLayer = HostMemoryLayers.layer

/** Agents of other test runs on this machine must not have the same ranks. */
export const firstRank = 100 * process.pid

// What agents leave that are killed; the next one of their rank would take it over.
afterAll(() => {
  const own = Array.from({ length: 12 }, (_, at) => `agent_rank${firstRank + at}_command`)
  for (const name of readdirSync("/dev/shm"))
    if (own.some((each) => name.endsWith(each))) rmSync(join("/dev/shm", name))
})

/** Clients of these agents, within this process. */
export const clientOf = Effect.fnUntraced(function* (at: number, folder: string, options: Clients.ClientOptions = {}) {
  const place = placeOf(firstRank + at, folder)
  const memory = yield* HostMemory
  const context = yield* Layer.build(
    Layer.mergeAll(
      CommandQueueLmdb.layerLmdb({ path: place.commandPath, role: "client", mapBytes: 2 ** 24 }),
      AgentStateLmdb.layerLmdb({ path: place.statePath, role: "client", mapBytes: 2 ** 24 })
    )
  )
  return yield* Effect.provideContext(
    Clients.make({ heartbeatAge: "3 seconds", ...options }),
    Context.add(context, HostMemory, memory)
  )
})

/** Agents from the first rank on, of which that one serves the store, started side by side. */
export const startAgents = Effect.fnUntraced(function* (count: number, folder: string, deadlineMillis: number) {
  const first = yield* startAgent({ rank: firstRank, folder, port: 0, deadlineMillis })
  const others = yield* all(
    Array.from({ length: count - 1 }, (_, at) =>
      startAgent({ rank: firstRank + at + 1, folder, port: first.port, deadlineMillis })
    )
  )
  return { port: first.port, children: [first, ...others].map(({ child }) => child) }
})

export const inScope = <A, E>(
  body: (folder: string) => Effect.Effect<A, E, HostMemory | import("effect/Scope").Scope>
) => Effect.scoped(Effect.provide(Effect.flatMap(scratch, body), memoryLayer))
