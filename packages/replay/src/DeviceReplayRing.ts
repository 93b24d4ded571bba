// SPDX-License-Identifier: Apache-2.0
/**
 * A replay ring whose rows lie in the memory of the device that draws from them.
 *
 * Contract
 * - Rows cross to the device once, when they are pushed, in pieces of bounded size. Batches are drawn and gathered there.
 * - A row is drawn only after the device has committed it: the words that a sample reads change after all bytes of the row
 *   are in place. A row stops being drawn before its bytes are overwritten. So no batch mixes old and new bytes.
 * - Seed, tick and what the ring held (`first`, `end` of the answer) fix the rows of a batch, on every device: those of
 *   `drawWindows`. Windows of one row drawn uniformly are those that the ring on the host draws.
 * - Operations happen one after the other; an operation that its caller no longer waits for still happens. Operations of
 *   several fibers take turns between pieces, so a sample waits for a few pieces of a push at most.
 * - A failure of the device leaves the ring in an unknown state: everything fails with `DeviceFailed` from then on.
 */

import type { ColumnViews, RowLayout } from "@tensorferry/core/replay/ReplayRowLayout"
import type { RingSample } from "@tensorferry/core/service/ReplayRingKernels"
import type { OpenRing } from "@tensorferry/core/service/TensorEngine"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import type * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { BatchForm } from "./BatchLayout.ts"
import type { DeviceRingError } from "./DeviceRingError.ts"

/** What a ring is made of. */
export interface DeviceRingInput {
  readonly layout: RowLayout
  /** Rows that it holds, 1 to 2^31. */
  readonly capacity: number
  /** A column of one byte per row that is not 0 where the row is the last of its episode. */
  readonly episodeEnd?: string
  /** Bytes that travel at once at most, but one row at least; 1 MiB by default. */
  readonly pieceBytes?: number
  /** What every wait for the device waits for at most; 60 s by default. */
  readonly deadline?: Duration.Input
}

/** Memory for batches of one form, on the device. */
export interface DeviceBatch {
  readonly form: BatchForm
  /** All bytes of a batch. */
  readonly memory: Tensor
  /** Named views of it: `[count, ...]`, or `[count, window, ...]` of windows of several rows. */
  readonly columns: ColumnViews
  /** int64 `[count]`: the number of the first row of each window, for `weigh`. */
  readonly positions: Tensor
  /** uint32 `[count]`: rows of each window up to the end of its episode. */
  readonly lengths: Tensor
}

/** Which batch to draw. */
export interface DeviceDraw {
  /** Fixes, with the tick, which rows the batch holds: a natural number. */
  readonly seed: number
  /** A natural number, another for every batch. */
  readonly tick: number
  /** "uniform" by default. */
  readonly draws?: RingSample["draws"]
  /** What windows do at the end of an episode; "cross" by default. */
  readonly episodes?: RingSample["episodes"]
}

/** What a batch of a tick draws from, beside what fixes it. */
export interface TickDraw extends DeviceDraw {
  /**
   * "old": rows that were there before the tick, without those whose place the first piece takes; the batch is made while the
   * new rows travel. "new": the rows of the tick too, as soon as they are in place. "old" by default.
   */
  readonly sees?: "old" | "new"
}

/** What a batch was drawn from. */
export interface DrawnFrom {
  /** Oldest row that could be drawn. */
  readonly first: number
  /** One behind the newest. */
  readonly end: number
  /** Sum of the weights of all rows that could be drawn. */
  readonly total: bigint
}

/** What a ring on a device does. */
export interface DeviceReplayRingShape {
  /** How rows lie. */
  readonly layout: RowLayout
  /** Rows that it holds. */
  readonly capacity: number
  /** Who gathers rows on the device: a kernel, or its copies. */
  readonly gather: OpenRing["gather"]
  /** Rows that travel at once. */
  readonly pieceRows: number
  /**
   * Appends packed rows, any whole number of them, each with the weight given, or 1. Ends when they can be drawn, with the
   * number of rows ever pushed. The bytes are the caller's again then.
   */
  readonly push: (rows: Uint8Array, weight?: number) => Effect.Effect<number, DeviceRingError>
  /** Memory for batches; freed by the scope. */
  readonly allocateBatch: (form: BatchForm) => Effect.Effect<DeviceBatch, DeviceRingError, Scope.Scope>
  /** Draws a batch into memory that nobody else uses meanwhile. Ends when it is there. */
  readonly sample: (into: DeviceBatch, draw: DeviceDraw) => Effect.Effect<DrawnFrom, DeviceRingError>
  /**
   * Pushes rows and draws a batch: the work of one tick, in one run of the device where the rows are few enough. Where
   * nothing can be drawn it fails, and rows that were pushed before stay.
   */
  readonly tick: (
    rows: Uint8Array,
    into: DeviceBatch,
    draw: TickDraw,
    weight?: number
  ) => Effect.Effect<DrawnFrom, DeviceRingError>
  /**
   * Gives rows new weights, whole numbers of 32 bits: `positions` as a batch has them, and uint32 weights, dense, of one
   * length, on the device or the host. Rows that are gone are passed over; of the weights of a row that comes twice, the
   * largest counts.
   */
  readonly weigh: (positions: Tensor, weights: Tensor) => Effect.Effect<void, DeviceRingError>
}

/** The service that keeps rows on a device and draws batches there. */
export class DeviceReplayRing extends Context.Service<DeviceReplayRing, DeviceReplayRingShape>()(
  "@tensorferry/replay/DeviceReplayRing"
) {}
