// SPDX-License-Identifier: Apache-2.0
/**
 * What the author of a replay backend can do to its device for the conformance kit: hold copies back, let them fail, look
 * at what a consumer on the device sees. Nothing but the kit asks for it.
 *
 * Rules
 * - What is built is the backend that users get; the hooks act on its device, or as close to it as they can.
 * - A hook that the device has no means for is left out, and `lacks` says why: cases that need it are skipped with that.
 */
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import type * as Effect from "effect/Effect"
import type * as EffectScope from "effect/Scope"
import type { Move } from "../tensor/Tensor.ts"
import type { ReplayStream, ReplayTransferBackendShape } from "./ReplayTransferBackend.ts"
import type { TensorError } from "./TensorEngine.ts"

/** Queues of device work. `undefined` names the backend's own. */
export interface ReplayStreams {
  /** Makes a stream of the device, which the test can hold back. */
  readonly open: Effect.Effect<ReplayStream, TensorError, EffectScope.Scope>
  /** Adds a copy between device tensors to the queue; ends when it is queued. */
  readonly copy: (stream: ReplayStream | undefined, move: Move) => Effect.Effect<void, TensorError>
  /** Ends when all that was queued is done. */
  readonly finish: (stream: ReplayStream | undefined) => Effect.Effect<void, TensorError>
}

/** What the kit can do to the device of a backend under test. */
export interface ReplayHooks {
  /** While the scope is open, no copy that starts from now on ends. Copies may also be held for a while after it. */
  readonly hold?: Effect.Effect<void, never, EffectScope.Scope>
  /** Streams of a backend that `build` gave. */
  readonly streams?: (backend: ReplayTransferBackendShape) => ReplayStreams
  /** Host slots that the driver knows right now. */
  readonly registered?: () => number
  /** The n-th registration of a host slot from now on fails in the driver, counted from 0. */
  readonly failRegistration?: (nth: number) => Effect.Effect<void>
  /** The next copy that starts fails on the device. */
  readonly failCopy?: Effect.Effect<void>
  /** Why a hook is left out, or, as `deferred`, why submissions are not deferred; without a full stop. */
  readonly lacks?: {
    readonly [Hook in "hold" | "streams" | "failRegistration" | "failCopy" | "deferred"]?: string
  }
}

/** A backend under test: its hooks, and how the kit builds it. */
export interface ReplayTestingShape extends ReplayHooks {
  /** A backend with so many slots, closed by the scope. Several may be open together. */
  readonly build: (options: {
    readonly ringDepth: number
    readonly deadline?: Duration.Duration
  }) => Effect.Effect<ReplayTransferBackendShape, Error, EffectScope.Scope>
}

/** The service by which the conformance kit holds a backend's device back. */
export class ReplayTesting extends Context.Service<ReplayTesting, ReplayTestingShape>()(
  "@tensorferry/core/service/ReplayTesting"
) {}
