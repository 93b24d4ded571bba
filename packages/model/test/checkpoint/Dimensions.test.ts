// SPDX-License-Identifier: Apache-2.0
/** A header with more dimensions than tensors have is refused before it takes memory. */
import { dimensionLimit } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import { describe, expect, it } from "vitest"
import { parseHeader } from "../../src/checkpoint/SafetensorsHeader.ts"

/** A file of one tensor of one byte. */
const fileOf = (dimensions: number): Uint8Array => {
  const shape = `[${"1,".repeat(dimensions - 1)}1]`
  const json = new TextEncoder().encode(`{"w":{"dtype":"U8","shape":${shape},"data_offsets":[0,1]}}`)
  const bytes = new Uint8Array(8 + json.length + 1)
  new DataView(bytes.buffer).setBigUint64(0, BigInt(json.length), true)
  bytes.set(json, 8)
  return bytes
}

describe("many dimensions", () => {
  it("of a checkpoint's tensor are refused before they take memory", () => {
    expect(Result.isSuccess(parseHeader(fileOf(dimensionLimit), fileOf(dimensionLimit).length))).toBe(true)
    const bytes = fileOf(15_000_000)
    const before = process.memoryUsage().heapUsed
    const parsed = parseHeader(bytes, bytes.length)
    // The text itself takes 30 MB; every dimension took about 400 bytes more.
    expect(process.memoryUsage().heapUsed - before).toBeLessThan(200e6)
    const { reason } = Result.getOrThrow(Result.flip(parsed))
    expect(reason._tag).toBe("TensorInvalid")
    expect(reason.paramName).toBe("w")
    expect(reason.detail).toContain(`more than ${dimensionLimit} items`)
  })
})
