// SPDX-License-Identifier: Apache-2.0
/**
 * A trainer within this process, an engine and two agents as processes of their own, and SIGKILL at random moments: whoever
 * waits must learn of it by name, within a second and a heartbeat, and work must go on after a restart.
 */
import { readdirSync, readFileSync } from "node:fs"
import { assert } from "@effect/vitest"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { monotonicMillis } from "@tensorferry/core/service/RunningTime"
import { makeRandom, type Random } from "@tensorferry/testing/mutate"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type { BusError } from "../src/BusError.ts"
import { serveStore } from "../src/store/KeyValueServer.ts"
import type { EngineAnswer } from "./fixtures/engine.ts"
import { join } from "./join.ts"
import { clientOf, converse, exited, firstRank, inScope, oneEach, startAgent } from "./processes.ts"
import { fill, makeTensor } from "./tensors.ts"

const heartbeatMillis = 1_000
const boundMillis = 1_000 + heartbeatMillis
const [trainerAgent, engineAgent] = [firstRank, firstRank + 1]

/** How a wait ended, whoever waited. */
interface End {
  readonly tag?: string
  readonly message?: string
  readonly beganMillis: number
  readonly endedMillis: number
}

const endOf = <A>(call: Effect.Effect<A, BusError>): Effect.Effect<End> =>
  Effect.gen(function* () {
    const beganMillis = yield* monotonicMillis
    const error = yield* Effect.match(call, { onFailure: (failed) => failed, onSuccess: () => undefined })
    const ended = { beganMillis, endedMillis: yield* monotonicMillis }
    return error === undefined ? ended : { ...ended, tag: error.reason._tag, message: error.message }
  })

const makeJob = Effect.fnUntraced(function* (folder: string) {
  const port = yield* serveStore()
  const memory = yield* HostMemory
  const startOne = (rank: number) => startAgent({ rank, folder, port, deadlineMillis: 60_000, heartbeatMillis })
  const startEngine = converse("engine.ts", [`${engineAgent}`, folder, "w"])
  const agents = { a: yield* startOne(trainerAgent), b: yield* startOne(engineAgent) }
  const tensor = yield* makeTensor(memory, "float32", [1024])
  const trainer = yield* clientOf(0, folder)
  const job = { agents, engine: yield* startEngine, engines: 1 }
  const answer = Effect.suspend(() => Effect.map(job.engine.answer, (line) => JSON.parse(line) as EngineAnswer))

  /** Both enter, and one update arrives. */
  const update = Effect.fnUntraced(function* (value: number) {
    yield* job.engine.say("join")
    yield* join(trainer, oneEach("a", "b"), "w", tensor)
    const joined = yield* answer
    assert.isUndefined(joined.tag, joined.message)
    fill(tensor, [value])
    yield* job.engine.say("recv")
    yield* trainer.transfer("w", "send")
    const received = yield* answer
    assert.isUndefined(received.tag, received.message)
    assert.strictEqual(received.value, value)
  })

  const killNow = Effect.fnUntraced(function* (what: "a" | "b" | "engine") {
    const { child } = what === "engine" ? job.engine : job.agents[what]
    const at = yield* monotonicMillis
    child.kill("SIGKILL")
    yield* exited(child)
    return { at, pid: child.pid! }
  })
  const restart = Effect.fnUntraced(function* (what: "a" | "b" | "engine") {
    if (what === "engine") {
      job.engine = yield* startEngine
      job.engines += 1
    } else job.agents[what] = yield* startOne(what === "a" ? trainerAgent : engineAgent)
  })
  return { job, trainer, tensor, answer, update, killNow, restart }
})

type Job = Effect.Success<ReturnType<typeof makeJob>>

const check = (
  what: string,
  end: End,
  killed: { readonly at: number },
  tag: string,
  ...names: ReadonlyArray<string>
) => {
  assert.strictEqual(end.tag, tag, `${what}: ${end.message}`)
  for (const name of names) assert.include(end.message!, name, what)
  const took = end.endedMillis - Math.max(end.beganMillis, killed.at)
  assert.isBelow(took, boundMillis, `${what}: ${end.message}`)
  return took
}

/** What is killed, and what everyone learns of it. Answers the longest time that it took. */
const kinds = {
  "engine, while the trainer sends": (job: Job, pause: Effect.Effect<void>) =>
    Effect.gen(function* () {
      const sending = yield* Effect.forkChild(endOf(job.trainer.transfer("w", "send")), { startImmediately: true })
      yield* pause
      const killed = yield* job.killNow("engine")
      const took = check(
        "send",
        yield* Fiber.join(sending),
        killed,
        "BatchGone",
        `agent ${engineAgent}`,
        `${killed.pid}`
      )
      const next = check(
        "next send",
        yield* endOf(job.trainer.transfer("w", "send")),
        killed,
        "BatchGone",
        `${killed.pid}`
      )
      yield* job.restart("engine")
      return Math.max(took, next)
    }),
  "engine, while it receives": (job: Job, pause: Effect.Effect<void>) =>
    Effect.gen(function* () {
      yield* job.job.engine.say("recv")
      yield* pause
      const killed = yield* job.killNow("engine")
      // An update that the engine's agent was ready for may still arrive in the memory of the dead engine, once.
      const first = yield* endOf(job.trainer.transfer("w", "send"))
      const end = first.tag === undefined ? yield* endOf(job.trainer.transfer("w", "send")) : first
      yield* job.restart("engine")
      return check("send", end, killed, "BatchGone", `agent ${engineAgent}`, `${killed.pid}`)
    }),
  "engine, while it registers": (job: Job, pause: Effect.Effect<void>) =>
    Effect.gen(function* () {
      yield* job.trainer.cleanupBatch("w")
      yield* job.job.engine.say("join")
      yield* pause
      yield* job.killNow("engine")
      yield* job.restart("engine")
      return 0
    }),
  "agent of the engine, while the trainer sends": (job: Job, pause: Effect.Effect<void>) =>
    Effect.gen(function* () {
      const sending = yield* Effect.forkChild(endOf(job.trainer.transfer("w", "send")), { startImmediately: true })
      yield* pause
      const killed = yield* job.killNow("b")
      const took = check("send", yield* Fiber.join(sending), killed, "PairBroken", `agent ${engineAgent}`)
      yield* job.restart("b")
      return took
    }),
  "agent of the engine, while the trainer registers": (job: Job, pause: Effect.Effect<void>) =>
    Effect.gen(function* () {
      const registering = yield* Effect.forkChild(
        endOf(job.trainer.registerTensors({ batch: "other", tensors: [["p", job.tensor]] })),
        { startImmediately: true }
      )
      yield* pause
      const killed = yield* job.killNow("b")
      const took = check("register", yield* Fiber.join(registering), killed, "PairBroken", `agent ${engineAgent}`)
      yield* job.restart("b")
      return took
    }),
  "agent of the engine, while the engine receives": (job: Job, pause: Effect.Effect<void>) =>
    Effect.gen(function* () {
      yield* job.job.engine.say("recv")
      yield* pause
      const killed = yield* job.killNow("b")
      const took = check("recv", yield* job.answer, killed, "AgentGone", `${killed.pid}`)
      const next = yield* endOf(job.trainer.transfer("w", "send"))
      yield* job.restart("b")
      return Math.max(took, check("send", next, killed, "PairBroken", `agent ${engineAgent}`))
    }),
  "agent of the trainer, while both wait": (job: Job, pause: Effect.Effect<void>) =>
    Effect.gen(function* () {
      yield* job.job.engine.say("recv")
      const registering = yield* Effect.forkChild(
        endOf(job.trainer.registerTensors({ batch: "other", tensors: [["p", job.tensor]] })),
        { startImmediately: true }
      )
      yield* pause
      const killed = yield* job.killNow("a")
      const took = check("recv", yield* job.answer, killed, "PairBroken", `agent ${trainerAgent}`)
      const own = check("register", yield* Fiber.join(registering), killed, "AgentGone", `${killed.pid}`)
      yield* job.restart("a")
      return Math.max(took, own)
    })
}

const semaphoresOfClients = () => readdirSync("/dev/shm").filter((name) => name.startsWith("sem.tf_"))
const alive = (name: string) => readdirSync("/proc").includes(name.split("_")[1]!)

/** Semaphores of processes that are gone. */
const orphans = () => semaphoresOfClients().filter((name) => !alive(name))

/** Kills at random moments: every kind in turn, in an order that the seed gives. */
export const killAtRandom = (rounds: number, seed: number) =>
  inScope((folder) =>
    Effect.gen(function* () {
      const random = makeRandom(seed)
      const job = yield* makeJob(folder)
      const before = new Set(orphans())
      let order: ReadonlyArray<keyof typeof kinds> = []
      let longest = 0
      for (let round = 0; round < rounds; round++) {
        if (order.length === 0) order = shuffled(random, Object.keys(kinds) as Array<keyof typeof kinds>)
        const [kind, ...rest] = order
        order = rest
        yield* job.update(round + 1)
        const took = yield* kinds[kind!](job, Effect.sleep(random.below(400)))
        longest = Math.max(longest, took)
      }
      yield* job.update(rounds + 1)
      assert.deepStrictEqual(
        orphans().filter((name) => !before.has(name)),
        []
      )
      return longest
    })
  )

const shuffled = <A>(random: Random, values: ReadonlyArray<A>): ReadonlyArray<A> =>
  values
    .map((value) => [random.below(2 ** 30), value] as const)
    .sort(([a], [b]) => a - b)
    .map(([, value]) => value)

/** What a process has open and mapped of others, and its memory. */
const holdings = (pid: number) => ({
  descriptors: readdirSync(`/proc/${pid}/fd`).length,
  maps: readFileSync(`/proc/${pid}/maps`, "utf8")
    .split("\n")
    .filter((line) => line.includes("memfd:") || line.includes("/dev/shm")).length,
  kilobytes: Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1])
})

/** Engines that are killed and followed by the next, many times, on the same two agents. */
export const restartEngines = (restarts: number, warmUp: number) =>
  inScope((folder) =>
    Effect.gen(function* () {
      const job = yield* makeJob(folder)
      const look = () => ({
        folder: readdirSync(folder).sort(),
        shared: readdirSync("/dev/shm").filter(
          (name) => name.includes(`agent_rank${firstRank}`) || name.includes(`agent_rank${engineAgent}`)
        ),
        orphans: orphans(),
        a: holdings(job.job.agents.a.child.pid!),
        b: holdings(job.job.agents.b.child.pid!)
      })
      let before = look()
      for (let round = 0; round < restarts; round++) {
        yield* job.update(round + 1)
        if (round === warmUp) before = look()
        yield* kinds[round % 2 === 0 ? "engine, while the trainer sends" : "engine, while it receives"](
          job,
          Effect.void
        )
      }
      yield* job.update(restarts + 1)
      const after = look()
      for (const key of ["folder", "shared", "orphans"] as const) assert.deepStrictEqual(after[key], before[key], key)
      for (const key of ["a", "b"] as const) {
        assert.isAtMost(after[key].descriptors, before[key].descriptors, `${key}: descriptors`)
        assert.isAtMost(after[key].maps, before[key].maps, `${key}: maps`)
        assert.isBelow(after[key].kilobytes - before[key].kilobytes, 64 * 1024, `${key}: memory`)
      }
      return { before, after }
    })
  )
