// SPDX-License-Identifier: Apache-2.0
/**
 * Means of the simulated driver to hold copies back, for `tensorferry backends conformance cuda --hooks`: kernels that only
 * take time take none there.
 */
import type { BackendDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import { optionsLayer } from "@tensorferry/core/backend/OptionsLayer"
import { simulator } from "@tensorferry/simulators/gpu"
import * as Effect from "effect/Effect"
import { CudaOptions } from "../src/options.ts"
import { layer } from "../src/ReplayTesting.ts"

const withOptions = optionsLayer(CudaOptions, "cuda", "See the options of the backend.")

/** The next copy stalls, and what is queued behind it on its stream with it. */
export const hold = Effect.asVoid(
  Effect.acquireRelease(
    Effect.sync(() => simulator.configure("stall=cudaMemcpyAsync:1")),
    () => Effect.sync(() => simulator.configure("clear=faults release=stalls"))
  )
)

export const replayTesting: NonNullable<BackendDescriptor["replayTesting"]> = (device, options) =>
  withOptions(options, (decoded) => layer(device, decoded, "cuda", () => hold))
