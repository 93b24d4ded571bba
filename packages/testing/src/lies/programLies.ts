// SPDX-License-Identifier: Apache-2.0
/** Drivers that mix up programs, peers and times, or change values on the way. */

import { copyDriverError, type Program } from "@tensorferry/core/service/CopyDriver"
import * as Effect from "effect/Effect"
import { type DriverLie, endOf } from "./Lie.ts"
import { afterAwait, nothing, received, withInFlight, withMessages, withParts } from "./lyingDrivers.ts"

/** More lies of the same kind of driver. */
export const programLies: ReadonlyArray<DriverLie> = [
  {
    name: "keeps to the program prepared last",
    caughtBy: "programs prepared side by side move each their own memory",
    tell: (honest) => {
      let last: Program | undefined
      return {
        ...honest,
        prepare: (messages) =>
          Effect.tap(honest.prepare(messages), (program) =>
            Effect.sync(() => {
              last = program
            })
          ),
        start: (program) => honest.start(last ?? program)
      }
    }
  },
  {
    name: "knows a program by the lengths of its messages",
    caughtBy: "equal messages of other memory are another program",
    tell: (honest) => {
      const known = new Map<string, Program>()
      return {
        ...honest,
        prepare: (messages) => {
          const key = JSON.stringify(messages.map(({ peer, direction, byteLength }) => [peer, direction, byteLength]))
          const program = known.get(key)
          return program !== undefined
            ? Effect.succeed(program)
            : Effect.tap(honest.prepare(messages), (made) => Effect.sync(() => known.set(key, made)))
        }
      }
    }
  },
  {
    name: "moves one message to each peer",
    caughtBy: "several messages to one peer arrive each in its place",
    tell: withMessages((messages) => messages.filter(({ index }) => index === 0))
  },
  {
    name: "turns several messages of a peer around",
    caughtBy: "several messages to one peer arrive each in its place",
    tell: withMessages((messages) => {
      const into = received(messages).map(({ parts }) => parts)
      const peers = received(messages).map(({ peer }) => peer)
      if (into.length < 2 || new Set(peers).size > 1) return messages
      let next = into.length
      return messages.map((message) => {
        if (message.direction === "send") return message
        next -= 1
        return { ...message, parts: into[next]! }
      })
    })
  },
  {
    name: "lets go of sources before they were read",
    caughtBy: "sources may change as soon as await has ended",
    tell: withInFlight((inFlight, { messages }) =>
      messages.some(({ direction, byteLength }) => direction === "send" && byteLength < 2000)
        ? { ...inFlight, await: Effect.void }
        : inFlight
    )
  },
  {
    name: "writes once more after await",
    caughtBy: "nothing is written after await has ended",
    tell: withInFlight((inFlight, { messages }) => ({
      ...inFlight,
      await: Effect.tap(inFlight.await, () =>
        Effect.sync(() => {
          const parts = received(messages).flatMap((message) => message.parts)
          const late = parts.map(({ tensor }) => [tensor, tensor.storage.bytes!.slice()] as const)
          setTimeout(() => {
            for (const [tensor, bytes] of late) if (!tensor.storage.isFreed()) tensor.storage.bytes!.set(bytes)
          }, 20)
        })
      )
    }))
  },
  {
    name: "calls itself complete as soon as it has started",
    caughtBy: "is complete only when the bytes are there",
    tell: withInFlight((inFlight) => ({ ...inFlight, isComplete: Effect.succeed(true) }))
  },
  {
    name: "mixes up peers that send as much",
    caughtBy: "all to all in rings",
    tell: withMessages((messages) => {
      const [first, second] = received(messages)
      if (first === undefined || second === undefined || first.peer === second.peer) return messages
      return messages.map((message) =>
        message === first
          ? { ...first, parts: second.parts }
          : message === second
            ? { ...second, parts: first.parts }
            : message
      )
    })
  },
  {
    name: "moves whole blocks of 64 bytes only",
    caughtBy: "odd sizes",
    tell: afterAwait((tensor, { byteLength }) => {
      if (byteLength > 64 && byteLength % 64 !== 0) tensor.storage.bytes![endOf(tensor) - 1] = 0xd7
    })
  },
  {
    name: "forgets where a view begins",
    caughtBy: "writes nothing outside of destinations",
    tell: withParts(({ parts, direction }) =>
      direction === "send" ? parts : parts.map((part) => ({ ...part, tensor: { ...part.tensor, byteOffset: 0 } }))
    )
  },
  {
    name: "makes booleans 0 or 1",
    caughtBy: "every element type",
    tell: afterAwait((tensor) => {
      if (tensor.dtype !== "bool") return
      const bytes = tensor.storage.bytes!
      for (let at = tensor.byteOffset; at < endOf(tensor); at++) bytes[at] = bytes[at] === 0 ? 0 : 1
    })
  },
  {
    name: "sends float32 through a shorter type",
    caughtBy: "every element type",
    tell: afterAwait((tensor) => {
      if (tensor.dtype !== "float32") return
      const bytes = tensor.storage.bytes!
      for (let at = tensor.byteOffset; at < endOf(tensor); at += 4) bytes.fill(0, at, at + 2)
    })
  },
  {
    name: "refuses to start without messages",
    caughtBy: "programs without messages start and end",
    tell: (honest) => ({
      ...honest,
      start: (program) =>
        program.messages.length > 0
          ? honest.start(program)
          : Effect.fail(
              copyDriverError("InvalidProgram", { op: "run", detail: "It has no messages.", remedy: "None." })
            )
    })
  },
  {
    name: "spoils the source",
    caughtBy: "a prepared program moves new contents at every start",
    tell: withInFlight((inFlight, { messages }) => ({
      ...inFlight,
      await: Effect.tap(inFlight.await, () =>
        Effect.sync(() => {
          for (const message of messages) {
            if (message.direction !== "send") continue
            for (const { tensor } of message.parts) tensor.storage.bytes![tensor.byteOffset]! ^= 1
          }
        })
      )
    }))
  },
  {
    name: "is good for one start",
    caughtBy: "a prepared program moves new contents at every start",
    tell: (honest) => {
      const used = new WeakSet<Program>()
      return {
        ...honest,
        start: (program) => {
          if (used.has(program)) return Effect.succeed(nothing)
          used.add(program)
          return honest.start(program)
        }
      }
    }
  },
  {
    name: "never works again after a cancel",
    caughtBy: "works after a cancel, or says that it must be rebuilt",
    tell: (honest) => {
      let isCancelled = false
      const gone = copyDriverError("PeerGone", { op: "run", scope: "op", detail: "It was cancelled.", remedy: "None." })
      return {
        ...honest,
        start: (program) =>
          isCancelled
            ? Effect.fail(gone)
            : Effect.map(honest.start(program), (inFlight) => ({
                ...inFlight,
                cancel: Effect.andThen(
                  inFlight.cancel,
                  Effect.sync(() => {
                    isCancelled = true
                  })
                )
              }))
      }
    }
  }
]
