// SPDX-License-Identifier: Apache-2.0
/**
 * What the author of a replay backend writes: one device's slots and copies. Everything else (slot states, checks, waits,
 * deadlines, all-or-nothing registration) is `ReplayTransferLayer`, which every backend shares.
 *
 * Contract
 * - The caller has checked what can be checked without the device: the slot is in range, source and destination have equal
 *   shapes and types, are dense, alive, inside their storage, and on the host and on `attributes().device`. A device adds
 *   what only it knows: whose memory it can reach.
 * - Of one slot at most one copy is under way at any time; copies of different slots may be under way together.
 * - A prepared copy is started any number of times, one start after the other. The bytes change between starts, the
 *   addresses do not: it is prepared again when either tensor is another object, when host slots were registered or
 *   unregistered, and never started after a storage of it was freed.
 * - Freeing a storage while a copy of it is under way must not corrupt anybody's memory: the device keeps the memory until
 *   the copy has ended. (Slots that the layer allocated or registered are released only behind their copies.)
 * - The scope of the device closes after all copies have ended.
 */
import type * as Effect from "effect/Effect"
import type * as EffectScope from "effect/Scope"
import type { DType } from "../base/DType.ts"
import type { Shape } from "../base/Region.ts"
import type { Device } from "../tensor/Device.ts"
import type { Tensor } from "../tensor/Tensor.ts"
import type { ReplayStream, ReplayTransferAttributes, ReplayTransferError } from "./ReplayTransferBackend.ts"

/** One prepared copy. Its functions are cheap and never keep the JS thread waiting. */
export interface ReplayCopy {
  /**
   * `undefined`: the copy was handed to the device, and later calls report on it. An Effect: nothing has happened yet;
   * the copy starts when it runs, and goes on off the JS thread. Where the device has no asynchronous submission it ends
   * with the copy; where it has, the copy may still be under way then. Interrupted, it stops the copy, waits until the
   * device has let go of both tensors, or leaves a copy that `isDone` reports as under way.
   */
  readonly start: () => Effect.Effect<void, ReplayTransferError> | undefined
  /** Whether the last start's copy has ended: asks the event. True before the first start. An error: it ended badly. */
  readonly isDone: () => boolean | ReplayTransferError
  /** Ends when the last start's copy has ended. Interruption ends the wait and leaves the copy alone. */
  readonly wait: Effect.Effect<void, ReplayTransferError>
  /** Work submitted to the stream from now on begins after the copy; the device's own stream by default. */
  readonly streamWait: (stream: ReplayStream | undefined) => Effect.Effect<void, ReplayTransferError>
  /** Device time of the last copy that ended, where timing events exist. */
  readonly seconds: () => number | undefined
}

/** What a replay backend's author writes: slots on a device, and copies of rows into them. */
export interface ReplayDevice {
  /**
   * Submission is bound to the thread, or the moment, of the consumer: the layer then only records a submission, and
   * starts the copy inside the consumer's wait.
   */
  readonly isDeferred?: boolean
  /** Where batches come from; the host by default. */
  readonly origin?: Device
  /** Read again at each use. `device` never changes. */
  readonly attributes: () => ReplayTransferAttributes
  /** Makes one host slot known to the driver until the scope closes. `index` is its place in the caller's list. */
  readonly register: (slot: Tensor, index: number) => Effect.Effect<void, ReplayTransferError, EffectScope.Scope>
  /** Dense memory for one device slot, freed by the scope. */
  readonly allocate: (shape: Shape, dtype: DType) => Effect.Effect<Tensor, ReplayTransferError, EffectScope.Scope>
  /** Resolves addresses once. Starts nothing. */
  readonly prepare: (
    slot: number,
    destination: Tensor,
    source: Tensor
  ) => Effect.Effect<ReplayCopy, ReplayTransferError>
}
