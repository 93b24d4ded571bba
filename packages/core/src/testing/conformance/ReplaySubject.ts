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
import type { ReplayHooks, ReplayStreams } from "../../service/ReplayTesting.ts"
import type { ReplayTransferBackendShape } from "../../service/ReplayTransferBackend.ts"
import type { TensorError } from "../../service/TensorEngine.ts"
import type { Storage } from "../../tensor/Storage.ts"

export type { ReplayStreams }

export interface ReplaySubjectShape extends ReplayHooks {
  /** A backend with so many slots, closed by the scope. Backends of one subject may be open together. */
  readonly build: (options: {
    readonly ringDepth: number
    readonly deadline?: Duration.Duration
  }) => Effect.Effect<ReplayTransferBackendShape, BackendError, EffectScope.Scope>
  /** Memory of the host as the backend is meant to be used with, with bytes to see. */
  readonly allocateHost: (
    byteLength: number
  ) => Effect.Effect<Storage, TensorError | HostMemoryError, EffectScope.Scope>
  /** How many ticks "many ticks leave nothing behind" runs; 300 by default. */
  readonly ticks?: number
}

export class ReplaySubject extends Context.Service<ReplaySubject, ReplaySubjectShape>()(
  "@tensorferry/core/testing/conformance/ReplaySubject"
) {}
