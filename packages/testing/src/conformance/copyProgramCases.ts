// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of `CopyDriver` about what a program is and when it is over: several programs at once, several messages to one
 * peer, and that no memory is touched outside of the time between start and completion.
 */

import { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import * as Effect from "effect/Effect"
import * as Scope from "effect/Scope"
import { type CopyDriverCase, check } from "./Case.ts"
import { driverCase, fill, judge, meet, pairOf, readyPair, transfer } from "./driverPair.ts"
import { expectPoison, patternBytes, setElements, setPoison } from "./memory.ts"

/** How long a rank that is late by intention is late, and how long nothing may happen any more. */
const pause = "200 millis"

const pollEvery = "1 millis"

/** Programs of a driver: prepared once, started again and again, cancelled. */
export const copyProgramCases: ReadonlyArray<CopyDriverCase> = [
  driverCase("programs prepared side by side move each their own memory", (rank) =>
    Effect.gen(function* () {
      const driver = yield* CopyDriver
      const [one, two] = [yield* pairOf(rank), yield* pairOf(rank)]
      const first = yield* driver.prepare(one.messages)
      const second = yield* driver.prepare(two.messages)
      yield* fill(rank, one, 1)
      yield* fill(rank, two, 2)
      yield* transfer(first)
      yield* judge(rank, one, 1)
      yield* expectPoison("Memory of the program that was not started", two.into)
      yield* transfer(second)
      yield* judge(rank, two, 2)
      yield* fill(rank, one, 3)
      yield* transfer(first)
      yield* judge(rank, one, 3)
      yield* judge(rank, two, 2)
      yield* meet("judged")
    })
  ),
  driverCase("equal messages of other memory are another program", (rank) =>
    Effect.gen(function* () {
      const driver = yield* CopyDriver
      for (const round of [1, 2, 3]) {
        // Allocators hand out the same addresses again; the memory is new all the same.
        const memory = yield* Scope.make()
        const once = Effect.gen(function* () {
          const pair = yield* pairOf(rank)
          yield* fill(rank, pair, round)
          yield* transfer(yield* driver.prepare(pair.messages))
          yield* judge(rank, pair, round)
          yield* meet("judged")
        })
        yield* Effect.onExit(Scope.provide(once, memory), (exit) => Scope.close(memory, exit))
      }
    })
  ),
  driverCase("several messages to one peer arrive each in its place", (rank) =>
    Effect.gen(function* () {
      const driver = yield* CopyDriver
      const pairs = yield* Effect.forEach([0, 1, 2], (index) => pairOf(rank, index))
      yield* Effect.forEach(pairs, (pair, at) => fill(rank, pair, 5 + at), { discard: true })
      yield* transfer(yield* driver.prepare(pairs.flatMap(({ messages }) => messages)))
      yield* Effect.forEach(pairs, (pair, at) => judge(rank, pair, 5 + at), { discard: true })
      yield* meet("judged")
    })
  ),
  driverCase(
    "sources may change as soon as await has ended",
    (rank) =>
      Effect.gen(function* () {
        const { driver, pair, program } = yield* readyPair(rank, 6)
        // A receiver that comes late is no reason to be done early.
        if (rank === 1) yield* Effect.sleep(pause)
        const inFlight = yield* driver.start(program)
        yield* inFlight.await
        yield* setElements(pair.out, patternBytes(pair.out.tensor.shape[0]!, 77))
        yield* meet("changed")
        yield* judge(rank, pair, 6)
      }),
    ({ requiresProcessGroupBarrier }) =>
      requiresProcessGroupBarrier ? "peers may read sources until all ranks have met" : undefined
  ),
  driverCase("nothing is written after await has ended", (rank) =>
    Effect.gen(function* () {
      const driver = yield* CopyDriver
      const pair = yield* pairOf(rank)
      yield* fill(rank, pair, 7)
      yield* transfer(yield* driver.prepare(pair.messages))
      yield* judge(rank, pair, 7)
      yield* setPoison(pair.into)
      yield* Effect.sleep(pause)
      yield* expectPoison("A destination after await", pair.into)
      yield* meet("judged")
    })
  ),
  driverCase("is complete only when the bytes are there", (rank) =>
    Effect.gen(function* () {
      const { driver, pair, program } = yield* readyPair(rank, 8)
      if (rank === 0) yield* Effect.sleep(pause)
      const inFlight = yield* driver.start(program)
      const polled = Effect.repeat(Effect.andThen(Effect.sleep(pollEvery), inFlight.isComplete), {
        while: (isComplete) => !isComplete
      })
      const ended = yield* Effect.timeoutOption(polled, "20 seconds")
      yield* check(ended._tag === "Some", () => "It is not complete after 20 seconds.")
      yield* judge(rank, pair, 8)
      yield* inFlight.await
      yield* meet("judged")
    })
  ),
  driverCase("works after a cancel, or says that it must be rebuilt", (rank) =>
    Effect.gen(function* () {
      const driver = yield* CopyDriver
      const group = yield* ProcessGroup
      const pair = yield* pairOf(rank)
      yield* fill(rank, pair, 1)
      const program = yield* driver.prepare(pair.messages)
      yield* meet("filled")
      const given = yield* Effect.result(driver.start(program))
      if (given._tag === "Success") yield* given.success.cancel
      yield* meet("cancelled")
      yield* fill(rank, pair, 2)
      yield* meet("filled again")
      const again = Effect.flatMap(driver.start(program), (inFlight) =>
        Effect.onError(Effect.timeout(inFlight.await, "10 seconds"), () => inFlight.cancel)
      )
      const ended = yield* Effect.result(again)
      const hasWorked = ended._tag === "Success"
      const isBroken = !hasWorked && "reason" in ended.failure && ended.failure.reason.scope === "service"
      if (hasWorked) yield* judge(rank, pair, 2)
      const told = yield* group.allGather("conformance after cancel", Uint8Array.of(hasWorked ? 1 : isBroken ? 2 : 0))
      const answers = told.map(([answer]) => answer)
      yield* check(
        answers.every((answer) => answer === 1) || answers.includes(2),
        () =>
          `It neither works nor reports a failure of scope "service": ${hasWorked ? "it worked here" : String(ended.failure)}`
      )
    })
  )
]
