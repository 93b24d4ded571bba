/**
 * What the replay cases judge: a backend that is built anew for each case, host memory for it, and the hooks that the
 * author can offer. Cases that need a hook are skipped, with that reason, where it is missing.
 *
 * The `TensorEngine` next to it in the context reads and poisons the backend's device slots.
 */
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import type * as Effect from "effect/Effect"
import type * as EffectScope from "effect/Scope"
import type { BackendError } from "../../backend/BackendDescriptor.ts"
import type { HostMemoryError } from "../../service/HostMemory.ts"
import type { ReplayStream, ReplayTransferBackendShape } from "../../service/ReplayTransferBackend.ts"
import type { TensorError } from "../../service/TensorEngine.ts"
import type { Storage } from "../../tensor/Storage.ts"
import type { Move } from "../../tensor/Tensor.ts"

/** Queues of device work. `undefined` names the backend's own. */
export interface ReplayStreams {
  readonly open: Effect.Effect<ReplayStream, TensorError, EffectScope.Scope>
  /** Adds a copy between device tensors to the queue; ends when it is queued. */
  readonly copy: (stream: ReplayStream | undefined, move: Move) => Effect.Effect<void, TensorError>
  /** Ends when all that was queued is done. */
  readonly finish: (stream: ReplayStream | undefined) => Effect.Effect<void, TensorError>
}

export interface ReplaySubjectShape {
  /** A backend with so many slots, closed by the scope. Backends of one subject may be open together. */
  readonly build: (options: {
    readonly ringDepth: number
    readonly deadline?: Duration.Duration
  }) => Effect.Effect<ReplayTransferBackendShape, BackendError, EffectScope.Scope>
  /** Memory of the host as the backend is meant to be used with, with bytes to see. */
  readonly allocateHost: (
    byteLength: number
  ) => Effect.Effect<Storage, TensorError | HostMemoryError, EffectScope.Scope>
  /** While the scope is open, no copy that starts from now on ends. */
  readonly hold?: Effect.Effect<void, never, EffectScope.Scope>
  /** Streams of a backend that `build` gave. */
  readonly streams?: (backend: ReplayTransferBackendShape) => ReplayStreams
  /** Host slots that the driver knows right now. */
  readonly registered?: () => number
  /** The n-th registration of a host slot from now on fails in the driver, counted from 0. */
  readonly failRegistration?: (nth: number) => Effect.Effect<void>
  /** The next copy that starts fails on the device. */
  readonly failCopy?: Effect.Effect<void>
  /** How many ticks "many ticks leave nothing behind" runs; 300 by default. */
  readonly ticks?: number
}

export class ReplaySubject extends Context.Service<ReplaySubject, ReplaySubjectShape>()(
  "@tensorferry/core/testing/conformance/ReplaySubject"
) {}
