/**
 * A backend as its descriptor offers it, as a subject of the kit: what anyone can say of a backend whose author gave
 * nothing but the descriptor. Cases that need more (copies held back, streams of a consumer) are skipped with that reason.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type { BackendDescriptor, BackendError, BackendOptions } from "../backend/BackendDescriptor.ts"
import type { BackendRegistryShape } from "../backend/BackendRegistry.ts"
import { HostMemory } from "../service/HostMemory.ts"
import { ReplayTransferBackend } from "../service/ReplayTransferBackend.ts"
import { ReplayTransferDeadline } from "../service/ReplayTransferLayer.ts"
import { TensorEngine } from "../service/TensorEngine.ts"
import { cpu } from "../tensor/Device.ts"
import { ReplaySubject, type ReplaySubjectShape } from "./conformance/ReplaySubject.ts"

/** The family whose memory the backend is judged on: the first that it names. */
export const familyOf = ({ deviceFamilies }: BackendDescriptor): string =>
  deviceFamilies.find((family) => family !== "*") ?? cpu.family

/** The backend's own engine, or the one that is registered for its family. */
export const engineOf = (
  registry: BackendRegistryShape,
  descriptor: BackendDescriptor,
  options: BackendOptions
): Layer.Layer<TensorEngine, BackendError> =>
  descriptor.tensorEngine !== undefined
    ? descriptor.tensorEngine(options)
    : Layer.unwrap(
        Effect.map(registry.forFamily(familyOf(descriptor), "tensorEngine"), (owner) => owner.tensorEngine!({}))
      )

/** Memory that a collector would share, where a backend offers it. */
const hostMemoryOf = (registry: BackendRegistryShape) =>
  Effect.option(
    Effect.flatMap(registry.forFamily(cpu.family, "hostMemory"), (owner) => Layer.build(owner.hostMemory!({})))
  )

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
      return {
        build: ({ ringDepth, deadline }) =>
          Effect.map(
            Layer.build(
              descriptor.replayTransfer!(device, ringDepth, options, engineLayer).pipe(
                Layer.provide(deadline === undefined ? Layer.empty : Layer.succeed(ReplayTransferDeadline, deadline))
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
