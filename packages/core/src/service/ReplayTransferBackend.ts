// SPDX-License-Identifier: Apache-2.0
/**
 * Moves replay batches from host slots to device slots without stalling the learner.
 *
 * Slot states: `idle -> submitted -> ready`, and `deferred` where the copy happens inside the consumer's wait.
 * ```
 *             submitH2d              copy done
 *   idle ───────────────▶ submitted ───────────▶ ready
 *    ▲  ╲ submitH2d (deferred mode)                │  submitH2d
 *    │   ╲─────────────▶ deferred ──wait──────────▶│
 *    └───────────────── clearReady ────────────────┘
 * ```
 * - `clearReady` makes a slot not ready until its *next* copy completed; an earlier completed copy never counts. A copy
 *   that is running goes on: the slot stays `submitted` until it ends and is `idle` then. A deferred one is dropped.
 * - Submitting into a slot whose copy is running, or is deferred, fails with `SlotBusy` and changes nothing. So does every
 *   submission that is refused before its copy starts.
 * - A copy that fails, or whose submission is interrupted, leaves the slot `idle` and its destination unspecified. `isReady`
 *   and both waits fail with its error until the slot is cleared or submitted into.
 * - Both waits wait for the next copy where no copy counts yet. A wait in which nothing happens until the deadline fails
 *   with `DeadlineExceeded`; that and its interruption leave the slot and its copy as they are.
 * - `registerHostSlots` and `allocateDeviceSlots` are all or nothing.
 * - The backend orders nothing else: a slot is submitted into again only when its readers are done, and one destination is
 *   in one slot at a time.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type * as EffectScope from "effect/Scope"
import type { DType } from "../base/DType.ts"
import { ReasonError, type ReasonInput, reason, reasonOf } from "../base/Reason.ts"
import type { Device } from "../tensor/Device.ts"
import type { Tensor } from "../tensor/Tensor.ts"

/** Kinds of `ReplayTransferError`. */
export const ReplayTransferReason = Schema.Union([
  reason("SlotOutOfRange"),
  reason("SlotBusy"),
  /** Source and destination differ in shape or type, or are on the wrong device. */
  reason("ShapeMismatch"),
  reason("DTypeMismatch"),
  reason("DeviceMismatch"),
  reason("FreedStorage"),
  reason("RegistrationFailed"),
  reason("DeviceFailure"),
  reason("DeadlineExceeded")
])
export type ReplayTransferReason = typeof ReplayTransferReason.Type

/** Why a replay backend refused a request or failed at it. */
export class ReplayTransferError extends ReasonError<ReplayTransferError>()(
  "ReplayTransferError",
  ReplayTransferReason
) {}

/** Makes the error; scope and retryability default to "op" and false. */
export const replayTransferError = (tag: ReplayTransferReason["_tag"], input: ReasonInput): ReplayTransferError =>
  new ReplayTransferError({ reason: reasonOf(tag, input) })

/** The states of a slot. */
export type SlotState = "idle" | "submitted" | "deferred" | "ready"

/** A queue of device work that a consumer names when it wants to wait on it; the backend knows its own kind. */
export interface ReplayStream {
  /** Where the stream is. */
  readonly device: Device
  /** What the device's own library knows it by. */
  readonly handle: bigint
}

/** One batch on its way from a host slot to a device slot. */
export interface ReplaySubmission {
  /** Slot of the ring, 0 to its depth - 1. */
  readonly slot: number
  /** Device tensor, same shape and type as `source`. */
  readonly destination: Tensor
  /** Host tensor, registered or pageable. */
  readonly source: Tensor
}

/** What kind of backend it is, and what its memory is like. */
export interface ReplayTransferAttributes {
  /** As it was asked for: family, colon, number. */
  readonly device: Device
  /** The family of that device. */
  readonly deviceFamily: string
  /** Who submits copies to the device. */
  readonly h2dSubmitter: "native_copy_stream" | "xpu_copy_stream" | "torch_copy" | "torch_copy_deferred" | "device_ring"
  /** What the host's slots are to the device. */
  readonly hostMemoryKind: "registered_pinned_shared" | "pageable_shared" | "device"
  /** Whether slots are pinned. */
  readonly hostPinned: boolean
  /** Whether copies read the shared slots directly. */
  readonly directPinnedShared: boolean
  /** Whether a submission returns before its copy is done. */
  readonly supportsAsyncSubmit: boolean
  /** Whether the device stamps copies with its own clock. */
  readonly supportsTimingEvents: boolean
}

/** What a replay backend does. */
export interface ReplayTransferBackendShape {
  /** Read again at each use: registration changes `hostPinned` and `directPinnedShared`. */
  readonly attributes: Effect.Effect<ReplayTransferAttributes>
  /** Makes host slots known to the device's driver; undone by the scope. */
  readonly registerHostSlots: (
    slots: ReadonlyArray<Tensor>
  ) => Effect.Effect<void, ReplayTransferError, EffectScope.Scope>
  /** `count` device tensors of one shape, freed by the scope. */
  readonly allocateDeviceSlots: (options: {
    readonly count: number
    readonly shape: ReadonlyArray<number>
    readonly dtype: DType
  }) => Effect.Effect<ReadonlyArray<Tensor>, ReplayTransferError, EffectScope.Scope>
  /** Seconds spent submitting. */
  readonly submitH2d: (submission: ReplaySubmission) => Effect.Effect<number, ReplayTransferError>
  /** Where a device slot stands in its cycle. */
  readonly slotState: (slot: number) => Effect.Effect<SlotState, ReplayTransferError>
  /** Whether the batch of a slot is there. Never waits. */
  readonly isReady: (slot: number) => Effect.Effect<boolean, ReplayTransferError>
  /** Takes a slot's batch back, so that the slot may be filled again. */
  readonly clearReady: (slot: number) => Effect.Effect<void, ReplayTransferError>
  /** Host-side wait for the slot's copy. */
  readonly waitReady: (slot: number) => Effect.Effect<void, ReplayTransferError>
  /** Makes later work of the stream wait for the slot's copy; by default the backend's own stream. */
  readonly waitCurrentStreamForReady: (slot: number, stream?: ReplayStream) => Effect.Effect<void, ReplayTransferError>
  /**
   * Device time of the slot's last copy, where timing events exist; `undefined` while a copy is under way and before the
   * first has ended.
   */
  readonly copySeconds: (slot: number) => Effect.Effect<number | undefined, ReplayTransferError>
}

/** The service that brings packed batches from host slots to device slots, and says when they may be read. */
export class ReplayTransferBackend extends Context.Service<ReplayTransferBackend, ReplayTransferBackendShape>()(
  "@tensorferry/core/service/ReplayTransferBackend"
) {}
