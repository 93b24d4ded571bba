// SPDX-License-Identifier: Apache-2.0
/**
 * The rules of quantized forms as C++ for hosts and devices give the bits of the rules in TypeScript, which the recordings of
 * this folder prove: every bfloat16 as a largest magnitude, random numbers of every type, every code under every kind of scale.
 */
import { spawnSync } from "node:child_process"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { dtypes } from "@tensorferry/core/base/DType"
import { type Fp8RuleName, fp8Rules } from "@tensorferry/model/quantize/fp8Rules"
import { type Mxfp4RuleName, mxfp4Rules } from "@tensorferry/model/quantize/mxfp4Rules"
import { type Mxfp8RuleName, mxfp8Rules } from "@tensorferry/model/quantize/mxfp8Rules"
import {
  bitsOfFloat,
  e4m3Code,
  e4m3Values,
  roundingOf,
  type SourceType,
  sourceTypes
} from "@tensorferry/model/quantize/numbers"
import { quantizeNvfp4, readNvfp4 } from "@tensorferry/model/quantize/nvfp4"
import { type Nvfp4Group, type Nvfp4Rule, type Nvfp4RuleName, nvfp4Rules } from "@tensorferry/model/quantize/nvfp4Rules"
import { e2m1Values } from "@tensorferry/model/values/codes"
import * as Result from "effect/Result"
import { afterAll, assert, beforeAll, describe, it } from "vitest"

const packages = join(import.meta.dirname, "../../../packages")
const folder = mkdtempSync(join(tmpdir(), "tensorferry-rules-"))
const program = join(folder, "quantize_rules")

const names = [
  ...Object.keys(mxfp8Rules).map((name) => `mxfp8/${name}`),
  ...Object.keys(fp8Rules).map((name) => `fp8/${name}`),
  ...Object.keys(mxfp4Rules).map((name) => `mxfp4/${name}`),
  ...Object.keys(nvfp4Rules).map((name) => `nvfp4/${name}`)
]

const run = (
  what: "codes" | "groups" | "read",
  rule: string,
  type: SourceType,
  global: readonly ["amax" | "stored", number],
  input: Uint32Array
): Uint32Array => {
  const values = [what, names.indexOf(rule), dtypes.indexOf(type), global[0], bitsOfFloat(global[1])].map(String)
  const ended = spawnSync(program, values, { input: new Uint8Array(input.buffer), maxBuffer: 2 ** 28 })
  assert.strictEqual(ended.status, 0)
  return new Uint32Array(ended.stdout.buffer.slice(ended.stdout.byteOffset), 0, ended.stdout.length / 4)
}

/** A seeded generator of 32 bits. */
const randomBits = (seed: number) => () => {
  seed = (seed + 0x9e3779b9) | 0
  let mixed = Math.imul(seed ^ (seed >>> 16), 0x21f0aaad)
  mixed = Math.imul(mixed ^ (mixed >>> 15), 0x735a2d97)
  return (mixed ^ (mixed >>> 15)) >>> 0
}

const nan = 0x7fc00000
const edges = [0, 1, 0x3fffff, 0x400000, 0x400001, 0x40000b, 0x40000c, 0x7fffff, 0x800000, 0x7f7fffff, 0x7f800000, nan]

/** A number of a type near a float32; a NaN of float16 has lost its sign. */
const ofType = (bits: number, type: SourceType): number => {
  const words = Uint32Array.of(bits)
  const value = new Float32Array(words.buffer)[0]!
  return type === "float16" && Number.isNaN(value)
    ? nan
    : Number.isNaN(value)
      ? bits
      : bitsOfFloat(roundingOf[type](value))
}

const float = (bits: number): number => new Float32Array(Uint32Array.of(bits).buffer)[0]!

/** Pairs of a largest magnitude and a value. */
const makePairs = (type: SourceType): Uint32Array => {
  const random = randomBits(type.length)
  const pairs: Array<number> = []
  const add = (amax: number, value: number) =>
    pairs.push(ofType(amax & 0x7fffffff, type) & 0x7fffffff, ofType(value >>> 0, type))
  for (let code = 0; code < 0x8000; code++) {
    const amax = code * 0x10000
    const sign = random() & 0x80000000
    add(amax, amax | sign)
    // Below the largest magnitude by up to twelve powers of two, and on numbers of few digits, where ties are.
    add(amax, (Math.max(0, amax - (random() % 0x6000000)) & 0xffe00000) | sign)
    add(amax, Math.max(0, amax - (random() % 0x6000000)) | sign)
  }
  for (const amax of edges) for (const value of edges) for (const sign of [0, 0x80000000]) add(amax, value | sign)
  for (let power = 0; power < 255; power++) {
    // Just above powers of two, where a logarithm misses some.
    for (let step = 0; step < 40; step++) add((power << 23) + step, (power << 23) - (step << 18))
    for (const step of [6, 448]) add(bitsOfFloat(Math.fround(float(power << 23) * step)) + (random() % 64), random())
  }
  for (let at = 0; at < 40_000; at++) add(random(), random())
  return Uint32Array.from(pairs)
}

interface Made {
  readonly stored: number
  readonly code: number
}

/** What the rule in TypeScript makes of one value. */
const expectedOf = (rule: string, amax: number, value: number, type: SourceType): Made => {
  const [form, name] = rule.split("/") as [string, string]
  if (form === "fp8") {
    const { scale, unit } = fp8Rules[name as Fp8RuleName].scaling(amax, type)
    return { stored: bitsOfFloat(Number.isNaN(scale) ? Number.NaN : scale), code: e4m3Code(unit(value)) }
  }
  const block =
    form === "mxfp8"
      ? mxfp8Rules[name as Mxfp8RuleName].block(amax, type)
      : mxfp4Rules[name as Mxfp4RuleName].block(amax, type)
  if (block === undefined) return { stored: 255, code: form === "mxfp8" ? 0x7f : 0 }
  return { stored: block.byte, code: block.code(value) }
}

const hex = (bits: number): string => bits.toString(16).padStart(8, "0")

const maxima = [1, 3.3, 0.0273, 2688, 65_504, 1e-4, 1e-9, 3e-38, 1e-44, 3e38, 0, Number.POSITIVE_INFINITY, Number.NaN]
const e2m1Of = ({ unit }: Nvfp4Group, value: number, nanCode: number): number => {
  const scaled = unit(value)
  if (Number.isNaN(scaled)) return nanCode
  const middles = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5]
  const below = middles.filter(
    (middle, at) => Math.abs(scaled) > middle || (Math.abs(scaled) === middle && at % 2 === 1)
  )
  return below.length | (scaled < 0 ? 8 : 0)
}

/** Defines the tests, over every `step`th pair of a largest magnitude and a value. */
export const testNativeRules = (step: number): void => {
  const pairsOf = new Map(sourceTypes.map((type) => [type, makePairs(type).filter((_, at) => (at >> 1) % step === 0)]))

  /** Compiled as addons are: without contraction. */
  beforeAll(() => {
    const source = join(packages, "native/test/programs/quantize_rules.cc")
    const options = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"]
    const made = spawnSync("c++", [...options, `-I${join(packages, "native/include")}`, source, "-o", program], {
      encoding: "utf8"
    })
    assert.strictEqual(made.status, 0, made.stderr)
  }, 120_000)
  afterAll(() => rmSync(folder, { recursive: true, force: true }))

  describe.each(names.filter((name) => !name.startsWith("nvfp4")))("%s as C++", (rule) => {
    it.each(sourceTypes)("stores the scales and gives the codes of TypeScript from %s", (type) => {
      const pairs = pairsOf.get(type)!
      const floats = new Float32Array(pairs.buffer)
      const found = run("codes", rule, type, ["stored", 1], pairs)
      for (let at = 0; at < pairs.length; at += 2) {
        const expected = expectedOf(rule, floats[at]!, floats[at + 1]!, type)
        if (found[at + 1] === expected.stored && found[at + 2] === expected.code) continue
        const [stored, code] = [hex(found[at + 1]!), hex(found[at + 2]!)]
        assert.fail(
          `amax ${hex(pairs[at]!)}, value ${hex(pairs[at + 1]!)}: ${stored} ${code}, TypeScript has ${hex(expected.stored)} ${hex(expected.code)}`
        )
      }
    })
  })

  describe.each(Object.keys(nvfp4Rules) as Array<Nvfp4RuleName>)("nvfp4/%s as C++", (name) => {
    const rule: Nvfp4Rule = nvfp4Rules[name]
    it.each(sourceTypes)("stores the scales and gives the codes of TypeScript from %s", (type) => {
      const all = pairsOf.get(type)!
      const thinned = all.filter((_, at) => (at >> 1) % (step === 1 ? 41 : 5) === 0)
      for (const given of step === 1 ? maxima : [1, 0.0273, 1e-44, Number.NaN]) {
        const amax = roundingOf[type](Math.fround(given))
        const pairs = given === 1 ? all : thinned
        const floats = new Float32Array(pairs.buffer)
        const made = rule.scaling(amax, type)
        const kinds = rule.stored === undefined ? (["amax"] as const) : (["amax", "stored"] as const)
        for (const kind of kinds) {
          const found = run("codes", `nvfp4/${name}`, type, [kind, kind === "amax" ? amax : made.global], pairs)
          const global = Number.isNaN(made.global) ? nan : bitsOfFloat(made.global)
          assert.strictEqual(found[0], global, `the global scale of ${given}`)
          for (let at = 0; at < pairs.length; at += 2) {
            const group = made.group(floats[at]!)
            const code = e2m1Of(group, floats[at + 1]!, rule.nanCode ?? 0)
            if (found[at + 1] === group.code && found[at + 2] === code) continue
            const [mine, theirs] = [found.slice(at + 1, at + 3), [group.code, code]]
            assert.fail(
              `${kind} ${given}, largest ${hex(pairs[at]!)}, value ${hex(pairs[at + 1]!)}: ${mine}, TypeScript has ${theirs}`
            )
          }
        }
      }
    })
  })

  describe("nvfp4/te_4over6 as C++", () => {
    it("chooses between two scales as TypeScript does", () => {
      const random = randomBits(46)
      const values = new Float32Array(16 * 4000)
      for (let at = 0; at < values.length; at++) values[at] = (random() / 2 ** 31 - 1) * 2 ** (((at / 16) | 0) % 12)
      const bfloats = values.map((value) => roundingOf.bfloat16(value))
      const matrix = { values: bfloats, rows: 4000, columns: 16, dtype: "bfloat16" } as const
      const largest = bfloats.reduce((most, value) => Math.max(most, Math.abs(value)), 0)
      const expected = Result.getOrThrow(quantizeNvfp4(matrix, "te_4over6"))
      const input = new Float32Array(17 * 4000)
      for (let group = 0; group < 4000; group++) {
        const own = bfloats.subarray(16 * group, 16 * group + 16)
        input[17 * group] = own.reduce((most, value) => Math.max(most, Math.abs(value)), 0)
        input.set(own, 17 * group + 1)
      }
      const made = run("groups", "nvfp4/te_4over6", "bfloat16", ["amax", largest], new Uint32Array(input.buffer))
      const [scales, codes] = [new Uint8Array(4000), new Uint8Array(8 * 4000)]
      for (let group = 0; group < 4000; group++) {
        scales[group] = made[17 * group]!
        for (let at = 0; at < 16; at++) codes[8 * group + (at >> 1)]! |= made[17 * group + 1 + at]! << (4 * (at & 1))
      }
      assert.deepStrictEqual(scales, expected.scales)
      assert.deepStrictEqual(codes, expected.data)
    })
  })

  describe("quantized values as C++", () => {
    it.each(Object.keys(nvfp4Rules) as Array<Nvfp4RuleName>)(
      "are read from nvfp4/%s as TypeScript reads them",
      (name) => {
        for (const global of [1, 0.37, 3e-5, 1e30, 1e-38, 0, Number.POSITIVE_INFINITY]) {
          // Each scale with all codes.
          const data = Uint8Array.from({ length: 256 * 8 }, (_, at) => (2 * (at % 8)) | ((2 * (at % 8) + 1) << 4))
          const scales = Uint8Array.from({ length: 256 }, (_, at) => at)
          const expected = readNvfp4({ data, scales, scaleShape: [256, 1], global: Math.fround(global) }, name)
          const input = Uint32Array.from({ length: 3 * 4096 }, (_, at) =>
            at % 3 === 0 ? Math.floor(at / 3) % 16 : at % 3 === 1 ? Math.floor(at / 48) : 0
          )
          const found = new Float32Array(
            run("read", `nvfp4/${name}`, "float32", ["stored", global], input).buffer,
            0,
            4096
          )
          expected.forEach((value, at) => {
            if (Object.is(found[at], value)) return
            assert.fail(`code ${at % 16}, scale ${at >> 4}: ${found[at]}, TypeScript has ${value}`)
          })
        }
      }
    )

    it("are those of numbers times scales in fp8 and the MX forms", () => {
      const scales = Array.from({ length: 256 }, (_, at) => at)
      for (const [rule, numbers] of [
        ["mxfp4/triton_up", e2m1Values],
        ["mxfp8/rceil", Array.from(e4m3Values)]
      ] as const) {
        const input = scales.flatMap((scale) => numbers.flatMap((_, code) => [code, scale, 0]))
        const made = run("read", rule, "float32", ["stored", 1], Uint32Array.from(input))
        const found = new Float32Array(made.buffer, 0, made.length)
        for (const scale of scales) {
          for (const [code, number] of numbers.entries()) {
            const value = scale === 255 ? Number.NaN : Math.fround(number * 2 ** (scale - 127))
            if (!Object.is(found[scale * numbers.length + code], value)) assert.fail(`code ${code}, scale ${scale}`)
          }
        }
      }
      const factors = [1, 0.1, 3e38, 1e-44, 0, Number.NaN].map(Math.fround)
      const input = factors.flatMap((scale) =>
        Array.from(e4m3Values, (_, code) => [code, bitsOfFloat(scale), 0]).flat()
      )
      const made = run("read", "fp8/deepgemm_fp32", "float32", ["stored", 1], Uint32Array.from(input))
      const found = new Float32Array(made.buffer, 0, made.length)
      for (const [at, factor] of factors.entries()) {
        for (const [code, number] of e4m3Values.entries()) {
          const value = Math.fround(number * factor)
          if (!Object.is(found[256 * at + code], value)) assert.fail(`code ${code} times ${factor}`)
        }
      }
    })
  })
}
