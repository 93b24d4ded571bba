// SPDX-License-Identifier: Apache-2.0
/**
 * A backend as its descriptor offers it, as a subject of the kit: what anyone can say of a backend whose author gave
 * nothing but the descriptor. Replay cases that need more (copies held back, streams of a consumer) ask the descriptor's
 * `replayTesting`, and are skipped with that reason where there is none.
 */

import {
  type BackendDescriptor,
  BackendError,
  type BackendOptions,
  backendError
} from "@tensorferry/core/backend/BackendDescriptor"
import type { BackendRegistryShape } from "@tensorferry/core/backend/BackendRegistry"
import { engineOf, familyOf } from "@tensorferry/core/backend/FamilyEngine"
import { ReplayTransferDeadline } from "@tensorferry/core/replay/ReplayTransferLayer"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { type ReplayHooks, ReplayTesting } from "@tensorferry/core/service/ReplayTesting"
import { ReplayTransferBackend } from "@tensorferry/core/service/ReplayTransferBackend"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { cpu } from "@tensorferry/core/tensor/Device"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { ReplaySubject, type ReplaySubjectShape } from "./conformance/ReplaySubject.ts"

/** Memory that a collector would share, where a backend offers it. */
const hostMemoryOf = (registry: BackendRegistryShape) =>
  Effect.option(
    Effect.flatMap(registry.forFamily(cpu.family, "hostMemory"), (owner) => Layer.build(owner.hostMemory!({})))
  )

/** Of a backend whose author gave no means to hold its device back. */
const noHooks: ReplayHooks = {
  lacks: {
    hold: "the descriptor has no replayTesting, so copies cannot be held back",
    streams: "the descriptor has no replayTesting, so no streams are known",
    failRegistration: "the descriptor has no replayTesting, so no registration can be made to fail",
    failCopy: "the descriptor has no replayTesting, so no copy can be made to fail"
  }
}

/** What is built for a test fails as what is built for users does. */
const asBackendError =
  (backend: string) =>
  (error: Error): BackendError =>
    error instanceof BackendError
      ? error
      : backendError("Unavailable", {
          backend,
          op: "replayTesting",
          detail: `It cannot be built: ${error.message}.`,
          remedy: "Correct the descriptor's replayTesting."
        })

/** The replay backend of a descriptor, and the engine of its device. */
export const replaySubject = (
  registry: BackendRegistryShape,
  descriptor: BackendDescriptor,
  options: BackendOptions
): Layer.Layer<ReplaySubject | TensorEngine, BackendError> => {
  const engineLayer = engineOf(registry, descriptor, options)
  const subject = Layer.effect(
    ReplaySubject,
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const memory = yield* hostMemoryOf(registry)
      const device = { family: engine.deviceFamilies[0] ?? familyOf(descriptor), index: 0 }
      const own =
        descriptor.replayTesting === undefined
          ? undefined
          : Context.get(yield* Layer.build(descriptor.replayTesting(device, options, engineLayer)), ReplayTesting)
      return {
        ...(own ?? noHooks),
        build: ({ ringDepth, deadline }) =>
          own !== undefined
            ? Effect.mapError(
                own.build({ ringDepth, ...(deadline === undefined ? {} : { deadline }) }),
                asBackendError(descriptor.name)
              )
            : Effect.map(
                Layer.build(
                  descriptor.replayTransfer!(device, ringDepth, options, engineLayer).pipe(
                    Layer.provide(
                      deadline === undefined ? Layer.empty : Layer.succeed(ReplayTransferDeadline, deadline)
                    )
                  )
                ),
                (built) => Context.get(built, ReplayTransferBackend)
              ),
        allocateHost: (byteLength) =>
          memory._tag === "Some"
            ? Context.get(memory.value, HostMemory).allocate(byteLength)
            : engine.wrapHost(new Uint8Array(byteLength))
      } satisfies ReplaySubjectShape
    })
  )
  return Layer.provideMerge(subject, engineLayer)
}
