/**
 * Agents as processes of their own, over LMDB files, TCP and shared memory: several steps both ways, an agent that is
 * killed and started again, a client that is killed while its tensors travel, and a client in Python. Clusters of 4 and 8
 * agents with TENSORFERRY_TEST_FULL.
 */
import { type ChildProcess, spawn } from "node:child_process"
import { readdirSync, readFileSync, rmSync } from "node:fs"
import { join } from "node:path"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import { afterAll, assert, describe, it } from "@effect/vitest"
import { HostMemory as HostMemoryLayers } from "@tensorferry/backend-torch-copy"
import { partial, replicate, shard } from "@tensorferry/core/layout/Placement"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import { placeOf } from "../src/bootstrap.ts"
import * as Clients from "../src/client/TensorBusClient.ts"
import * as CommandQueueLmdb from "../src/queue/CommandQueueLmdb.ts"
import * as AgentStateLmdb from "../src/state/AgentStateLmdb.ts"
import type { AgentInput } from "./fixtures/agent.ts"
import { hasLmdb, isFull, lmdbMissing, pythonLmdb, pythonLmdbMissing, scratch } from "./support.ts"
import { faultOf, fill, makeTensor, ranksOf, type SideLayout, sourceValues, targetValues } from "./tensors.ts"

const script = (name: string) => fileURLToPath(new URL(`./fixtures/${name}`, import.meta.url))
const compiled = fileURLToPath(new URL("../node_modules/.cache/compiled", import.meta.url))

const exited = (child: ChildProcess) =>
  Effect.callback<number | NodeJS.Signals>((resume) => {
    const tell = () => resume(Effect.succeed(child.signalCode ?? child.exitCode ?? 0))
    if (child.exitCode !== null || child.signalCode !== null) return tell()
    child.once("exit", tell)
  })

const kill = (child: ChildProcess, signal: NodeJS.Signals) =>
  Effect.suspend(() => {
    child.kill(signal)
    return exited(child)
  })

/** A process of a fixture; ends with the scope. Answers it and its first line. */
const run = (name: string, args: ReadonlyArray<string>) =>
  Effect.gen(function* () {
    const child = yield* Effect.acquireRelease(
      Effect.sync(() =>
        spawn(process.execPath, [script(name), ...args], {
          stdio: ["ignore", "pipe", "pipe"],
          env: { ...process.env, NODE_COMPILE_CACHE: compiled }
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

const startAgent = (input: AgentInput) =>
  Effect.map(run("agent.ts", [JSON.stringify(input)]), ({ child, line }) => ({
    child,
    port: (JSON.parse(line) as { readonly port: number }).port
  }))

const all = <A, E, R>(effects: ReadonlyArray<Effect.Effect<A, E, R>>) =>
  Effect.all(effects, { concurrency: "unbounded" })

const memoryLayer = HostMemoryLayers.layer

/** Agents of other test runs on this machine must not have the same ranks. */
const firstRank = 100 * process.pid

// What agents leave that are killed; the next one of their rank would take it over.
afterAll(() => {
  const own = Array.from({ length: 12 }, (_, at) => `agent_rank${firstRank + at}_command`)
  for (const name of readdirSync("/dev/shm"))
    if (own.some((each) => name.endsWith(each))) rmSync(join("/dev/shm", name))
})

/** Clients of these agents, within this process. */
const clientOf = Effect.fnUntraced(function* (at: number, folder: string, options: Clients.ClientOptions = {}) {
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
const startAgents = Effect.fnUntraced(function* (count: number, folder: string, deadlineMillis: number) {
  const first = yield* startAgent({ rank: firstRank, folder, port: 0, deadlineMillis })
  const others = yield* all(
    Array.from({ length: count - 1 }, (_, at) =>
      startAgent({ rank: firstRank + at + 1, folder, port: first.port, deadlineMillis })
    )
  )
  return { port: first.port, children: [first, ...others].map(({ child }) => child) }
})

const oneEach = (local: string, remote: string) => ({ pair: "p", local, remote, mesh: [1], placements: [shard(0)] })

const inScope = <A, E>(body: (folder: string) => Effect.Effect<A, E, HostMemory | import("effect/Scope").Scope>) =>
  Effect.scoped(Effect.provide(Effect.flatMap(scratch, body), memoryLayer))

/** Mapped memory of other processes. */
const foreignMaps = (child: ChildProcess): number =>
  readFileSync(`/proc/${child.pid}/maps`, "utf8")
    .split("\n")
    .filter((line) => line.includes("memfd:tensorferry")).length

describe.skipIf(!hasLmdb)(`processes${hasLmdb ? "" : ` (skipped: ${lmdbMissing})`}`, () => {
  it.live("steps both ways, an agent killed and started again, an orderly end", () =>
    inScope((folder) =>
      Effect.gen(function* () {
        const memory = yield* HostMemory
        const { port, children } = yield* startAgents(2, folder, 10_000)
        const [a, b] = [yield* clientOf(0, folder), yield* clientOf(1, folder)]
        const [x, y] = [yield* makeTensor(memory, "float32", [1000]), yield* makeTensor(memory, "bfloat16", [1000])]
        const meet = all([a.initPair(oneEach("a", "b")), b.initPair(oneEach("b", "a"))])
        const register = all([
          a.registerTensors({ batch: "weights", tensors: [["p", x]] }),
          b.registerTensors({ batch: "weights", tensors: [["p", y]] })
        ])
        const values = (step: number) => Array.from({ length: 1000 }, (_, at) => ((at * 3 + step) % 50) + 1)
        yield* meet
        yield* register
        for (let step = 0; step < 5; step++) {
          const [from, to] = step % 2 === 0 ? [x, y] : [y, x]
          fill(from, values(step))
          to.storage.bytes!.fill(0xa5)
          yield* all([
            a.transfer("weights", step % 2 === 0 ? "send" : "recv"),
            b.transfer("weights", step % 2 === 0 ? "recv" : "send")
          ])
          assert.isUndefined(faultOf(to, values(step)), `step ${step}`)
        }

        const sending = yield* Effect.forkChild(Effect.flip(a.transfer("weights", "send")), { startImmediately: true })
        while (!(yield* b.transferSignal("weights"))) yield* Effect.sleep("10 millis")
        yield* kill(children[1]!, "SIGKILL")
        const broken = yield* Fiber.join(sending)
        assert.strictEqual(broken.reason._tag, "PairBroken", broken.message)
        assert.include(broken.message, `agent ${firstRank + 1}`)
        const gone = yield* Effect.flip(b.transfer("weights", "recv"))
        assert.strictEqual(gone.reason._tag, "AgentGone", gone.message)

        const again = yield* startAgent({ rank: firstRank + 1, folder, port, deadlineMillis: 10_000 })
        yield* meet
        yield* register
        fill(x, values(7))
        yield* all([a.transfer("weights", "send"), b.transfer("weights", "recv")])
        assert.isUndefined(faultOf(y, values(7)))

        for (const child of [again.child, children[0]!]) assert.strictEqual(yield* kill(child, "SIGTERM"), 0)
        assert.deepStrictEqual(readdirSync(folder), [])
        assert.deepStrictEqual(
          readdirSync("/dev/shm").filter((name) => name.includes(`agent_rank${firstRank}`)),
          []
        )
      })
    )
  )

  it.live("a client killed while its tensors travel leaves nothing behind", () =>
    inScope((folder) =>
      Effect.gen(function* () {
        const memory = yield* HostMemory
        const { children } = yield* startAgents(2, folder, 3_000)
        const [a, b] = [yield* clientOf(0, folder), yield* clientOf(1, folder)]
        yield* all([a.initPair(oneEach("a", "b")), b.initPair(oneEach("b", "a"))])
        const before = foreignMaps(children[0]!)
        const y = yield* makeTensor(memory, "float32", [2 ** 21])
        // Processes may take longer to start than agents wait for each other.
        const registering = yield* Effect.forkChild(
          Effect.retry(b.registerTensors({ batch: "doomed", tensors: [["p", y]] }), {
            while: ({ reason }) => reason._tag === "RemoteMissing",
            times: 50
          })
        )
        const dying = yield* run("dying-client.ts", [`${firstRank}`, folder, "p", "doomed"])
        yield* Fiber.join(registering)
        assert.isAbove(foreignMaps(children[0]!), before)
        yield* kill(dying.child, "SIGKILL")
        const dropped = Effect.gen(function* () {
          while (foreignMaps(children[0]!) > before) yield* Effect.sleep("50 millis")
        })
        yield* Effect.timeout(dropped, "20 seconds")
        const unknown = yield* Effect.flip(a.cleanupBatch("doomed"))
        assert.strictEqual(unknown.reason._tag, "UnknownBatch")
        const alone = yield* Effect.flip(b.transfer("doomed", "recv"))
        assert.include(["RemoteMissing", "BatchMismatch", "TransferFailed"], alone.reason._tag)
        // The pair goes on.
        yield* b.cleanupBatch("doomed")
        const [x, z] = [yield* makeTensor(memory, "float32", [4]), yield* makeTensor(memory, "float32", [4])]
        yield* all([
          a.registerTensors({ batch: "next", tensors: [["p", x]] }),
          b.registerTensors({ batch: "next", tensors: [["p", z]] })
        ])
        fill(x, [1, 2, 3, 4])
        yield* all([a.transfer("next", "send"), b.transfer("next", "recv")])
        assert.isUndefined(faultOf(z, [1, 2, 3, 4]))
      })
    )
  )

  it.live.skipIf(pythonLmdb === undefined)(
    `a client in Python is told of completion, well or not${pythonLmdb === undefined ? ` (skipped: ${pythonLmdbMissing})` : ""}`,
    () =>
      inScope((folder) =>
        Effect.gen(function* () {
          yield* startAgents(1, folder, 300)
          const place = placeOf(firstRank, folder)
          const program = [
            "import sys; sys.path.insert(0, sys.argv[1])",
            "from bus_client import Client",
            "import time",
            "client = Client(sys.argv[2], sys.argv[3])",
            "print(client.call('CleanupBatch', batch_id='none'))",
            "print(client.call('InitPair', pair_name='p', local_name='a', expected_world_size=1, remote_name='b', mesh_shape_payload=b'\\x80\\x04K\\x01\\x85.', placements_payload=None))",
            "beat = float(client.get('agent:heartbeat')); print(abs(time.time() - beat) < 5)"
          ].join("\n")
          const output = yield* Effect.callback<string>((resume) => {
            const child = spawn(pythonLmdb!, ["-c", program, script(""), place.commandPath, place.statePath])
            let text = ""
            for (const stream of [child.stdout, child.stderr]) stream.on("data", (chunk) => (text += String(chunk)))
            child.once("close", () => resume(Effect.succeed(text)))
            return Effect.sync(() => child.kill("SIGKILL"))
          })
          const [unknown, missing, isAlive] = output.split("\n")
          assert.match(unknown ?? "", /UnknownBatch/, output)
          assert.match(missing ?? "", /RemoteMissing/, output)
          assert.strictEqual(isAlive, "True", output)
        })
      )
  )

  it.live.skipIf(!isFull)(
    "4 and 8 agents, with shards, replicas and sums, several pairs, both ways",
    () =>
      inScope((folder) =>
        Effect.gen(function* () {
          const memory = yield* HostMemory
          const pairs: Readonly<Record<string, readonly [SideLayout, SideLayout]>> = {
            w: [
              { mesh: [2, 2], placements: [shard(0), shard(1)] },
              { mesh: [4, 2], placements: [shard(0), replicate] }
            ],
            g: [
              { mesh: [2, 2], placements: [replicate, shard(0)] },
              { mesh: [4, 2], placements: [partial("sum"), shard(0)] }
            ]
          }
          yield* startAgents(12, folder, 60_000)
          const clients = yield* Effect.forEach(
            Array.from({ length: 12 }, (_, rank) => rank),
            (rank) => clientOf(rank, folder)
          )
          const placeAt = (rank: number) => (rank < 4 ? ([0, rank] as const) : ([1, rank - 4] as const))
          yield* all(
            clients.flatMap((client, rank) =>
              Object.entries(pairs).map(([pair, sides]) => {
                const [side] = placeAt(rank)
                return client.initPair({
                  pair,
                  local: side === 0 ? "a" : "b",
                  remote: side === 0 ? "b" : "a",
                  ...sides[side]
                })
              })
            )
          )
          const shape = [24, 20]
          for (const [batch, names, sources] of [
            ["weights", ["w", "w"], [0, 1, 0]],
            ["both", ["g", "w"], [1, 1]]
          ] as const) {
            const tensors = yield* Effect.forEach(clients, (_, rank) => {
              const [side, place] = placeAt(rank)
              return Effect.forEach(names, (pair) =>
                Effect.map(
                  makeTensor(memory, "float32", sourceValues(pairs[pair]![side], shape, place, 0).local),
                  (tensor) => [pair as string, tensor] as const
                )
              )
            })
            yield* all(
              clients.map((client, rank) =>
                client.registerTensors({ batch, tensors: tensors[rank]!, bucketBytes: 256 })
              )
            )
            for (const [round, source] of sources.entries()) {
              for (const [rank, own] of tensors.entries()) {
                const [side, place] = placeAt(rank)
                for (const [pair, tensor] of own) {
                  if (side === source) fill(tensor, sourceValues(pairs[pair]![side], shape, place, round).values)
                  else tensor.storage.bytes!.fill(0xa5)
                }
              }
              yield* all(
                clients.map((client, rank) => client.transfer(batch, placeAt(rank)[0] === source ? "send" : "recv"))
              )
              for (const [rank, own] of tensors.entries()) {
                const [side, place] = placeAt(rank)
                if (side === source) continue
                for (const [pair, tensor] of own) {
                  const { values } = targetValues(pairs[pair]![source], pairs[pair]![side], shape, place, round)
                  assert.isUndefined(faultOf(tensor, values), `${batch}, round ${round}, rank ${rank}, pair ${pair}`)
                }
              }
            }
            yield* all(clients.map((client) => client.cleanupBatch(batch)))
          }
          assert.strictEqual(ranksOf(pairs.w![1]), 8)
        })
      ),
    300_000
  )
})
