// SPDX-License-Identifier: Apache-2.0
/** Drivers that move the wrong bytes, or report wrongly how far they are. */

import { equalShapes, rowMajorStrides } from "@tensorferry/core/base/Region"
import type { Program } from "@tensorferry/core/service/CopyDriver"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import { type DriverLie, endOf } from "./Lie.ts"
import { afterAwait, nothing, received, withInFlight, withMessages, withParts } from "./lyingDrivers.ts"

/** Lies of a driver with `gather`, over host memory. */
export const messageLies: ReadonlyArray<DriverLie> = [
  {
    name: "drops the last part of every message",
    caughtBy: "parts of one task",
    tell: withParts(({ parts }) => (parts.length > 1 ? parts.slice(0, -1) : parts))
  },
  {
    name: "swaps equal parts",
    caughtBy: "parts of one task",
    tell: withParts(({ parts, direction }) => {
      const [first, second, ...rest] = parts
      const alike = first !== undefined && second !== undefined && equalShapes(first.tensor.shape, second.tensor.shape)
      return direction === "recv" && alike ? [second, first, ...rest] : parts
    })
  },
  {
    name: "completes before it copies",
    caughtBy: "await ends when the bytes are there",
    tell: withInFlight((inFlight) => ({ ...inFlight, await: Effect.void, isComplete: Effect.succeed(true) }))
  },
  {
    name: "writes a byte outside of the destination",
    caughtBy: "moves one tensor",
    tell: afterAwait((tensor) => {
      const at = endOf(tensor)
      if (at < tensor.storage.byteLength) tensor.storage.bytes![at] = tensor.storage.bytes![at]! ^ 1
    })
  },
  {
    name: "ignores strides",
    caughtBy: "transposed views and column slices arrive in logical order",
    tell: withParts(({ parts }) =>
      parts.map((part) => ({ ...part, tensor: { ...part.tensor, strides: rowMajorStrides(part.tensor.shape) } }))
    )
  },
  {
    name: "replays the bytes of the first start",
    caughtBy: "three rounds with changed contents",
    tell: (honest) => {
      const kept = new WeakMap<Program, ReadonlyArray<readonly [Tensor, Uint8Array]>>()
      return {
        ...honest,
        start: (program) => {
          const known = kept.get(program)
          if (known !== undefined) {
            for (const [tensor, bytes] of known) tensor.storage.bytes!.set(bytes)
            return Effect.succeed(nothing)
          }
          return Effect.map(honest.start(program), (inFlight) => ({
            ...inFlight,
            await: Effect.tap(inFlight.await, () =>
              Effect.sync(() => {
                const parts = received(program.messages).flatMap((message) => message.parts)
                kept.set(
                  program,
                  parts.map(({ tensor }) => [tensor, tensor.storage.bytes!.slice()] as const)
                )
              })
            )
          }))
        }
      }
    }
  },
  {
    name: "swallows failures",
    caughtBy: "a program whose memory was freed fails",
    tell: withInFlight((inFlight) => ({ ...inFlight, await: Effect.ignore(inFlight.await) }))
  },
  {
    name: "goes on writing after cancel",
    caughtBy: "cancel stops writing",
    tell: withInFlight((inFlight) => ({ ...inFlight, cancel: Effect.void }))
  },
  {
    name: "moves bytes while preparing",
    caughtBy: "prepare moves no bytes",
    tell: (honest) => ({
      ...honest,
      prepare: (messages) =>
        Effect.gen(function* () {
          const program = yield* honest.prepare(messages)
          yield* (yield* honest.start(program)).await
          return program
        })
    })
  },
  {
    name: "states another rank",
    caughtBy: "states its rank and world size",
    tell: (honest) => ({ ...honest, rank: honest.rank + 1 })
  },
  {
    name: "states another world size",
    caughtBy: "states its rank and world size",
    tell: (honest) => ({ ...honest, worldSize: honest.worldSize + 1 })
  },
  {
    name: "flips a bit of large messages",
    caughtBy: "messages longer than staging",
    tell: afterAwait((tensor, { byteLength }) => {
      if (byteLength > 100_000)
        tensor.storage.bytes![tensor.byteOffset] = tensor.storage.bytes![tensor.byteOffset]! ^ 0x10
    })
  },
  {
    name: "loses messages of one byte",
    caughtBy: "moves one byte",
    tell: withMessages((messages) => messages.filter((message) => message.byteLength > 1))
  },
  {
    name: "overstates the bytes moved",
    caughtBy: "moved bytes grow and stay within the messages",
    tell: withInFlight((inFlight) => ({
      ...inFlight,
      movedBytes: Effect.map(inFlight.movedBytes, (moved) => moved + 1e9)
    }))
  },
  {
    name: "tells device times of a rank that it has nothing to do with",
    caughtBy: "device times are of the program's peers",
    tell: withInFlight((inFlight) => ({
      ...inFlight,
      peerTimes: Effect.succeed([{ peer: 7, pack: 0, wire: 1e-3, unpack: 0 }])
    }))
  },
  {
    name: "tells device times in microseconds",
    caughtBy: "device times are of the program's peers",
    tell: (honest) =>
      withInFlight((inFlight) => ({
        ...inFlight,
        peerTimes: Effect.succeed([{ peer: 1 - honest.rank, pack: 0, wire: 250, unpack: 0 }])
      }))(honest)
  },
  {
    name: "names paths to nobody",
    caughtBy: "paths name the peers and why",
    tell: (honest) => ({
      ...honest,
      prepare: (messages) => Effect.map(honest.prepare(messages), (program) => ({ ...program, paths: [] }))
    })
  },
  {
    name: "is never complete",
    caughtBy: "await ends when the bytes are there",
    tell: withInFlight((inFlight) => ({ ...inFlight, isComplete: Effect.succeed(false) }))
  }
]
