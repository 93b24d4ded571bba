// SPDX-License-Identifier: Apache-2.0
/**
 * Tensors on GPUs of clients in processes of their own, through agents as the command starts them, over the simulated
 * driver. Clients do with the runtime what PyTorch does: see fixtures/cuda_client.py.
 */
import { type ChildProcess, spawn } from "node:child_process"
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs"
import { join } from "node:path"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { writeSafetensors } from "@tensorferry/model/checkpoint/SafetensorsWriter"
import { gpuSimulator } from "@tensorferry/simulators/libraries"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { hasLmdb, isSoak, lmdbMissing, pythonLmdb, pythonLmdbMissing, scratch } from "./support.ts"
import { encode } from "./tensors.ts"

const here = (name: string) => fileURLToPath(new URL(name, import.meta.url))
const command = here("../../cli/src/main.ts")
const client = here("./fixtures/cuda_client.py")
const library = gpuSimulator

const canRun = pythonLmdb !== undefined && existsSync(library)
const reason = canRun
  ? ""
  : ` (skipped: ${!hasLmdb ? lmdbMissing : pythonLmdb === undefined ? pythonLmdbMissing : "no simulated driver"})`

const ended = (child: ChildProcess) =>
  Effect.callback<void>((resume) => {
    if (child.exitCode !== null || child.signalCode !== null) return resume(Effect.void)
    child.once("exit", () => resume(Effect.void))
  })

const kill = (child: ChildProcess, signal: NodeJS.Signals) =>
  Effect.suspend(() => {
    child.kill(signal)
    return ended(child)
  })

/** A process whose lines are read one by one; it ends with the scope. */
const start = (program: string, args: ReadonlyArray<string>, env: NodeJS.ProcessEnv = {}) =>
  Effect.gen(function* () {
    const child = yield* Effect.acquireRelease(
      Effect.sync(() =>
        spawn(program, args, {
          stdio: ["pipe", "pipe", "pipe"],
          env: { ...process.env, ...env }
        })
      ),
      (made) => kill(made, "SIGKILL")
    )
    let said = ""
    child.stderr.on("data", (chunk) => {
      said += String(chunk)
    })
    const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
    const line = Effect.promise(async () => {
      const { value } = await lines.next()
      return typeof value === "string" ? value : assert.fail(`${program} ended: ${said}`)
    }).pipe(Effect.timeout("60 seconds"), Effect.orDie)
    return { child, line, said: () => said }
  })

/** Queues of one machine have names by rank, whatever their folders; other tests take the small ones. */
const firstRank = 40

const startClient = (folder: string, rank: number, device: number) =>
  Effect.gen(function* () {
    const { child, line } = yield* start(
      pythonLmdb!,
      [client, join(folder, `agent_rank${firstRank + rank}`), library, `${device}`],
      {
        TENSORFERRY_GPU_SIMULATOR: "pace=1"
      }
    )
    const tell = (name: string, ...args: ReadonlyArray<unknown>) =>
      Effect.andThen(
        Effect.sync(() => child.stdin!.write(`${JSON.stringify([name, args])}\n`)),
        Effect.map(line, (text) => JSON.parse(text) as unknown)
      )
    /** For what the agent does: fails with what it says. */
    const call = (name: string, ...args: ReadonlyArray<unknown>) =>
      Effect.map(tell(name, ...args), (said) => assert.include(String(said), "Ok"))
    return { child, tell, call }
  })

type Client = Effect.Success<ReturnType<typeof startClient>>

/** Agents 0 and 1 on devices of the same numbers; `stop` ends them and tells what their devices have to say. */
const startAgents = Effect.fnUntraced(function* (folder: string, backend: string) {
  const reports = join(folder, "reports")
  mkdirSync(reports)
  const env = {
    TENSORFERRY_CUDA_RUNTIME: library,
    TENSORFERRY_CUDA_DRIVER: library,
    TENSORFERRY_CUDA_NVRTC: library,
    TENSORFERRY_NCCL: library,
    TENSORFERRY_GPU_SIMULATOR: `pace=1 report=${reports}`,
    XDG_CACHE_HOME: folder
  }
  const startAgent = Effect.fnUntraced(function* (rank: number, ...where: ReadonlyArray<string>) {
    const args = [
      ...["--rank", `${firstRank + rank}`, "--device", `${rank}`, "--folder", folder, "--store", ...where],
      ...["--backend", backend, "--deadline", "20", "--json"]
    ]
    const agent = yield* start(process.execPath, [command, "agent", ...args], env)
    const { store } = JSON.parse(yield* agent.line) as { readonly store: string }
    return { agent, store }
  })
  const first = yield* startAgent(0, "127.0.0.1:0", "--serve")
  const second = yield* startAgent(1, first.store)
  const agents = [first.agent, second.agent]
  const stop = Effect.gen(function* () {
    for (const { child } of agents.toReversed()) yield* kill(child, "SIGTERM")
    const files = readdirSync(reports)
    assert.lengthOf(files, 2, agents.map(({ said }) => said()).join())
    for (const file of files) {
      const { violations, live } = JSON.parse(readFileSync(join(reports, file), "utf8"))
      assert.deepStrictEqual(violations, [])
      assert.deepStrictEqual(
        Object.entries(live).filter(([, count]) => count !== 0),
        []
      )
    }
  })
  return { agents, stop }
})

const both = <A, B>(one: Effect.Effect<A>, other: Effect.Effect<B>) => Effect.all([one, other], { concurrency: 2 })

const makePair = (a: Client, b: Client) =>
  both(a.call("init", "p", "a", "b", 1, null), b.call("init", "p", "b", "a", 1, null))

/** Pair, bytes from the allocation's begin, shape, strides, elements: one as it lies, one transposed, in one allocation. */
const tensors = [
  ["p", 4096, [40, 30], [30, 1], 1200],
  ["p", 65_536, [30, 40], [1, 30], 1200]
] as const

const values = (round: number, at: number) =>
  Array.from({ length: 1200 }, (_, index) => ((index * 7 + round * 31 + at * 13) % 251) + 0.5)

/** The same tensors as a checkpoint has them; the second lies transposed. */
const loads = [
  ["w", 4096, [40, 30], [30, 1], 1200],
  ["t", 65_536, [30, 40], [1, 30], 1200]
] as const

/** Whole numbers that bfloat16 holds exactly, row by row. */
const small = (round: number, at: number) =>
  Array.from({ length: 1200 }, (_, index) => (index * 7 + round * 31 + at * 13) % 251)

/** In the order of memory: columns of the second are rows there. */
const lying = (rows: ReadonlyArray<number>, at: number) =>
  at === 0 ? rows : rows.map((_, index) => rows[(index % 30) * 40 + Math.floor(index / 30)]!)

const poison = Array.from({ length: 1200 }, () => -1)

const wrongIn = (seen: unknown, wanted: ReadonlyArray<number>): string => {
  const wrong = wanted.findIndex((value, index) => (seen as ReadonlyArray<number>)[index] !== value)
  return wrong < 0 ? "" : `${(seen as ReadonlyArray<number>)[wrong]} stands at ${wrong} for ${wanted[wrong]}`
}

const move = Effect.fnUntraced(function* (batch: string, from: Client, to: Client, round: number) {
  for (const [at, [, offset]] of tensors.entries()) {
    yield* from.tell("fill", offset, values(round, at))
    yield* to.tell("fill", offset, poison)
  }
  yield* both(from.tell("wait"), to.tell("wait"))
  yield* both(from.call("transfer", batch, "send"), to.call("transfer", batch, "recv"))
  for (const [at, [, offset]] of tensors.entries()) {
    const wrong = wrongIn(yield* to.tell("read", offset, 1200), values(round, at))
    assert.strictEqual(wrong, "", `${batch}, round ${round}, tensor ${at}`)
  }
})

const nothingLeft = Effect.fnUntraced(function* (each: Client) {
  assert.deepStrictEqual(yield* each.tell("collect"), { left: 0, lowest: 0 })
  assert.deepStrictEqual(yield* each.tell("end"), { violations: [], live: [], header: 1 })
})

const inScope = <A>(body: (folder: string) => Effect.Effect<A, never, Scope.Scope>) =>
  Effect.scoped(Effect.flatMap(scratch, body))

describe.skipIf(!canRun)(`tensors on GPUs${reason}`, () => {
  for (const backend of isSoak ? ["auto", "cuda", "cuda-ipc", "nccl"] : ["cuda-ipc", "nccl"]) {
    it.live(
      `${backend}: both ways, batch after batch, and PyTorch's counts come back`,
      () =>
        inScope((folder) =>
          Effect.gen(function* () {
            const { stop } = yield* startAgents(folder, backend)
            const [a, b] = [yield* startClient(folder, 0, 0), yield* startClient(folder, 1, 1)]
            yield* makePair(a, b)
            for (let batch = 0; batch < 3; batch++) {
              const name = `batch ${batch}`
              yield* both(a.call("register", name, tensors), b.call("register", name, tensors))
              for (let round = 0; round < 4; round++) {
                yield* round % 2 === 0 ? move(name, a, b, batch + round) : move(name, b, a, batch + round)
              }
              assert.deepStrictEqual(yield* a.tell("collect"), { left: 2, lowest: batch === 0 ? 1 : 0 })
              yield* both(a.call("cleanup", name), b.call("cleanup", name))
            }
            yield* nothingLeft(a)
            yield* nothingLeft(b)
            yield* stop
          })
        ),
      120_000
    )
  }

  for (const backend of isSoak ? ["cuda", "cuda-ipc", "nccl"] : ["cuda-ipc", "nccl"])
    it.live(
      `${backend}: a checkpoint fills them where they lie, with casts, and leaves nothing behind`,
      () =>
        inScope((folder) =>
          Effect.gen(function* () {
            const { stop } = yield* startAgents(folder, backend)
            const a = yield* startClient(folder, 0, 0)
            const path = join(folder, "model.safetensors")
            for (const [round, dtype] of (["float32", "bfloat16"] as const).entries()) {
              const stored = loads.map(([name, , shape], at) => ({
                ...{ name, dtype, shape },
                data: encode(dtype, small(round, at))
              }))
              yield* Effect.orDie(writeSafetensors(path, stored))
              // What the device still has to do with a tensor comes before it is filled.
              for (const [, offset] of loads) yield* a.tell("fill", offset, poison)
              if (dtype === "bfloat16")
                assert.match(String(yield* a.tell("load", path, loads, false)), /CheckpointMismatch/)
              yield* a.call("load", path, loads, true)
              for (const [at, [, offset]] of loads.entries())
                assert.strictEqual(wrongIn(yield* a.tell("read", offset, 1200), lying(small(round, at), at)), "")
              assert.deepStrictEqual(yield* a.tell("collect"), { left: 0, lowest: 0 })
            }
            rmSync(path)
            assert.match(String(yield* a.tell("load", path, loads, true)), /CheckpointUnreadable/)
            yield* nothingLeft(a)
            yield* stop
          })
        ),
      120_000
    )

  it.live(
    "what the client's device still has to do is waited for",
    () =>
      inScope((folder) =>
        Effect.gen(function* () {
          const { stop } = yield* startAgents(folder, "cuda")
          const [a, b] = [yield* startClient(folder, 0, 0), yield* startClient(folder, 1, 1)]
          yield* makePair(a, b)
          for (const [, offset] of tensors) yield* b.tell("fill", offset, poison)
          yield* a.tell("configure", "stall=cudaMemcpyAsync:2")
          for (const [at, [, offset]] of tensors.entries()) yield* a.tell("fill", offset, values(1, at))
          yield* a.tell("begin", "register", "late", tensors)
          yield* b.tell("begin", "register", "late", tensors)
          // An agent that does not wait is through by now; one that does is not, however long this takes.
          yield* Effect.sleep("700 millis")
          assert.isFalse(yield* a.tell("is done"))
          yield* a.tell("configure", "clear=faults release=stalls")
          assert.include(String(yield* a.tell("join")), "Ok")
          assert.include(String(yield* b.tell("join")), "Ok")
          yield* both(a.call("transfer", "late", "send"), b.call("transfer", "late", "recv"))
          for (const [at, [, offset]] of tensors.entries()) {
            assert.strictEqual(wrongIn(yield* b.tell("read", offset, 1200), values(1, at)), "")
          }
          yield* both(a.call("cleanup", "late"), b.call("cleanup", "late"))
          for (const each of [a, b]) yield* nothingLeft(each)
          yield* stop
        })
      ),
    120_000
  )

  it.live(
    "a client that is killed leaves no mapping and no file of counts; its pair goes on with another",
    () =>
      inScope((folder) =>
        Effect.gen(function* () {
          const { stop } = yield* startAgents(folder, "cuda-ipc")
          const [a, b] = [yield* startClient(folder, 0, 0), yield* startClient(folder, 1, 1)]
          yield* makePair(a, b)
          yield* both(a.call("register", "doomed", tensors), b.call("register", "doomed", tensors))
          yield* move("doomed", a, b, 1)
          const counts = `/dev/shm${yield* a.tell("counts")}`
          assert.isTrue(existsSync(counts))
          yield* kill(a.child, "SIGKILL")
          const gone = Effect.sync(() => !existsSync(counts)).pipe(
            Effect.tap(() => Effect.sleep("50 millis")),
            Effect.repeat({ until: (isGone) => isGone })
          )
          yield* Effect.orDie(Effect.timeout(gone, "20 seconds"))
          const next = yield* startClient(folder, 0, 0)
          assert.include(String(yield* next.tell("cleanup", "doomed")), "UnknownBatch")
          yield* b.call("cleanup", "doomed")
          assert.deepStrictEqual(yield* b.tell("collect"), { left: 0, lowest: 0 })
          yield* both(next.call("register", "next", tensors), b.call("register", "next", tensors))
          yield* move("next", next, b, 2)
          yield* move("next", b, next, 3)
          yield* both(next.call("cleanup", "next"), b.call("cleanup", "next"))
          for (const each of [next, b]) yield* nothingLeft(each)
          // The agents' devices have nothing left, of the one that was killed neither.
          yield* stop
        })
      ),
    120_000
  )

  it.live(
    "freed memory, and ranges that leave their allocation, are refused and their counts released",
    () =>
      inScope((folder) =>
        Effect.gen(function* () {
          const { stop } = yield* startAgents(folder, "auto")
          const [a, b] = [yield* startClient(folder, 0, 0), yield* startClient(folder, 1, 1)]
          yield* makePair(a, b)
          const outside = [["p", 2 ** 21 - 64, [40, 30], [30, 1], 1200]]
          const said = String(yield* a.tell("register", "outside", outside))
          assert.match(said, /MemoryUnavailable/)
          assert.match(said, /leave an allocation of 2097152 bytes/)
          assert.deepStrictEqual(yield* a.tell("collect"), { left: 0, lowest: 0 })
          yield* both(a.call("register", "good", tensors), b.call("register", "good", tensors))
          yield* move("good", a, b, 1)
          yield* both(a.call("cleanup", "good"), b.call("cleanup", "good"))
          for (const each of [a, b]) yield* nothingLeft(each)
          yield* stop
        })
      ),
    120_000
  )
})
