// SPDX-License-Identifier: Apache-2.0
/**
 * What cases of a driver move: two ranks, each with memory to send to the other and memory to receive into, as messages of
 * one dense part, which every driver takes.
 */

import type { Rank } from "@tensorferry/core/base/Ids"
import type { Message } from "@tensorferry/core/ir/Message"
import { CopyDriver, type Program } from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import * as Effect from "effect/Effect"
import type { CopyDriverCase } from "./Case.ts"
import { expectElements, type Placed, patternBytes, place, setElements, setPoison } from "./memory.ts"

/** One rank's two messages with the other. */
export interface Pair {
  readonly out: Placed
  readonly into: Placed
  readonly messages: ReadonlyArray<Message>
}

const lengths = [1009, 70_001] as const

/** What a rank sends in a round. */
export const contents = (rank: Rank, round: number): Uint8Array => patternBytes(lengths[rank]!, rank * 11 + round)

/** `index` counts the messages of one batch to the same peer. */
export const pairOf = Effect.fnUntraced(function* (rank: Rank, index: Rank = 0) {
  const peer = 1 - rank
  const out = yield* place("uint8", [lengths[rank]!])
  const into = yield* place("uint8", [lengths[peer]!])
  const message = (direction: "send" | "recv", { tensor }: Placed): Message => ({
    peer,
    direction,
    index,
    parts: [{ taskId: 2 * index + (direction === "send" ? rank : peer), part: 0, tensor }],
    byteLength: tensor.shape[0]!
  })
  // In an order that both ranks share: rank 0 sends first.
  const messages = [message("send", out), message("recv", into)]
  const pair: Pair = { out, into, messages: rank === 0 ? messages : messages.reverse() }
  return pair
})

/** Writes this round's contents into what the rank sends, and poison into what it receives. */
export const fill = (rank: Rank, { out, into }: Pair, round: number) =>
  Effect.andThen(setElements(out, contents(rank, round)), setPoison(into))

/** Waits for the other rank, in the group's barrier of this label. */
export const meet = (label: string) => Effect.flatMap(ProcessGroup, (group) => group.barrier(`conformance ${label}`))

/** Fails the case unless the other rank's contents of this round arrived, and nothing else was written. */
export const judge = (rank: Rank, { into }: Pair, round: number) =>
  expectElements(`Round ${round} from rank ${1 - rank}`, into, contents(1 - rank, round))

/** A case of two ranks, each of which runs the program in a scope of its own. */
export const driverCase = (
  name: string,
  program: CopyDriverCase["program"],
  requires?: CopyDriverCase["requires"]
): CopyDriverCase => ({
  name,
  size: 2,
  ...(requires === undefined ? {} : { requires }),
  program: (rank) => Effect.scoped(program(rank))
})

/** A pair that is filled on both ranks, and its program: to be started. */
export const readyPair = Effect.fnUntraced(function* (rank: Rank, round: number) {
  const driver = yield* CopyDriver
  const pair = yield* pairOf(rank)
  yield* fill(rank, pair, round)
  const program = yield* driver.prepare(pair.messages)
  yield* meet("filled")
  return { driver, pair, program }
})

/** Starts, waits, meets the others: one honest transfer. */
export const transfer = Effect.fnUntraced(function* (program: Program) {
  const driver = yield* CopyDriver
  yield* meet("filled")
  const inFlight = yield* driver.start(program)
  yield* inFlight.await
  yield* meet("done")
  return inFlight
})
