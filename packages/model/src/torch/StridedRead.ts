// SPDX-License-Identifier: Apache-2.0
/**
 * Reads regions of a tensor that lies in a file with strides, as torch.save stores views.
 *
 * Invariant: memory stays bounded whatever the strides, and elements are read where they lie: nothing before or behind the
 * span of the region is read.
 */
import { bitsOf } from "@tensorferry/core/base/DType"
import { elementCount, isEmptyRegion, type Region, regionShape, rowMajorStrides } from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { CheckpointError } from "../checkpoint/CheckpointError.ts"
import { type OpenFile, readFully } from "../checkpoint/FileAccess.ts"
import { regionRuns } from "../checkpoint/RegionRuns.ts"
import { readRuns } from "../checkpoint/Safetensors.ts"
import type { StoredTensor } from "./TorchTensors.ts"

/** Bytes between the first and the last element of one read. */
const spanBytes = 4 * 1024 * 1024

const isDense = ({ shape, strides }: StoredTensor): boolean => {
  const dense = rowMajorStrides(shape)
  return shape.every((length, dim) => length <= 1 || strides[dim] === dense[dim])
}

/** Cuts along the widest stride until the elements of a part lie close together. */
const closeParts = (region: Region, strides: ReadonlyArray<number>, most: number): ReadonlyArray<Region> => {
  const span = region.reduce((sum, [start, stop], dim) => sum + (stop - start - 1) * strides[dim]!, 1)
  const cuttable = [...region.keys()].filter((dim) => region[dim]![1] - region[dim]![0] > 1 && strides[dim]! > 0)
  if (span <= most || cuttable.length === 0) return [region]
  const dim = cuttable.reduce((widest, one) => (strides[one]! > strides[widest]! ? one : widest))
  const rest = span - (region[dim]![1] - region[dim]![0] - 1) * strides[dim]!
  const step = Math.max(1, Math.floor((most - rest) / strides[dim]!) + 1)
  const parts: Array<Region> = []
  for (let start = region[dim]![0]; start < region[dim]![1]; start += step) {
    const stop = Math.min(start + step, region[dim]![1])
    const part = region.map((interval, at) => (at === dim ? ([start, stop] as const) : interval))
    parts.push(...(step === 1 ? closeParts(part, strides, most) : [part]))
  }
  return parts
}

/**
 * Reads `region` of a tensor whose storage begins at byte `base` of the file into `into`, dense and row-major. The region
 * lies inside the tensor, and `into` has its bytes.
 */
export const readStrided = (
  file: OpenFile,
  base: number,
  tensor: StoredTensor,
  region: Region,
  into: Uint8Array
): Effect.Effect<void, CheckpointError> =>
  Effect.gen(function* () {
    const { dtype, offset, shape, strides } = tensor
    if (isEmptyRegion(region)) return
    const width = bitsOf(dtype) / 8
    if (isDense(tensor)) {
      // Whole bytes always: types of PyTorch's storages are not narrower.
      return yield* readRuns(file, base + offset * width, Result.getOrThrow(regionRuns(shape, region, width * 8)), into)
    }
    const target = rowMajorStrides(regionShape(region))
    const most = Math.floor(spanBytes / width)
    const block = new Uint8Array(spanBytes)
    for (const part of closeParts(region, strides, most)) {
      const lengths = regionShape(part)
      const first = part.reduce((sum, [start], dim) => sum + start * strides[dim]!, 0)
      const span = lengths.reduce((sum, length, dim) => sum + (length - 1) * strides[dim]!, 1)
      const bytes = block.subarray(0, span * width)
      yield* readFully(file, bytes, base + (offset + first) * width)
      const start = part.reduce((sum, [from], dim) => sum + (from - region[dim]![0]) * target[dim]!, 0)
      const index = new Array<number>(lengths.length).fill(0)
      for (let left = elementCount(lengths), from = 0, to = start; left > 0; left--) {
        for (let byte = 0; byte < width; byte++) into[to * width + byte] = bytes[from * width + byte]!
        for (let dim = lengths.length - 1; dim >= 0; dim--) {
          from += strides[dim]!
          to += target[dim]!
          index[dim]! += 1
          if (index[dim]! < lengths[dim]!) break
          from -= strides[dim]! * lengths[dim]!
          to -= target[dim]! * lengths[dim]!
          index[dim] = 0
        }
      }
    }
  })
