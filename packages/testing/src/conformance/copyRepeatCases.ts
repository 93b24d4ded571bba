// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of drivers that are `pairwise`: ranks that exchange something repeat a known batch without the others, and each of the
 * waits for a peer ends whatever that peer does.
 */
import type { Rank } from "@tensorferry/core/base/Ids"
import { type CopyDriverCapabilities, peerFlags } from "@tensorferry/core/service/CopyDriver"
import { CopyService, copyError } from "@tensorferry/core/service/CopyService"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import { type CopyCase, type CopyDriverCase, check, checkEqual, expectFailure } from "./Case.ts"
import { driverCase, fill, judge, meet, readyPair } from "./driverPair.ts"
import { allocateHalves, fillHalves, type Halves, judgeHalves, submitHalves, type Transfer } from "./transfers.ts"

const isPairwise = ({ pairwise }: CopyDriverCapabilities): string | undefined =>
  pairwise === true ? undefined : "the driver does not move pairwise"

/** Long enough for a driver to begin with what it has. */
const pause = "100 millis"

/** A rank that is woken at all is awake by then. */
const mostSleep = "2 seconds"

/** Of the driver alone. */
export const driverRepeatCases: ReadonlyArray<CopyDriverCase> = [
  driverCase(
    "a start that the peer does not answer is cancelled, and starts again",
    (rank) =>
      Effect.gen(function* () {
        const { driver, pair, program } = yield* readyPair(rank, 1)
        if (program.needsGroup === true) return
        for (const alone of [0, 1]) {
          if (rank === alone) {
            const inFlight = yield* driver.start(program)
            yield* Effect.sleep(pause)
            yield* inFlight.cancel
          }
          yield* meet(`rank ${alone} has cancelled`)
        }
        for (const round of [2, 3]) {
          yield* fill(rank, pair, round)
          yield* meet("filled")
          const inFlight = yield* driver.start(program)
          yield* inFlight.await
          yield* meet("moved")
          yield* judge(rank, pair, round)
          yield* meet("judged")
        }
      }),
    isPairwise
  ),
  driverCase(
    "what a rank states in flags is seen by its peer alone, never taken back, and wakes it where it sleeps",
    (rank) =>
      Effect.gen(function* () {
        const { driver } = yield* readyPair(rank, 1)
        const { flags } = driver
        const peer = 1 - rank
        const statements = (of: Rank) => peerFlags.map((flag, at) => ({ flag, value: 10 * (of + 1) + at }))
        const group = yield* ProcessGroup
        const stated = statements(rank).map(({ flag, value }) => flags?.tell(peer, flag, value) ?? false)
        const answers = yield* group.allGather("conformance stated", Uint8Array.from(stated, Number))
        if (flags === undefined || answers.some((seen) => seen.includes(0))) return
        for (const { flag, value } of statements(peer)) {
          yield* checkEqual(`${flag} of rank ${peer}`, flags.read(peer, flag), value)
          yield* checkEqual(`${flag} of rank ${rank}, read by itself`, flags.read(rank, flag), 0)
        }
        yield* meet("seen")
        flags.tell(peer, "Done", 1)
        yield* meet("stated less")
        yield* checkEqual("Done after a lesser number", flags.read(peer, "Done"), statements(peer)[1]!.value)
        for (const sleeper of [0, 1]) {
          const woken = yield* Deferred.make<void>()
          const stop = flags.watch(() => Deferred.doneUnsafe(woken, Exit.void))
          if (rank === sleeper) flags.sleep(true)
          yield* meet(`rank ${sleeper} sleeps`)
          if (rank !== sleeper) yield* check(flags.tell(peer, "Done", 1000), () => "The peer does not look any more.")
          else {
            const inTime = yield* Effect.timeoutOption(Deferred.await(woken), mostSleep)
            yield* check(Option.isSome(inTime), () => `Rank ${rank} slept over what rank ${peer} stated.`)
            yield* checkEqual("Done once it is awake", flags.read(peer, "Done"), 1000)
            flags.sleep(false)
          }
          stop()
          yield* meet(`rank ${sleeper} is awake`)
        }
      }),
    isPairwise
  )
]

const pair = (a: number, b: number, taskId: number): ReadonlyArray<Transfer> => [
  { from: a, to: b, taskId, shape: [101, 7], sendForm: "transposed" },
  { from: b, to: a, taskId: taskId + 1, shape: [4001], recvForm: "spread" }
]
/** From rank 0 to 1, and from 2 to 3: a driver may need the group for what goes both ways. */
const pairs: ReadonlyArray<Transfer> = [
  { from: 0, to: 1, taskId: 0, shape: [101, 7], sendForm: "transposed" },
  { from: 0, to: 1, taskId: 1, shape: [4001], recvForm: "spread" },
  { from: 2, to: 3, taskId: 10, shape: [17, 5] },
  { from: 2, to: 3, taskId: 11, shape: [4001], recvForm: "spread" }
]

const runRound = Effect.fnUntraced(function* (halves: Halves, round: number) {
  const service = yield* CopyService
  yield* fillHalves(halves, round)
  yield* submitHalves(halves)
  const report = yield* service.run()
  yield* judgeHalves(halves, round)
  return report
})

const copyCase = (name: string, size: number, program: CopyCase["program"]): CopyCase => ({
  name,
  size,
  requires: isPairwise,
  program: (rank) => Effect.scoped(program(rank))
})

/** Of the service over such a driver. */
export const copyRepeatCases: ReadonlyArray<CopyCase> = [
  copyCase("a known batch needs only the ranks that exchange something", 4, (rank) =>
    Effect.gen(function* () {
      const group = yield* ProcessGroup
      const halves = yield* allocateHalves(rank, pairs)
      yield* runRound(halves, 0)
      yield* group.barrier("conformance known")
      // The second pair begins when the first one has ended.
      if (rank >= 2) yield* group.barrier("conformance first pair")
      for (let round = 1; round <= 5; round++) {
        const report = yield* runRound(halves, round)
        yield* checkEqual(`Round ${round} reuses the program`, report.reusedProgram, true)
      }
      if (rank < 2) yield* group.barrier("conformance first pair")
      yield* group.barrier("conformance second pair")
    })
  ),
  copyCase("memory that is new on one rank is agreed on with ranks that are ahead and at rest", 4, (rank) =>
    Effect.gen(function* () {
      const group = yield* ProcessGroup
      const halves = yield* allocateHalves(rank, pairs)
      yield* runRound(halves, 0)
      yield* group.barrier("conformance known")
      if (rank < 2) yield* group.barrier("conformance ahead")
      for (let round = 1; round <= 3; round++) {
        const used = rank === 0 && round === 2 ? yield* allocateHalves(rank, pairs) : halves
        yield* runRound(used, round)
      }
      if (rank >= 2) yield* group.barrier("conformance ahead")
      yield* group.barrier("conformance together")
      for (let round = 4; round <= 5; round++) yield* runRound(halves, round)
      yield* group.barrier("conformance end")
    })
  ),
  copyCase("a repetition that a rank leaves before its peer has come fails there, and the next one works", 2, (rank) =>
    Effect.gen(function* () {
      const group = yield* ProcessGroup
      const service = yield* CopyService
      const halves = yield* allocateHalves(rank, pair(0, 1, 0))
      for (const round of [0, 1]) yield* runRound(halves, round)
      yield* group.barrier("conformance known")
      if (rank === 0) {
        yield* submitHalves(halves)
        const leaving = yield* Effect.forkChild(service.run(), { startImmediately: true })
        yield* Effect.sleep(pause)
        yield* Fiber.interrupt(leaving)
      }
      yield* group.barrier("conformance left")
      if (rank === 1) {
        yield* submitHalves(halves)
        const error = yield* expectFailure("The run that rank 0 left", service.run(), ["TransferFailed", "PeerGone"])
        yield* checkEqual("The rank that left", error.ranks.includes(0), true)
      }
      for (const round of [2, 3]) yield* runRound(halves, round)
      yield* group.barrier("conformance end")
    })
  ),
  copyCase("a repetition that fails on one rank when its bytes are there fails on its peer", 2, (rank) =>
    Effect.gen(function* () {
      const group = yield* ProcessGroup
      const service = yield* CopyService
      const halves = yield* allocateHalves(rank, pair(0, 1, 0))
      for (const round of [0, 1]) yield* runRound(halves, round)
      yield* fillHalves(halves, 2)
      yield* group.barrier("conformance filled")
      yield* submitHalves(halves)
      const reached = yield* Deferred.make<void>()
      const fault = copyError("TransferFailed", [1], {
        rank: 1,
        op: "finish",
        detail: "It was asked for.",
        remedy: "None."
      })
      const finish = rank === 1 ? Effect.andThen(Deferred.succeed(reached, undefined), Effect.fail(fault)) : Effect.void
      const error = yield* expectFailure("The run that rank 1 fails", service.run({ finish }), ["TransferFailed"])
      yield* checkEqual("The failure", error.reason.detail, "It was asked for.")
      for (const round of [3, 4]) yield* runRound(halves, round)
      yield* group.barrier("conformance end")
    })
  )
]
