// SPDX-License-Identifier: Apache-2.0
/**
 * The quantize transform over every form: the bytes of quantizing whole for every cutting, side, layout of scales and round;
 * scales that are shared beyond a rank; and what is refused.
 */
import { assert, describe, it } from "@effect/vitest"
import { make } from "@tensorferry/testing/ReferenceEngine"
import { runCluster } from "@tensorferry/testing/VirtualCluster"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type { ReshardPlan } from "../../src/ir/ReshardPlan.ts"
import { executeReshardPlan } from "../../src/reshard/executeReshardPlan.ts"
import { TensorEngine } from "../../src/service/TensorEngine.ts"
import {
  type BlockSize,
  codeShapeOf,
  codeTypeOf,
  hasGlobal,
  isQuantized,
  layoutOf,
  type QuantizationRecipe,
  type QuantizedForm,
  type QuantizedTensor,
  quantizationRecipe,
  type ScaleLayout,
  scaleShapeOf,
  scaleTypesOf
} from "../../src/tensor/QuantizedTensor.ts"
import type { Tensor } from "../../src/tensor/Tensor.ts"
import { type TensorDict, tensorDict } from "../../src/tensor/TensorDict.ts"
import { quantize } from "../../src/transform/Quantize.ts"
import { type KnownMaxima, ownMaxima, type QuantizeOptions } from "../../src/transform/QuantizeWork.ts"
import { laidOutShape } from "../../src/transform/ScaleLayouts.ts"
import { plansOf, rosterOf } from "../reshard/executeSupport.ts"

const tensors = [
  { name: "up.weight", dtype: "bfloat16", shape: [24, 96] },
  { name: "down.weight", dtype: "bfloat16", shape: [5, 192] },
  { name: "experts.weight", dtype: "bfloat16", shape: [2, 6, 64] }
] as const
const rules = {
  rules: [
    { match: "up.weight", shard: 0 },
    { match: "down.weight", shard: 1 },
    { match: "experts.weight", shard: "replicate" }
  ]
} as const
const roster = (tp: number, firstRank = 0) => rosterOf(tp, { firstRank, tensors: [...tensors], rules })

type Side = ReshardPlan["sourceTensors"]

const writeValues = (tensor: Tensor, seed: number) =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const wide = yield* engine.allocate("float32", tensor.shape)
    const view = new DataView(wide.storage.bytes!.buffer, wide.storage.bytes!.byteOffset)
    let state = seed
    for (let at = 0; at < wide.storage.byteLength / 4; at++) {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0
      view.setFloat32(4 * at, (state / 2 ** 32 - 0.5) * 2 ** ((state >>> 8) % 9), true)
    }
    yield* engine.copy([{ dst: tensor, src: wide }])
  })

const plainDict = (side: Side, seed?: number) =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const entries: Array<readonly [string, Tensor]> = []
    for (const { dtype, name, shape } of side) {
      const tensor = yield* engine.allocate(dtype, shape)
      if (seed !== undefined) yield* writeValues(tensor, seed * 31 + name.length)
      entries.push([name, tensor])
    }
    return side.length === 0 ? undefined : tensorDict(entries)
  })

const emptyQuantized = (shape: ReadonlyArray<number>, recipe: QuantizationRecipe) =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const data = yield* engine.allocate(codeTypeOf(recipe), codeShapeOf(recipe, shape))
    const laid = laidOutShape(layoutOf(recipe), scaleShapeOf(recipe, shape)!)
    const scale = yield* engine.allocate(scaleTypesOf(recipe)[0]!, laid)
    const global = hasGlobal(recipe) ? { global: yield* engine.allocate("float32", [1]) } : {}
    return { _tag: "QuantizedTensor", data, scale, ...global, recipe } satisfies QuantizedTensor
  })

const quantizedDict = (side: Side, recipe: QuantizationRecipe) =>
  Effect.gen(function* () {
    const entries: Array<readonly [string, QuantizedTensor]> = []
    for (const { name, shape } of side) entries.push([name, yield* emptyQuantized(shape, recipe)])
    return side.length === 0 ? undefined : tensorDict(entries)
  })

const partsOf = ({ data, global, scale }: QuantizedTensor) => [data, scale, ...(global === undefined ? [] : [global])]

const poison = (dict: TensorDict | undefined) => {
  for (const tensor of dict?.tensors.values() ?? [])
    if (isQuantized(tensor)) for (const part of partsOf(tensor)) part.storage.bytes!.fill(0xd7)
}

/** Under a global scale, largest magnitudes of whole tensors, which no rank need hold. */
const amaxOf: Readonly<Record<string, number>> = { "up.weight": 130, "down.weight": 97.5, "experts.weight": 64 }
const amaxima: KnownMaxima = (name) => ({ values: Float32Array.of(amaxOf[name]!) })

/** What a destination must hold, from wide values that came without any transform. Where scales lie is by their definition. */
const expectQuantized = (dict: TensorDict, wide: TensorDict, what: string) =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    for (const [name, tensor] of dict.tensors) {
      if (!isQuantized(tensor)) return assert.fail(`${name} is not quantized`)
      const source = wide.tensors.get(name) as Tensor
      const { recipe } = tensor
      const rows = yield* emptyQuantized(source.shape, { ...recipe, layout: "rowMajor" })
      if (hasGlobal(recipe)) {
        const maxima = yield* engine.allocate("float32", [1])
        new DataView(maxima.storage.bytes!.buffer, maxima.storage.bytes!.byteOffset).setFloat32(0, amaxOf[name]!, true)
        yield* engine.quantize(source, rows, { maxima })
        assert.deepStrictEqual(tensor.global!.storage.bytes, rows.global!.storage.bytes, `${what}: global of ${name}`)
      } else yield* engine.quantize(source, rows)
      assert.deepStrictEqual(tensor.data.storage.bytes, rows.data.storage.bytes, `${what}: codes of ${name}`)
      const scales = rows.scale.storage.bytes!
      const expected = new Uint8Array(tensor.scale.storage.byteLength)
      const [down, across] = [rows.scale.shape.slice(0, -1).reduce((a, b) => a * b, 1), rows.scale.shape.at(-1)!]
      const size = scales.length / (down * across)
      for (let row = 0; row < down; row++) {
        for (let column = 0; column < across; column++) {
          const at = placeOf(layoutOf(recipe), row, column, [down, across], rows.scale.shape.at(-2) ?? 1)
          const from = (row * across + column) * size
          expected.set(scales.subarray(from, from + size), at * size)
        }
      }
      assert.deepStrictEqual(tensor.scale.storage.bytes, expected, `${what}: scales of ${name}`)
    }
  })

/** Where the scale of a row and column lies, in elements. */
const placeOf = (
  layout: ScaleLayout,
  row: number,
  column: number,
  [down, across]: readonly [number, number],
  rows: number
) => {
  if (layout === "rowMajor") return row * across + column
  if (layout === "transposed") return Math.floor(row / rows) * rows * across + column * rows + (row % rows)
  if (layout === "packed") return 4 * ((column >> 2) * 4 * Math.ceil(down / 4) + row) + (column & 3)
  const tile = Math.floor(row / 128) * Math.ceil(across / 4) + (column >> 2)
  return tile * 512 + (row % 32) * 16 + (Math.floor(row / 32) % 4) * 4 + (column & 3)
}

const layouts: ReadonlyArray<readonly [string, number, number, number]> = [
  ["collocated, one piece", 1, 1, 0],
  ["collocated, rows and blocks cut", 4, 2, 0],
  ["disjoint", 2, 3, 2],
  ["overlapping", 3, 1, 2]
]

interface Kind {
  readonly form: QuantizedForm
  readonly rule: string
  readonly block?: BlockSize
  readonly layouts?: ReadonlyArray<ScaleLayout>
}

const kinds: ReadonlyArray<Kind> = [
  { form: "fp8", rule: "deepgemm_fp32", block: [4, 8], layouts: ["rowMajor", "transposed"] },
  { form: "fp8", rule: "te_pow2", block: [8, 16] },
  { form: "fp8", rule: "slime_offline", block: [1, 16] },
  { form: "mxfp8", rule: "compressed_tensors", layouts: ["rowMajor", "packed"] },
  { form: "mxfp4", rule: "modelopt", layouts: ["rowMajor", "swizzled"] },
  { form: "mxfp4", rule: "triton_up" },
  { form: "nvfp4", rule: "modelopt", layouts: ["rowMajor", "swizzled"] },
  { form: "nvfp4", rule: "compressed_tensors" },
  { form: "nvfp4", rule: "te_4over6" }
]

describe("every cutting, side and layout of scales gives the bytes of quantizing whole", () => {
  for (const { block, form, layouts: scaleLayouts = ["rowMajor"] as const, rule } of kinds) {
    for (const scales of scaleLayouts) {
      for (const [name, from, to, firstRank] of layouts) {
        it.live(`${form}/${rule}, ${scales}, ${name}: quantized where it arrives, two rounds`, () => {
          const size = Math.max(from, firstRank + to)
          const plans = plansOf(roster(from), roster(to, firstRank), size)
          return runCluster({ size }, (rank) =>
            Effect.gen(function* () {
              const plan = plans[rank]!
              const recipe = quantizationRecipe(form, rule, scales, block)
              const destination = yield* quantizedDict(plan.destinationTensors, recipe)
              const transform = quantize({ recipe, maxima: form === "nvfp4" ? amaxima : ownMaxima })
              for (let round = 0; round < 2; round++) {
                const source = yield* plainDict(plan.sourceTensors, 1 + rank * 7 + round)
                const wide = yield* plainDict(plan.destinationTensors)
                yield* executeReshardPlan(plan, source, wide)
                poison(destination)
                yield* executeReshardPlan(plan, source, destination, { transform })
                if (destination !== undefined) yield* expectQuantized(destination, wide!, `round ${round}`)
              }
            })
          )
        })
      }
    }
    it.live(`${form}/${rule}: quantized where it leaves, and into wide tensors`, () => {
      // Shards of whole blocks at both ends.
      const [from, to] = block?.[0] === 8 ? [1, 3] : [2, 3]
      const plans = plansOf(roster(from), roster(to, from), from + to)
      return runCluster({ size: from + to }, (rank) =>
        Effect.gen(function* () {
          const plan = plans[rank]!
          const recipe = quantizationRecipe(form, rule, "rowMajor", block)
          const options: QuantizeOptions = { recipe, maxima: form === "nvfp4" ? amaxima : ownMaxima }
          const source = yield* plainDict(plan.sourceTensors, 5 + rank)
          const [early, late] = [
            yield* quantizedDict(plan.destinationTensors, recipe),
            yield* quantizedDict(plan.destinationTensors, recipe)
          ]
          poison(early)
          yield* executeReshardPlan(plan, source, early, { transform: quantize({ ...options, side: "sender" }) })
          yield* executeReshardPlan(plan, source, late, { transform: quantize(options) })
          for (const [tensor, other] of [...(early?.tensors ?? [])].map(
            ([n, t]) => [t, late!.tensors.get(n)!] as const
          )) {
            if (!isQuantized(tensor) || !isQuantized(other)) return assert.fail("not quantized")
            for (const [at, part] of partsOf(tensor).entries())
              assert.deepStrictEqual(part.storage.bytes, partsOf(other)[at]!.storage.bytes)
          }
          // What a quantized source stands for arrives in tensors that are not quantized.
          const wide = yield* plainDict(plan.destinationTensors)
          yield* executeReshardPlan(plan, source, wide, { transform: quantize({ ...options, side: "sender" }) })
          const engine = yield* TensorEngine
          for (const [n, tensor] of late?.tensors ?? []) {
            const plain = wide!.tensors.get(n) as Tensor
            const values = yield* engine.allocate(plain.dtype, plain.shape)
            if (isQuantized(tensor)) yield* engine.dequantize(tensor, values)
            assert.deepStrictEqual(plain.storage.bytes, values.storage.bytes)
          }
        })
      )
    })
  }
})

describe("blocks that several ranks fill", () => {
  /** Exact in bfloat16, by the place in the whole tensor. */
  const valueAt = (row: number, column: number) => (((row * 37 + column * 11) % 255) - 127) / 16
  const [rows, columns] = [24, 96]
  const block: BlockSize = [4, 8]

  const written = (tensor: Tensor, firstRow: number) =>
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const wide = yield* engine.allocate("float32", tensor.shape)
      const view = new DataView(wide.storage.bytes!.buffer, wide.storage.bytes!.byteOffset)
      for (let at = 0; at < wide.storage.byteLength / 4; at++)
        view.setFloat32(4 * at, valueAt(firstRow + Math.floor(at / columns), at % columns), true)
      yield* engine.copy([{ dst: tensor, src: wide }])
    })

  /** Of whole blocks, for a region that begins so many rows into the tensor. */
  const maximaFrom =
    (firstRow: number): KnownMaxima =>
    (_, region) => {
      const [[top, bottom], [left, right]] = region.map(([start, end], dim) =>
        dim === 0 ? [start + firstRow, end + firstRow] : [start, end]
      ) as [[number, number], [number, number]]
      const values: Array<number> = []
      for (let down = Math.floor(top / 4); down < Math.ceil(bottom / 4); down++) {
        for (let across = Math.floor(left / 8); across < Math.ceil(right / 8); across++) {
          let largest = 0
          for (let row = 4 * down; row < 4 * down + 4; row++)
            for (let column = 8 * across; column < 8 * across + 8; column++)
              largest = Math.max(largest, Math.abs(valueAt(row, column)))
          values.push(largest)
        }
      }
      return { origin: [top % 4, left % 8], values: Float32Array.from(values) }
    }

  for (const [from, to] of [
    [4, 1],
    [4, 3],
    [8, 2]
  ] as const) {
    for (const side of ["sender", "receiver"] as const) {
      it.live(`${from} ranks to ${to}, by the ${side}: codes and scales are those of the whole`, () => {
        const only = [{ name: "up.weight", dtype: "bfloat16" as const, shape: [rows, columns] }]
        const of = (tp: number, firstRank = 0) => rosterOf(tp, { firstRank, tensors: only, rules })
        const plans = plansOf(of(from), of(to, from), from + to)
        return runCluster({ size: from + to }, (rank) =>
          Effect.gen(function* () {
            const engine = yield* TensorEngine
            const plan = plans[rank]!
            const isSource = rank < from
            const firstRow = isSource ? (rows / from) * rank : (rows / to) * (rank - from)
            const recipe = quantizationRecipe("fp8", "slime_offline", "rowMajor", block)
            const source = yield* plainDict(plan.sourceTensors)
            if (source !== undefined) yield* written(source.tensors.get("up.weight") as Tensor, firstRow)
            const maxima = maximaFrom(firstRow)
            const held = plan.destinationTensors[0]
            const made =
              held === undefined
                ? undefined
                : ({
                    _tag: "QuantizedTensor",
                    data: yield* engine.allocate("float8_e4m3fn", held.shape),
                    scale: yield* engine.allocate("float32", scaleShapeOf(recipe, held.shape)!),
                    recipe
                  } satisfies QuantizedTensor)
            const destination = made === undefined ? undefined : tensorDict([["up.weight", made]])
            poison(destination)
            yield* executeReshardPlan(plan, source, destination, { transform: quantize({ recipe, side, maxima }) })
            if (made === undefined) return
            const whole = yield* engine.allocate("bfloat16", [rows, columns])
            yield* written(whole, 0)
            const wanted = yield* emptyQuantized([rows, columns], recipe)
            yield* engine.quantize(whole, wanted)
            const count = held!.shape[0]!
            const codes = wanted.data.storage.bytes!.slice(firstRow * columns, (firstRow + count) * columns)
            assert.deepStrictEqual(made.data.storage.bytes, codes)
            const across = 4 * (columns / 8)
            const scales = wanted.scale.storage.bytes!.slice((firstRow / 4) * across, ((firstRow + count) / 4) * across)
            assert.deepStrictEqual(made.scale.storage.bytes, scales)
          })
        )
      })
    }
  }
})

describe("refused before anything moves", () => {
  const failureOf = (
    recipe: QuantizationRecipe,
    options: QuantizeOptions,
    [from, to]: readonly [number, number] = [1, 1]
  ) => {
    const plans = plansOf(roster(from), roster(to), Math.max(from, to))
    return runCluster({ size: Math.max(from, to) }, (rank) =>
      Effect.gen(function* () {
        const plan = plans[rank]!
        const source = yield* plainDict(plan.sourceTensors, 1)
        const destination = yield* quantizedDict(plan.destinationTensors, recipe)
        poison(destination)
        const exit = yield* Effect.exit(executeReshardPlan(plan, source, destination, { transform: quantize(options) }))
        for (const tensor of destination?.tensors.values() ?? [])
          if (isQuantized(tensor)) assert.isTrue(tensor.data.storage.bytes!.every((byte) => byte === 0xd7))
        return Exit.isFailure(exit) ? String(exit.cause) : "it succeeded"
      })
    )
  }

  it.live("a global scale that nobody has stated", () =>
    Effect.gen(function* () {
      const recipe = quantizationRecipe("nvfp4", "modelopt")
      for (const side of ["sender", "receiver"] as const) {
        for (const message of yield* failureOf(recipe, { recipe, side })) assert.match(message, /Pass maxima/)
      }
    })
  )

  it.live("a sender's cut inside blocks, with the nearest region", () =>
    Effect.gen(function* () {
      const recipe = quantizationRecipe("fp8", "deepgemm_fp32", "rowMajor", [5, 8])
      const [message] = yield* failureOf(recipe, { recipe, side: "sender" }, [1, 2])
      assert.match(message!, /cuts blocks 5x8/)
    })
  )

  it.live("blocks whose rule leaves edges alone", () =>
    Effect.gen(function* () {
      const recipe = quantizationRecipe("fp8", "transformers_fp32", "rowMajor", [24, 96])
      const given = quantizationRecipe("fp8", "deepgemm_fp32", "rowMajor", [24, 96])
      const [message] = yield* failureOf(given, { recipe })
      assert.match(message!, /transformers_fp32/)
    })
  )
})

it("reference engines claim every form", () => {
  assert.sameMembers([...make().capabilities.quantize], ["mxfp8", "fp8", "mxfp4", "nvfp4"])
})
