// SPDX-License-Identifier: Apache-2.0
/**
 * The communicator of a driver's group: made when first needed, by all ranks together, and again after it broke.
 *
 * Invariant: connections have numbers that count on all ranks alike; a broken one is never used again. An abort on one rank
 * breaks it for all, so ranks compare which one they have and make a new one unless all have the same.
 */
import type { CopyDriverError } from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import type { NativeCommunicator } from "@tensorferry/gpu/Addon"
import type { Gpu } from "@tensorferry/gpu/Gpu"
import { makeDriverAgreement } from "@tensorferry/native/driver/DriverAgreement"
import type { DriverErrors } from "@tensorferry/native/driver/DriverErrors"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"

export interface Connection {
  readonly number: number
  readonly native: NativeCommunicator
  isBroken: boolean
}

const uniqueIdBytes = 128

export const makeConnections = (gpu: Gpu, group: ProcessGroupShape, errors: DriverErrors) => {
  const { addon } = gpu
  let current: Connection | undefined

  const close = Effect.sync(() => {
    if (current !== undefined && !gpu.isClosed()) addon.closeCommunicator(current.native)
    current = undefined
  })

  /** The root's identity of the next communicator, on all ranks; or the root's failure, on all ranks. */
  const shareIdentity = makeDriverAgreement(group, errors).fromRoot(
    "communicator",
    () => {
      const made = addon.createUniqueId(gpu.libraries)
      return made.code === "Ok" ? Result.succeed(made.value) : Result.fail(errors.ofNative(made, "connect"))
    },
    { detail: "Rank 0 could not start a communicator.", op: "connect", byteLength: uniqueIdBytes }
  )

  const connect = (number: number): Effect.Effect<Connection, CopyDriverError> =>
    Effect.gen(function* () {
      yield* close
      const identity = yield* shareIdentity
      const joining = gpu.run<NativeCommunicator>((done) =>
        addon.startConnect(gpu.native, identity, group.rank, group.size, done)
      )
      const native = yield* group.keepAlive(joining).pipe(
        Effect.mapError((failure) => errors.ofNative(failure, "connect")),
        Effect.timeoutOrElse({
          duration: group.deadline,
          orElse: () =>
            Effect.fail(
              errors.fail("TransportFailed", `Not all ranks connected within ${Duration.format(group.deadline)}.`, {
                op: "connect",
                scope: "service"
              })
            )
        })
      )
      current = { number, native, isBroken: false }
      return current
    })

  return {
    /** Number of the connection that works; 0 where none does. */
    number: (): number => (current === undefined || current.isBroken ? 0 : current.number),
    /** The connection of all ranks; `numbers` are those that the ranks reported. Every rank calls it, or none. */
    ensure: (numbers: ReadonlyArray<number>): Effect.Effect<Connection, CopyDriverError> =>
      Effect.suspend(() => {
        const agreed = numbers.every((number) => number > 0 && number === numbers[0])
        if (agreed && current !== undefined && !current.isBroken) return Effect.succeed(current)
        return connect(Math.max(0, ...numbers) + 1)
      }),
    close
  }
}

export type Connections = ReturnType<typeof makeConnections>
