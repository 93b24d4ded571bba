// SPDX-License-Identifier: Apache-2.0
/** Ways of telling lies: a driver that prepares other messages, answers wrongly while they move, or spoils what arrived. */

import type { Message } from "@tensorferry/core/ir/Message"
import type { CopyDriverShape, InFlight, Program } from "@tensorferry/core/service/CopyDriver"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"

/** Prepares other messages than it was given. */
export const withMessages =
  (change: (messages: ReadonlyArray<Message>) => ReadonlyArray<Message>) => (honest: CopyDriverShape) => ({
    ...honest,
    prepare: (messages: ReadonlyArray<Message>) => honest.prepare(change(messages))
  })

/** Prepares messages with other parts than they were given with. */
export const withParts = (change: (message: Message) => Message["parts"]) =>
  withMessages((messages) => messages.map((message) => ({ ...message, parts: change(message) })))

/** Gives something else for a started program. */
export const withInFlight =
  (change: (inFlight: InFlight, program: Program) => InFlight) => (honest: CopyDriverShape) => ({
    ...honest,
    start: (program: Program) => Effect.map(honest.start(program), (inFlight) => change(inFlight, program))
  })

/** Only the messages that this rank receives. */
export const received = (messages: ReadonlyArray<Message>): ReadonlyArray<Message> =>
  messages.filter((message) => message.direction === "recv")

/** Does something to received memory once everything has arrived. */
export const afterAwait = (spoil: (tensor: Tensor, message: Message) => void) =>
  withInFlight((inFlight, { messages }) => ({
    ...inFlight,
    await: Effect.tap(inFlight.await, () =>
      Effect.sync(() => {
        for (const message of received(messages)) for (const { tensor } of message.parts) spoil(tensor, message)
      })
    )
  }))

/** A transfer that is complete from the start and moves no bytes. */
export const nothing: InFlight = {
  isComplete: Effect.succeed(true),
  await: Effect.void,
  cancel: Effect.void,
  movedBytes: Effect.succeed(0)
}
