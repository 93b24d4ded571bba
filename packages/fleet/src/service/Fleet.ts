// SPDX-License-Identifier: Apache-2.0
/**
 * A process's part in a fleet: it joins, receives versions and serves them, or publishes them.
 *
 * Contract
 * - A replica serves only through `use`, which refuses while there is no version that may be served: see `canServe`.
 * - What `use` reads stays as it is until its program ends. Under policy `all` a commit waits for programs that run.
 * - A program that still runs when this member may serve no longer, because it is cut off from the store, is interrupted.
 * - `publish` ends when the update has ended everywhere: with its manifest, or with UpdateAborted that names the culprits.
 * - The weights that a source publishes must not change until `publish` ends.
 * - The scope of the service is its part: when it closes, the member leaves at once.
 */

import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type * as Stream from "effect/Stream"
import type { FleetError } from "../FleetError.ts"
import type { CommitPolicy, FleetState } from "../version/FleetLog.ts"
import type { Manifest } from "../version/Manifest.ts"
import type { MemberState } from "../version/MemberState.ts"

/** What one process knows of its fleet, at one moment. */
export interface FleetStatus {
  /** As the history says; undefined before this process has seen it. */
  readonly fleet: FleetState | undefined
  /** This member. */
  readonly member: MemberState
  /** Whether `use` would run a program now. */
  readonly canServe: boolean
}

/** What a member does. */
export interface FleetShape {
  /** This member and its fleet, now. */
  readonly status: Effect.Effect<FleetStatus>
  /** The status now, and again after each change that this process learns of. */
  readonly changes: Stream.Stream<FleetStatus>
  /**
   * Makes the weights that this source holds the next version, and waits until the update has ended. Fails with UpdateAborted;
   * with InvalidOptions on a replica, or where this process runs no controller.
   */
  readonly publish: (options: {
    /** For people, such as the step of the training. */
    readonly label: string
    /** `all` by default. */
    readonly policy?: CommitPolicy
  }) => Effect.Effect<Manifest, FleetError>
  /** Runs a program with the version in use. Fails with NotServing, also in the middle of the program. */
  readonly use: <A, E, R>(program: (version: Manifest) => Effect.Effect<A, E, R>) => Effect.Effect<A, E | FleetError, R>
}

/** The service by which a process takes part in a fleet. */
export class Fleet extends Context.Service<Fleet, FleetShape>()("@tensorferry/fleet/service/Fleet") {}
