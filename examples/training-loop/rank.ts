// SPDX-License-Identifier: Apache-2.0
/**
 * One rank of a training job with a server beside it. Ranks 0 and 1 fit `weights` to `target` by gradient descent, each its
 * half of the rows; rank 2 serves the whole matrix in MXFP8, and checks what it serves after every step.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import { descriptors } from "@tensorferry/backend-torch-copy"
import { copyService } from "@tensorferry/core/backend/BackendLayer"
import { registryLayer } from "@tensorferry/core/backend/BackendRegistry"
import * as ProcessGroupEnvironment from "@tensorferry/core/group/ProcessGroupEnvironment"
import { parameterMetadata } from "@tensorferry/core/layout/ParameterMetadata"
import * as Refit from "@tensorferry/core/refit/Refit"
import { PlanCache } from "@tensorferry/core/reshard/PlanCache"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { mxfp8Recipe, type QuantizedTensor } from "@tensorferry/core/tensor/QuantizedTensor"
import { type Tensor, tensorBytes } from "@tensorferry/core/tensor/Tensor"
import { tensorDict } from "@tensorferry/core/tensor/TensorDict"
import { mxfp8 } from "@tensorferry/core/transform/Quantize"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"

const [rows, columns] = [64, 128]
const trainers = [0, 1]
const server = 2
const steps = 5
const rate = 0.3
const block = 32

/** Weights that training is to find, in [-2, 2). */
const target = Float32Array.from({ length: rows * columns }, (_, at) => (((at * 7919) % 4001) - 2000) / 1000)

/** A float32 tensor of the host as numbers; what is written here is what the tensor holds. */
const numbersOf = (tensor: Tensor): Float32Array => {
  const bytes = tensorBytes(tensor) ?? new Uint8Array()
  return new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4)
}

/** Mean squared distance from the target. */
const lossOf = (values: Float32Array, from = 0): number =>
  values.reduce((sum, value, at) => sum + (value - target[from + at]!) ** 2, 0) / values.length

/** MXFP8 keeps 3 bits of a fraction: an element is off by at most a sixteenth of its block's largest magnitude. */
const worstOf = (served: Float32Array, trained: Float32Array): number => {
  let worst = 0
  for (let start = 0; start < trained.length; start += block) {
    const largest = Math.max(...trained.subarray(start, start + block).map(Math.abs))
    for (let at = start; at < start + block; at++) {
      worst = Math.max(worst, Math.abs(served[at]! - trained[at]!) / (largest || 1))
    }
  }
  return worst
}

const trainer = Effect.gen(function* () {
  const group = yield* ProcessGroup
  const engine = yield* TensorEngine
  const shard = yield* engine.allocate("float32", [rows / trainers.length, columns])
  const weights = numbersOf(shard).fill(0)
  const first = group.rank * weights.length
  const refit = yield* Refit.prepare({
    source: [
      parameterMetadata({
        name: "weights",
        shape: shard.shape,
        dtype: "float32",
        ownerRank: group.rank,
        isTp: true,
        partitionDim: 0,
        tensorParallelGroupRanks: trainers
      })
    ]
  })
  for (let step = 1; step <= steps; step++) {
    for (const [at, value] of weights.entries()) weights[at] = value - rate * (value - target[first + at]!)
    yield* refit.swap(tensorDict([["weights", shard]]), undefined, { transform: mxfp8({ side: "sender" }) })
    // Only so that the server can check itself.
    yield* group.allGather(`step ${step}`, Uint8Array.from(tensorBytes(shard) ?? []))
  }
})

const serve = Effect.gen(function* () {
  const group = yield* ProcessGroup
  const engine = yield* TensorEngine
  const served: QuantizedTensor = {
    _tag: "QuantizedTensor",
    data: yield* engine.allocate("float8_e4m3fn", [rows, columns]),
    scale: yield* engine.allocate("float8_e8m0fnu", [rows, columns / block]),
    recipe: mxfp8Recipe("rceil")
  }
  const wide = yield* engine.allocate("float32", [rows, columns])
  const refit = yield* Refit.prepare({
    destination: [
      parameterMetadata({ name: "weights", shape: [rows, columns], dtype: "float32", ownerRank: group.rank })
    ]
  })
  for (let step = 1; step <= steps; step++) {
    const { copy } = yield* refit.swap(undefined, tensorDict([["weights", served]]), {
      transform: mxfp8({ side: "sender" })
    })
    yield* engine.dequantize(served, wide)
    const gathered = yield* group.allGather(`step ${step}`, new Uint8Array())
    const trained = new Float32Array(Uint8Array.from(gathered.flatMap((bytes) => [...bytes])).buffer)
    const worst = worstOf(numbersOf(wide), trained)
    yield* Console.log(
      `step ${step}: loss ${lossOf(trained).toFixed(4)} trained, ${lossOf(numbersOf(wide)).toFixed(4)} served; ` +
        `${copy.remoteBytesReceived} bytes for ${rows * columns * 4} of weights, off by at most ${worst.toFixed(4)} of a block's largest`
    )
    if (trained.length !== rows * columns || worst > 1 / 16) {
      yield* Console.error("What is served is not what was trained.")
      process.exitCode = 1
    }
  }
})

const program = Effect.flatMap(ProcessGroup, ({ rank }) => (rank === server ? serve : trainer))

const services = copyService({ backend: "auto" }).pipe(
  Layer.provide(registryLayer(descriptors)),
  Layer.provideMerge(ProcessGroupEnvironment.layer),
  Layer.merge(PlanCache.layer)
)

NodeRuntime.runMain(Effect.scoped(Effect.provide(program, services)))
