// SPDX-License-Identifier: Apache-2.0
/** Descriptors that state something else than their engine or driver does, one for every field. */
import type { BackendDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import type { CopyDriverCapabilities } from "@tensorferry/core/service/CopyDriver"
import type { TensorEngineCapabilities } from "@tensorferry/core/service/TensorEngine"
import type { Lie } from "./Lie.ts"

type Stated = Pick<BackendDescriptor["capabilities"], "copyDriver" | "tensorEngine">

/** A lie that a descriptor tells. */
export type DescriptorLie = Lie<Stated>

const aboutDriver = (name: string, change: (honest: CopyDriverCapabilities) => Partial<CopyDriverCapabilities>) => ({
  name,
  caughtBy: "the descriptor states the driver's capabilities",
  tell: ({ copyDriver, ...rest }: Stated): Stated =>
    copyDriver === undefined ? rest : { ...rest, copyDriver: { ...copyDriver, ...change(copyDriver) } }
})

const aboutEngine = (
  name: string,
  change: (honest: TensorEngineCapabilities) => Partial<TensorEngineCapabilities>
) => ({
  name,
  caughtBy: "the descriptor states the engine's capabilities",
  tell: ({ tensorEngine, ...rest }: Stated): Stated =>
    tensorEngine === undefined ? rest : { ...rest, tensorEngine: { ...tensorEngine, ...change(tensorEngine) } }
})

/** Lies about any driver and any engine. */
export const descriptorLies: ReadonlyArray<DescriptorLie> = [
  aboutDriver("states another gather", ({ gather }) => ({ gather: !gather })),
  aboutDriver("states another barrier", ({ requiresProcessGroupBarrier }) => ({
    requiresProcessGroupBarrier: !requiresProcessGroupBarrier
  })),
  aboutDriver("states another need of task ids", ({ requiresTaskId }) => ({ requiresTaskId: !requiresTaskId })),
  aboutDriver("states one more device family", ({ deviceFamilies }) => ({
    deviceFamilies: [...deviceFamilies, "tpu"]
  })),
  aboutDriver("states longer messages", ({ maxMessageBytes }) => ({ maxMessageBytes: maxMessageBytes + 1 })),
  aboutEngine("states other casts", ({ cast }) => ({ cast: !cast })),
  aboutEngine("states other reductions", ({ reduce }) => ({ reduce: !reduce })),
  aboutEngine("states other block scaling", ({ quantize }) => ({ quantize: quantize.length === 0 ? ["mxfp8"] : [] })),
  aboutEngine("states another visibility", ({ hostVisible }) => ({ hostVisible: !hostVisible }))
]
