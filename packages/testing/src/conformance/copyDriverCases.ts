// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of `CopyDriver` by itself, for what the service above would hide: preparation without movement, cancellation,
 * progress, paths.
 */

import { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Scope from "effect/Scope"
import { type CopyDriverCase, check, checkEqual } from "./Case.ts"
import { contents, driverCase, fill, judge, meet, pairOf, readyPair, transfer } from "./driverPair.ts"
import { expectElements, expectPoison, setPoison } from "./memory.ts"

/** How long a transfer that can never end is given before it is cancelled. */
const patience = "300 millis"

/** One program: from its preparation to its end, its cancellation, or its failure. */
export const copyStartCases: ReadonlyArray<CopyDriverCase> = [
  driverCase("states its rank and world size", (rank) =>
    Effect.gen(function* () {
      const driver = yield* CopyDriver
      const group = yield* ProcessGroup
      yield* checkEqual("rank", driver.rank, rank)
      yield* checkEqual("worldSize", driver.worldSize, group.size)
      yield* check(driver.name.length > 0, () => "The driver has no name.")
      yield* check(driver.capabilities.maxMessageBytes > 0, () => "No message fits into maxMessageBytes.")
    })
  ),
  driverCase("prepare moves no bytes", (rank) =>
    Effect.gen(function* () {
      const driver = yield* CopyDriver
      const pair = yield* pairOf(rank)
      yield* fill(rank, pair, 0)
      yield* meet("filled before prepare")
      yield* driver.prepare(pair.messages)
      yield* meet("prepared")
      yield* expectPoison("A destination after prepare", pair.into)
    })
  ),
  driverCase("a prepared program moves new contents at every start", (rank) =>
    Effect.gen(function* () {
      const driver = yield* CopyDriver
      const pair = yield* pairOf(rank)
      yield* fill(rank, pair, 0)
      const program = yield* driver.prepare(pair.messages)
      for (let round = 0; round < 3; round++) {
        yield* fill(rank, pair, round)
        yield* transfer(program)
        yield* judge(rank, pair, round)
        yield* expectElements("The source afterwards", pair.out, contents(rank, round))
        yield* meet("judged")
      }
    })
  ),
  driverCase("await ends when the bytes are there", (rank) =>
    Effect.gen(function* () {
      const { driver, pair, program } = yield* readyPair(rank, 4)
      const inFlight = yield* driver.start(program)
      yield* inFlight.await
      yield* judge(rank, pair, 4)
      yield* checkEqual("isComplete after await", yield* inFlight.isComplete, true)
      yield* meet("done")
    })
  ),
  driverCase("moved bytes grow and stay within the messages", (rank) =>
    Effect.gen(function* () {
      const { driver, pair, program } = yield* readyPair(rank, 1)
      const inFlight = yield* driver.start(program)
      const before = yield* inFlight.movedBytes
      yield* inFlight.await
      const after = yield* inFlight.movedBytes
      yield* meet("done")
      const total = pair.messages.reduce((sum, message) => sum + message.byteLength, 0)
      yield* check(
        Number.isInteger(before) && before >= 0 && before <= after && after > 0 && after <= total,
        () => `Moved bytes went from ${before} to ${after}; the messages have ${total} bytes.`
      )
    })
  ),
  driverCase("device times are of the program's peers", (rank) =>
    Effect.gen(function* () {
      const pair = yield* pairOf(rank)
      yield* fill(rank, pair, 6)
      const driver = yield* CopyDriver
      const inFlight = yield* transfer(yield* driver.prepare(pair.messages))
      // A driver without a clock on its device reports none.
      const times = yield* inFlight.peerTimes ?? Effect.succeed([])
      const peers = times.map(({ peer }) => peer)
      yield* check(
        peers.every((peer, at) => peer === 1 - rank && peers.indexOf(peer) === at),
        () => `There are times for ranks ${peers.join(", ")}; the program's only peer is ${1 - rank}.`
      )
      for (const { pack, wire, unpack } of times) {
        // Longer than any deadline would be another unit than seconds.
        yield* check(
          [pack, wire, unpack].every((seconds) => seconds >= 0 && seconds < 60),
          () => `The parts took ${pack}, ${wire} and ${unpack} seconds.`
        )
      }
    })
  ),
  driverCase("paths name the peers and why", (rank) =>
    Effect.gen(function* () {
      const driver = yield* CopyDriver
      const pair = yield* pairOf(rank)
      yield* fill(rank, pair, 0)
      const program = yield* driver.prepare(pair.messages)
      yield* checkEqual("Peers with a path", program.paths.map(({ peer }) => peer).join(), String(1 - rank))
      for (const { path, reason } of program.paths) {
        yield* check(path.length > 0 && reason.length > 0, () => "A path or its reason is empty.")
      }
      yield* checkEqual("Messages of the program", program.messages.length, pair.messages.length)
      yield* meet("judged")
    })
  ),
  driverCase("programs without messages start and end", () =>
    Effect.gen(function* () {
      const driver = yield* CopyDriver
      yield* transfer(yield* driver.prepare([]))
    })
  ),
  driverCase("cancel stops writing", (rank) =>
    Effect.gen(function* () {
      const { driver, pair, program } = yield* readyPair(rank, 2)
      // Rank 1 gives up before rank 0 starts: whatever rank 0 does, nothing may be written on rank 1 any more.
      if (rank === 1) {
        const inFlight = yield* driver.start(program)
        yield* inFlight.cancel
        yield* setPoison(pair.into)
      }
      yield* meet("cancelled")
      if (rank === 0) {
        const started = yield* Effect.result(driver.start(program))
        if (started._tag === "Success") {
          yield* Effect.timeoutOption(Effect.exit(started.success.await), patience)
          yield* started.success.cancel
        }
      }
      yield* meet("tried")
      if (rank === 1) yield* expectPoison("A destination after cancel", pair.into)
    })
  ),
  driverCase("a program whose memory was freed fails", (rank) =>
    Effect.gen(function* () {
      const driver = yield* CopyDriver
      const memory = yield* Scope.make()
      const pair = yield* Scope.provide(pairOf(rank), memory)
      yield* fill(rank, pair, 5)
      const program = yield* driver.prepare(pair.messages)
      if (rank === 1) yield* Scope.close(memory, Exit.void)
      yield* meet("freed")
      const started = yield* Effect.result(driver.start(program))
      if (started._tag === "Success") {
        const ended = yield* Effect.timeoutOption(Effect.exit(started.success.await), patience)
        yield* started.success.cancel
        yield* check(
          rank === 0 || Option.isNone(ended) || Exit.isFailure(ended.value),
          () => "A transfer into freed memory succeeded."
        )
      }
      yield* meet("ended")
      if (rank === 0) yield* Scope.close(memory, Exit.void)
    })
  ),
  driverCase("a transfer with a cancelled peer never ends well without its bytes", (rank) =>
    Effect.gen(function* () {
      const { driver, pair, program } = yield* readyPair(rank, 3)
      // Rank 1 joins after rank 0 has started, and gives up at once.
      if (rank === 1) {
        yield* meet("started")
        const started = yield* Effect.result(driver.start(program))
        if (started._tag === "Success") yield* started.success.cancel
      } else {
        const started = yield* Effect.result(driver.start(program))
        yield* meet("started")
        if (started._tag === "Success") {
          const exit = yield* Effect.timeoutOption(Effect.exit(started.success.await), patience)
          if (Option.isSome(exit) && exit.value._tag === "Success") yield* judge(rank, pair, 3)
          else yield* started.success.cancel
        }
      }
      yield* meet("ended")
    })
  )
]
