// SPDX-License-Identifier: Apache-2.0
/**
 * Ranks of one process, each with a simulated device of its own: what tests of the engine and the drivers run on.
 */

import { descriptor as host } from "@tensorferry/backend-torch-copy"
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import type { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as CudaEngine from "@tensorferry/gpu/TensorEngine"
import { engineOptions } from "@tensorferry/simulators/gpuEngine"
import type { VirtualClusterOptions } from "@tensorferry/testing"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as CudaDriver from "../src/CopyDriver.ts"
import type { CudaOptions } from "../src/options.ts"
import type { DriverKind } from "../src/planning/route.ts"

/** Small sizes, so that little data passes through every way; the same on all ranks. */
export const testOptions: CudaOptions = { ...engineOptions, stagingBytes: 2 ** 18, directBytes: 2 ** 14 }

export const kinds: ReadonlyArray<DriverKind> = ["cuda", "cuda-ipc", "nccl"]

/** Engines for the ranks of a cluster, each on the next device. */
export const engines = (options: CudaOptions = {}): Layer.Layer<TensorEngine, BackendError> => {
  let next = 0
  return Layer.unwrap(Effect.sync(() => CudaEngine.layer({ ...testOptions, ...options, device: next++ })))
}

export const driverOf = (
  kind: DriverKind,
  options: CudaOptions = {}
): Layer.Layer<CopyDriver, BackendError, ProcessGroup | TensorEngine> =>
  CudaDriver.layer(kind, { ...testOptions, ...options })

export const clusterOf =
  (kind: DriverKind, options: CudaOptions = {}) =>
  (): Omit<VirtualClusterOptions<BackendError>, "size"> => ({
    engine: engines(options),
    driver: () => driverOf(kind, options)
  })

/** Devices whose memory passes through host buffers; little of it, so that one transfer goes around the ring several times. */
export const stagedCluster = (): Omit<VirtualClusterOptions<BackendError>, "size"> => ({
  engine: engines(),
  driver: () => host.stagedDriver!({}, host.tensorEngine!({}), { messageBytes: 4096, stagingBytes: 2 ** 16 })
})
