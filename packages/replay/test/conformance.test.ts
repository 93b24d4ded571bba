// SPDX-License-Identifier: Apache-2.0
/**
 * Rings against all cases of the kit: in host memory as it was before there were others, by copies of an engine without
 * kernels, and by the kernel of the embedded host engine.
 */
import { TensorEngine as HostEngine, HostMemory } from "@tensorferry/backend-torch-copy"
import { HostMemory as HostMemoryService } from "@tensorferry/core/service/HostMemory"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import { RingSubject } from "@tensorferry/testing/ring/RingSubject"
import { deviceRingSubject, hostRingSubject } from "@tensorferry/testing/ring/ringSubjects"
import { describeReplayRing } from "@tensorferry/testing/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"

const overEngine = Layer.effect(RingSubject, deviceRingSubject)

const onHost = Layer.effect(
  RingSubject,
  HostMemoryService.use((memory) => Effect.succeed(hostRingSubject(memory.allocate)))
)

/** The engine as one that has no kernels for rings. */
const withoutKernels = Layer.effect(
  TensorEngine,
  TensorEngine.use(({ openRing: _, ...engine }) => Effect.succeed(engine))
)

describeReplayRing("the host", Layer.provide(onHost, HostMemory.layer))
describeReplayRing("copies of the reference engine", Layer.provide(overEngine, ReferenceEngine.layer()))
describeReplayRing(
  "copies of the host engine",
  Layer.provide(overEngine, Layer.provide(withoutKernels, HostEngine.layer()))
)
describeReplayRing("kernels of the host engine", Layer.provide(overEngine, HostEngine.layer()))
