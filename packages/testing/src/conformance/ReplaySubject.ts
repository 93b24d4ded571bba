// SPDX-License-Identifier: Apache-2.0
/**
 * What the replay cases test: a backend that is built again for each case, host memory for it, and the hooks that the
 * author can offer. Cases that need a hook are skipped, with that reason, where it is missing.
 *
 * The `TensorEngine` next to it in the context reads and poisons the backend's device slots.
 */

import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { HostMemory, type HostMemoryError } from "@tensorferry/core/service/HostMemory"
import { type ReplayHooks, type ReplayStreams, ReplayTesting } from "@tensorferry/core/service/ReplayTesting"
import type { ReplayTransferBackendShape } from "@tensorferry/core/service/ReplayTransferBackend"
import type { TensorError } from "@tensorferry/core/service/TensorEngine"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as EffectScope from "effect/Scope"

export type { ReplayStreams }

/** How the cases build the backend, allocate host memory for it, and act on its device. */
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

/** The service that replay cases judge: a backend, and means to hold its device back. */
export class ReplaySubject extends Context.Service<ReplaySubject, ReplaySubjectShape>()(
  "@tensorferry/testing/conformance/ReplaySubject"
) {}

/** What the author of a test knows better than a descriptor's `replayTesting`. */
export type KnownHooks = Pick<ReplaySubjectShape, "registered" | "failRegistration" | "ticks">

/** A subject by a backend's means for the kit, with memory of the host from `HostMemory`. */
export const subjectOf = (testing: Layer.Layer<ReplayTesting, BackendError>, known: KnownHooks = {}) =>
  Layer.effect(
    ReplaySubject,
    Effect.gen(function* () {
      const memory = yield* HostMemory
      const hooks = Context.get(yield* Layer.build(testing), ReplayTesting)
      return {
        ...hooks,
        ...known,
        build: (settings) => Effect.orDie(hooks.build(settings)),
        allocateHost: memory.allocate
      } satisfies ReplaySubjectShape
    })
  )
