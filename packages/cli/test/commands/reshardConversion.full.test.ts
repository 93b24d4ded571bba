// SPDX-License-Identifier: Apache-2.0
/** `reshard --transform` and `--dtype`, and `verify --tolerance`: proved against the checkpoint, and refused where it must be. */
import { writeFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { writeSafetensors } from "@tensorferry/model/checkpoint/SafetensorsWriter"
import { distanceOf } from "@tensorferry/model/compareValues"
import { parseTransform } from "@tensorferry/model/conversion"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { afterAll } from "vitest"
import { endAll, run, scratch } from "../support/command.ts"

afterAll(endAll)

/** bfloat16 numbers around 1, over a few powers of two. */
const numbers = (count: number, seed: number): Uint8Array => {
  const halves = new Uint16Array(count)
  for (let at = 0; at < count; at++) {
    const mixed = Math.imul(at + 1, 2654435761 + seed) >>> 0
    halves[at] = (mixed & 0x807f) | ((120 + ((mixed >>> 20) % 10)) << 7)
  }
  return new Uint8Array(halves.buffer)
}

const entries = [
  { name: "a.up.weight", dtype: "bfloat16" as const, shape: [16, 96], bytes: numbers(16 * 96, 1) },
  { name: "a.down.weight", dtype: "bfloat16" as const, shape: [6, 128], bytes: numbers(6 * 128, 2) },
  { name: "norm.weight", dtype: "bfloat16" as const, shape: [40], bytes: numbers(40, 3) }
]

describe("what is asked for", () => {
  it("is read in any order, and refused by name", () => {
    const read = (text: string) => Result.getOrElse(parseTransform(text), (fault) => fault)
    assert.deepStrictEqual(read("mxfp8"), { rule: "rceil", side: "receiver" })
    assert.deepStrictEqual(read("mxfp8:sender:ocp_floor"), { rule: "ocp_floor", side: "sender" })
    assert.deepStrictEqual(read("mxfp8:rceil_te"), { rule: "rceil_te", side: "receiver" })
    assert.strictEqual(read("int4"), 'There is no transform "int4".')
    assert.strictEqual(read("mxfp8:round"), 'mxfp8 knows no "round".')
    assert.strictEqual(read("mxfp8:sender:receiver"), '"mxfp8:sender:receiver" says the same thing twice.')
  })

  it("distances are parts of a block's largest value, and blocks end with their row", () => {
    const a = Float32Array.of(1, 0.5, 100, Number.NaN)
    assert.deepStrictEqual(distanceOf(a, Float32Array.of(1, 0.25, 100, Number.NaN), 2), { relative: 0.25, at: 1 })
    assert.deepStrictEqual(distanceOf(a, Float32Array.of(1, 0.5, 99, Number.NaN), 4), {
      relative: 0.01,
      at: 2
    })
    assert.strictEqual(distanceOf(a, Float32Array.of(1, 0.5, 100, 1), 4).relative, Number.POSITIVE_INFINITY)
    assert.strictEqual(distanceOf(Float32Array.of(0, -0), Float32Array.of(0, 0), 2).relative, 0)
  })
})

describe("the command", () => {
  it("quantizes on the way with the same bytes by either side, within tolerance of the checkpoint", async () => {
    using folder = scratch()
    const model = join(folder.path, "model.safetensors")
    await Effect.runPromise(
      writeSafetensors(
        model,
        entries.map(({ bytes: data, ...entry }) => ({ ...entry, data }))
      )
    )
    const rules = join(folder.path, "rules.json")
    writeFileSync(
      rules,
      JSON.stringify({
        rules: [
          { match: "*up.weight", shard: 0 },
          { match: "*down.weight", shard: 1 },
          { match: "norm.weight", shard: "replicate" }
        ]
      })
    )
    const [wide, narrow] = ["receiver", "sender"].map((side) => join(folder.path, side))
    const reshard = (to: number, ...args: ReadonlyArray<string>) =>
      run(["reshard", model, "--rules", rules, "--from", "tp=1", "--to", `tp=${to}`, ...args])
    for (const [side, out] of [
      ["receiver", wide],
      ["sender", narrow]
    ] as const) {
      const made = await reshard(2, "--transform", `mxfp8:rceil:${side}`, "--out", out!)
      assert.strictEqual(made.code, 0, made.stderr)
      assert.match(made.stdout, /bit-identical to .* as mxfp8 by rceil, quantized by the/)
    }
    const same = await run(["verify", wide!, narrow!])
    assert.strictEqual(same.code, 0, same.stdout)
    const close = await run(["verify", model, wide!, "--tolerance", "0.07"])
    assert.strictEqual(close.code, 0, close.stdout)
    assert.match(close.stdout, /3 tensors/)
    const far = await run(["verify", model, wide!, "--tolerance", "0.001"])
    assert.strictEqual(far.code, 1)
    assert.match(far.stdout, /a\.up\.weight.*of its block apart/)
    const bytes = await run(["verify", model, wide!])
    assert.strictEqual(bytes.code, 1)
    // Three ranks would cut blocks of the columns of one tensor: 128 is not three times 32.
    const cut = await reshard(3, "--transform", "mxfp8")
    assert.strictEqual(cut.code, 1)
    assert.match(cut.stderr, /a\.down\.weight/)
    const cast = await reshard(2, "--dtype", "float32", "--json")
    assert.strictEqual(cast.code, 0, cast.stderr)
    assert.isTrue((JSON.parse(cast.stdout) as { readonly verified: boolean }).verified)
    const wrong = await reshard(2, "--transform", "int4")
    assert.strictEqual(wrong.code, 2)
  }, 120_000)

  it("takes the values of a quantized model, not its codes, and verify tells both apart", async () => {
    using folder = scratch()
    const at = (name: string) => join(folder.path, name)
    const write = (file: string, tensors: Parameters<typeof writeSafetensors>[1]) =>
      Effect.runPromise(writeSafetensors(at(file), tensors) as Effect.Effect<void>)
    // 1.0 as a code, in three blocks of 128 rows whose scales are 2, 3 and 4.
    const codes = { name: "mlp.up_proj.weight", dtype: "float8_e4m3fn" as const, shape: [384, 128] }
    const scale = {
      name: "mlp.up_proj.weight_scale_inv",
      dtype: "float32" as const,
      shape: [3, 1],
      data: new Uint8Array(Float32Array.of(2, 3, 4).buffer)
    }
    const bias = {
      name: "mlp.gate.e_score_correction_bias",
      dtype: "float32" as const,
      shape: [256],
      data: new Uint8Array(Float32Array.from({ length: 256 }, (_, expert) => 6.8 + expert / 1000).buffer)
    }
    const values = (of: (row: number) => number) => {
      const halves = Uint16Array.from({ length: 384 * 128 }, (_, place) => of(Math.floor(place / 128)))
      return { ...codes, dtype: "bfloat16" as const, data: new Uint8Array(halves.buffer) }
    }
    await write("fp8.safetensors", [{ ...codes, data: new Uint8Array(384 * 128).fill(0x38) }, scale, bias])
    await write("right.safetensors", [values((row) => [0x4000, 0x4040, 0x4080][Math.floor(row / 128)]!), bias])
    await write("codes.safetensors", [values(() => 0x3f80), scale, bias])
    const cut = ["--type", "*.bias=keep", "--from", "tp=1", "--to", "tp=2", "--rules", at("rules.json")]
    writeFileSync(
      at("rules.json"),
      JSON.stringify({
        rules: [
          { match: "*up_proj.weight*", shard: 0 },
          { match: "*", shard: "replicate" }
        ]
      })
    )
    const made = await run(["reshard", at("fp8.safetensors"), ...cut, "--dtype", "bfloat16", "--out", at("out")])
    assert.strictEqual(made.code, 0, made.stderr)
    assert.match(made.stdout, /dequantized: float8_e4m3fn block 128x128 → bfloat16 \(1 tensor, 49152 elements/)
    assert.match(made.stdout, /kept: float32 \(1 tensor, 256 elements, as mlp\.gate\.e_score_correction_bias/)
    const verify = (one: string, two: string, ...more: ReadonlyArray<string>) =>
      run(["verify", at(one), at(two), ...more])
    assert.strictEqual((await verify("out", "right.safetensors")).code, 0)
    assert.strictEqual((await verify("fp8.safetensors", "out", "--tolerance", "0.001")).code, 0)
    const wrong = await verify("fp8.safetensors", "codes.safetensors", "--tolerance", "0.001")
    assert.strictEqual(wrong.code, 1, wrong.stdout)
    assert.match(wrong.stdout, /mlp\.up_proj\.weight .*apart/)
    for (const [args, words] of [
      [["--dtype", "float8_e5m2"], /quantized already, and their codes are not cast/],
      [["--transform", "mxfp8"], /two forms would be mixed/]
    ] as const) {
      const refused = await run(["reshard", at("fp8.safetensors"), ...cut, ...args])
      assert.strictEqual(refused.code, 1)
      assert.match(refused.stderr, words)
    }
    // Codes that nobody here understands: an error where they differ, and equal only bit by bit.
    const words = { name: "q.qweight", dtype: "int32" as const, shape: [4, 2], data: new Uint8Array(32) }
    await write("awq.safetensors", [words])
    await write("other.safetensors", [{ ...words, data: new Uint8Array(32).fill(1) }])
    assert.strictEqual((await verify("awq.safetensors", "awq.safetensors", "--tolerance", "0.1")).code, 0)
    const incomparable = await verify("awq.safetensors", "other.safetensors", "--tolerance", "0.1")
    assert.strictEqual(incomparable.code, 1)
    assert.match(incomparable.stderr, /Unsupported .*cannot be compared/)
  }, 240_000)
})
