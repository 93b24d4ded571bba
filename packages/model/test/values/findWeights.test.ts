// SPDX-License-Identifier: Apache-2.0
/** Which stored tensors are one weight, by the names that quantizers publish, and what is refused. */
import { assert, describe, it } from "@effect/vitest"
import type { DType } from "@tensorferry/core/base/DType"
import { findWeights, gridOf } from "../../src/values/ValueForm.ts"

const weightsOf = (
  stored: Record<string, readonly [DType, ...ReadonlyArray<number>]>,
  block?: readonly [number, number]
) =>
  findWeights(
    Object.entries(stored).map(([name, [dtype, ...shape]]) => ({ name, dtype, shape })),
    block === undefined ? {} : { block }
  ).map(({ name, shape, text, form }) => [name, shape.join("x"), form.kind === "unreadable" ? "unreadable" : text])

describe("the weights of a model", () => {
  it("are codes with the scales beside them, under the names that are published", () => {
    assert.deepStrictEqual(
      weightsOf({
        "a.weight": ["float8_e4m3fn", 384, 256],
        "a.weight_scale_inv": ["float32", 3, 2],
        "b.weight": ["float8_e4m3fn", 64, 96],
        "b.weight_scale": ["bfloat16", 64, 1],
        "b.input_scale": ["float32"],
        "c.weight": ["float8_e4m3fn", 64, 96],
        "c.weight_scale": ["float32"],
        "d.weight": ["int8", 8, 4],
        "d.weight_scale": ["float32", 8, 1],
        "e.weight": ["float8_e4m3fn", 8, 96],
        "e.weight_scale": ["float8_e8m0fnu", 8, 3],
        experts: ["float8_e4m3fn", 4, 256, 128],
        experts_scale_inv: ["float32", 4, 2, 1],
        "norm.weight": ["bfloat16", 8],
        "plain.weight": ["float8_e5m2", 8, 8],
        "plain.k_scale": ["float32"]
      }),
      [
        ["a.weight", "384x256", "float8_e4m3fn block 128x128"],
        ["b.weight", "64x96", "float8_e4m3fn per channel"],
        ["c.weight", "64x96", "float8_e4m3fn per tensor"],
        ["d.weight", "8x4", "int8 per channel"],
        ["e.weight", "8x96", "mxfp8"],
        ["experts", "4x256x128", "float8_e4m3fn block 128x128"],
        ["norm.weight", "8", "bfloat16"],
        ["plain.weight", "8x8", "float8_e5m2"],
        ["plain.k_scale", "", "float32"]
      ]
    )
  })

  it("are pairs to a byte, and blocks of gpt-oss with inputs before outputs", () => {
    assert.deepStrictEqual(
      weightsOf({
        "a.weight": ["uint8", 8, 32],
        "a.weight_scale": ["float8_e4m3fn", 8, 4],
        "a.weight_scale_2": ["float32"],
        "b.weight_packed": ["uint8", 8, 32],
        "b.weight_scale": ["float8_e4m3fn", 8, 4],
        "b.weight_global_scale": ["float32", 1],
        "c.weight_packed": ["uint8", 8, 32],
        "c.weight_scale": ["uint8", 8, 2],
        gate_up_proj_blocks: ["uint8", 4, 96, 2, 16],
        gate_up_proj_scales: ["uint8", 4, 96, 2],
        gate_up_proj_bias: ["bfloat16", 4, 96]
      }),
      [
        ["a.weight", "8x64", "nvfp4 group 16"],
        ["b.weight", "8x64", "nvfp4 group 16"],
        ["c.weight", "8x64", "mxfp4 group 32"],
        ["gate_up_proj", "4x64x96", "mxfp4 blocks of 32"],
        ["gate_up_proj_bias", "4x96", "bfloat16"]
      ]
    )
  })

  it("have no values where words are packed, tables or zero points stand beside them, or scales do not fit", () => {
    assert.deepStrictEqual(
      weightsOf({
        "a.qweight": ["int32", 64, 8],
        "a.qzeros": ["int32", 1, 8],
        "a.scales": ["float16", 1, 64],
        "b.weight_packed": ["int32", 64, 8],
        "b.weight_scale": ["bfloat16", 64, 1],
        "b.weight_shape": ["int64", 2],
        "c.weight": ["uint8", 2048, 1],
        "c.weight.absmax": ["uint8", 64],
        "c.weight.quant_map": ["float32", 16],
        "c.weight.quant_state.bitsandbytes__nf4": ["uint8", 90],
        "d.weight": ["int8", 8, 8],
        "d.weight_scale": ["float32", 8, 1],
        "d.weight_zero_point": ["int8", 8, 1],
        "e.weight": ["float8_e4m3fn", 100, 100],
        "e.weight_scale_inv": ["float32", 7, 3, 2],
        "f.weight": ["float8_e4m3fn", 8, 8],
        "f.qscale_weight": ["float32"]
      }).map(([name, , kind]) => [name, kind]),
      ["a", "b", "c", "d", "e", "f"].map((module) => [`${module}.weight`, "unreadable"])
    )
  })

  it("are scaled in blocks of the size that the configuration states, where several would fit", () => {
    assert.deepStrictEqual(gridOf([192, 256], [2, 2])?.per, [128, 128])
    assert.deepStrictEqual(gridOf([192, 256], [2, 2], [96, 128])?.per, [96, 128])
    assert.deepStrictEqual(gridOf([8, 4], [8])?.per, [1])
    assert.isUndefined(gridOf([8, 4], [7]))
  })
})
