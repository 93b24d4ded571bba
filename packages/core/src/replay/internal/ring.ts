// SPDX-License-Identifier: Apache-2.0
/** What all parts of one replay backend share: its slots, what it refuses, and whether it is closed. */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type { ReplayDevice } from "../../service/ReplayDevice.ts"
import type { ReplayTransferError } from "../../service/ReplayTransferBackend.ts"
import { orAfterRunningTime } from "../../service/RunningTime.ts"
import type { Device } from "../../tensor/Device.ts"
import type { makeRefusals, makeReplayChecks } from "./checks.ts"
import type { ReplaySlot } from "./slot.ts"

export interface BackendRing {
  readonly device: ReplayDevice
  /** Where its device slots are. */
  readonly target: Device
  readonly slots: ReadonlyArray<ReplaySlot>
  readonly refusals: ReturnType<typeof makeRefusals>
  readonly checks: ReturnType<typeof makeReplayChecks>
  readonly deadline: Duration.Duration
  /** Copies are made by the consumer's wait. */
  readonly isDeferred: boolean
  /** For so long a wait keeps asking the device. */
  readonly pollMillis: number
  isClosed: boolean
}

/** Work on a slot that fails where it does not end within the deadline; `what` begins the sentence that says so. */
export const bounded = <A>(
  { deadline, refusals }: BackendRing,
  op: string,
  slot: ReplaySlot,
  what: string,
  work: Effect.Effect<A, ReplayTransferError>
): Effect.Effect<A, ReplayTransferError> =>
  orAfterRunningTime(work, {
    duration: deadline,
    orElse: () => Effect.fail(refusals.late(op, slot.index, what, Duration.format(deadline)))
  })
