// SPDX-License-Identifier: Apache-2.0
/**
 * A replay ring under test, wherever its rows lie: what the cases of rings need of it. The ring on the host and rings on
 * devices are subjects of the same cases.
 */
import type { RowLayout } from "@tensorferry/core/replay/ReplayRowLayout"
import type { RingSample } from "@tensorferry/core/service/ReplayRingKernels"
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"

/** Why an operation of a ring failed: the tag of its reason, and the words. */
export interface RingFailure {
  readonly tag: string
  readonly detail: string
}

/** A ring to make. */
export interface RingWanted {
  readonly layout: RowLayout
  readonly capacity: number
  readonly episodeEnd?: string
  /** Rows that travel at once, where the ring cuts pushes. */
  readonly pieceRows?: number
}

/** A batch to draw. */
export type RingDraw = Pick<RingSample, "seed" | "tick" | "count"> &
  Partial<Pick<RingSample, "window" | "draws" | "episodes" | "packing">>

/** A batch that was drawn, in memory of this process. */
export interface RingBatch {
  readonly first: number
  readonly end: number
  /** Rows that were overwritten meanwhile and drawn again. */
  readonly redrawn: number
  /** Packed rows, window after window. */
  readonly rows: Uint8Array
  /** First row of each window; absent where the ring does not say. */
  readonly positions?: ReadonlyArray<number>
  /** Rows of each window up to the end of its episode. */
  readonly lengths?: ReadonlyArray<number>
}

/** One ring. */
export interface TestedRing {
  /** Adds rows, each with this weight; answers how many were pushed so far. */
  readonly push: (rows: Uint8Array, weight?: number) => Effect.Effect<number, RingFailure>
  /** Draws rows that were committed before. */
  readonly sample: (draw: RingDraw) => Effect.Effect<RingBatch, RingFailure>
  /** Adds rows and draws in one turn; `sees` says whether the draw sees them. */
  readonly tick?: (
    rows: Uint8Array,
    draw: RingDraw & { readonly sees?: "old" | "new" }
  ) => Effect.Effect<RingBatch, RingFailure>
  /** Changes weights of rows by their positions. */
  readonly weigh?: (
    positions: ReadonlyArray<number>,
    weights: ReadonlyArray<number>
  ) => Effect.Effect<void, RingFailure>
}

/** How rings are made. */
export interface RingSubjectShape {
  /** A ring, freed by the scope. */
  readonly make: (wanted: RingWanted) => Effect.Effect<TestedRing, RingFailure, Scope.Scope>
  /** Why rings of this kind draw rows one by one, uniformly, and nothing else; without a full stop. */
  readonly lacksWindows?: string
}

/** The service by which the cases of rings make rings. */
export class RingSubject extends Context.Service<RingSubject, RingSubjectShape>()(
  "@tensorferry/testing/ring/RingSubject"
) {}
