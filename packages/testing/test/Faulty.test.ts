// SPDX-License-Identifier: Apache-2.0
/**
 * Whatever call of a driver fails, stalls or dies, on whichever rank: every rank ends within the deadline with an error
 * that names the culprit, nothing is kept, and the next run works.
 */
import { assert, describe, it } from "@effect/vitest"
import { type CopyError, CopyService } from "@tensorferry/core/service/CopyService"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Ref from "effect/Ref"
import * as TestClock from "effect/testing/TestClock"
import { allocateHalves, allToAll, fillHalves, judgeHalves, submitHalves } from "../src/conformance/transfers.ts"
import { type Fault, type FaultAction, makeFault } from "../src/Faulty.ts"
import { loopbackLayer, makeLoopbackNetwork, strictLayer } from "../src/Loopback.ts"
import { runRanks } from "../src/VirtualCluster.ts"

const deadline = Duration.seconds(10)
const never = 1_000_000

type Attempt = Exit.Exit<boolean, CopyError>

interface Trial {
  readonly size: number
  readonly rank: number
  readonly step: number
  readonly action: "op" | "service" | "stall" | "leave"
  readonly transport: "gather" | "packed" | "strict"
}

/** Two runs on every rank, with one fault in the first. Outcomes by run and rank. */
const attempt = Effect.fnUntraced(function* (trial: Trial) {
  const network = makeLoopbackNetwork()
  const faults: Array<Fault> = []
  const afterFirst: Array<number> = []
  const job = runRanks(
    {
      size: trial.size,
      groupDeadline: deadline,
      driver: (rank, group) => {
        const action: FaultAction =
          trial.action === "leave"
            ? { _tag: "Leave", leave: group.leave }
            : trial.action === "stall"
              ? { _tag: "Stall" }
              : { _tag: "Fail", scope: trial.action }
        const fault = makeFault({ step: rank === trial.rank ? trial.step : never, action })
        faults[rank] = fault
        return fault.wrap(
          trial.transport === "strict"
            ? strictLayer(network, { gather: false })
            : loopbackLayer(network, { gather: trial.transport === "gather" })
        )
      }
    },
    (rank) =>
      Effect.gen(function* () {
        const service = yield* CopyService
        const attempts: Array<Attempt> = []
        for (let round = 0; round < 2; round++) {
          const halves = yield* allocateHalves(rank, allToAll(trial.size))
          yield* Effect.orDie(fillHalves(halves, round))
          yield* submitHalves(halves)
          const exit = yield* Effect.exit(service.run())
          if (Exit.isSuccess(exit)) yield* judgeHalves(halves, round)
          else if (round === 0) afterFirst[rank] = faults[rank]!.openPrograms()
          attempts.push(Exit.map(exit, () => true))
        }
        return attempts
      })
  )
  const time = yield* Ref.make(0)
  const fiber = yield* Effect.forkChild(job, { startImmediately: true })
  while (fiber.pollUnsafe() === undefined && (yield* Ref.get(time)) < 600) {
    yield* TestClock.adjust("1 second")
    yield* Ref.update(time, (seconds) => seconds + 1)
  }
  if (fiber.pollUnsafe() === undefined) return yield* Effect.die(`${JSON.stringify(trial)} hangs`)
  const exits = yield* Fiber.join(fiber)
  return { exits, faults, afterFirst, seconds: yield* Ref.get(time) }
})

const names = (error: CopyError, rank: number): boolean =>
  error.ranks.includes(rank) || error.reason.rank === rank || error.reason.peer === rank

const judge = Effect.fnUntraced(function* (trial: Trial) {
  const { exits, faults, afterFirst, seconds } = yield* attempt(trial)
  const what = JSON.stringify(trial)
  // A run may wait for one deadline in the driver and one for the others to come; there are two runs.
  assert.isBelow(seconds, 5 * Duration.toSeconds(deadline), `${what} took ${seconds} s`)
  const attempts = exits.map((exit) => {
    assert.isTrue(Exit.isSuccess(exit), `${what}: ${JSON.stringify(exit)}`)
    return Exit.isSuccess(exit) ? exit.value : []
  })
  const isHit = trial.step < (faults[trial.rank]?.stepsTaken() ?? 0)
  for (const [rank, [first, second]] of attempts.entries()) {
    const failed = Exit.isFailure(first!)
    assert.strictEqual(failed, isHit && trial.step < 3, `${what}: rank ${rank} in the first run`)
    for (const exit of [first!, second!]) {
      if (Exit.isSuccess(exit)) continue
      const [reason] = exit.cause.reasons
      assert.strictEqual(reason?._tag, "Fail", `${what}: rank ${rank} ended without a typed error`)
      if (reason?._tag !== "Fail") continue
      assert.strictEqual(reason.error._tag, "CopyError")
      if (rank !== trial.rank)
        assert.isTrue(names(reason.error, trial.rank), `${what}: rank ${rank}: ${reason.error.message}`)
    }
    if (failed) assert.strictEqual(afterFirst[rank], 0, `${what}: rank ${rank} kept a program`)
    if (trial.action === "leave" && isHit) assert.isTrue(Exit.isFailure(second!), what)
    else if (trial.step < 3 || !isHit)
      assert.isTrue(Exit.isSuccess(second!), `${what}: rank ${rank} in the second run: ${JSON.stringify(second)}`)
  }
  for (const fault of faults) {
    assert.strictEqual(fault.openPrograms(), 0, `${what}: programs left`)
    assert.strictEqual(fault.openDrivers(), 0, `${what}: drivers left`)
  }
})

describe("faulty drivers", () => {
  for (const action of ["op", "service", "stall", "leave"] as const) {
    for (const transport of ["gather", "packed", "strict"] as const) {
      it.effect(`${transport}: every step, ${action}`, () =>
        Effect.gen(function* () {
          for (const size of [2, 3]) {
            for (const rank of [0, size - 1]) {
              for (const step of [0, 1, 2, 3, 9]) yield* judge({ size, rank, step, action, transport })
            }
          }
        })
      )
    }
  }
})
