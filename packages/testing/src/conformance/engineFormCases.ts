// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of every quantized form and rule: codes, scales and global scales against the functions in `testing/values/quantizing`,
 * from every source type, over whole and cut blocks, in every form of memory, and back. A form's cases apply to engines that
 * claim it.
 */
import { bitsOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import { TensorEngine, type TensorEngineCapabilities } from "@tensorferry/core/service/TensorEngine"
import {
  type BlockSize,
  codeShapeOf,
  codeTypeOf,
  hasGlobal,
  type QuantizationRecipe,
  type QuantizedForm,
  type QuantizedTensor,
  quantizationRecipe,
  quantizationRules,
  quantizedForms,
  readsGlobal,
  recipeId,
  scaleShapeOf,
  scaleTypesOf
} from "@tensorferry/core/tensor/QuantizedTensor"
import type { SourceType } from "@tensorferry/model/quantize/numbers"
import * as Effect from "effect/Effect"
import {
  type KnownValues,
  largestValues,
  type QuantizedBytes,
  quantizeValues,
  readValues
} from "../values/quantizing.ts"
import { check, expectFailure, type TensorEngineCase } from "./Case.ts"
import {
  decode,
  encode,
  expectElements,
  type Form,
  gatherElements,
  loadBytes,
  type Placed,
  place,
  setElements
} from "./memory.ts"

const sourceTypes = ["bfloat16", "float16", "float32"] as const

const random = (seed: number) => {
  let state = (seed * 2654435761 + 12345) >>> 0
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return state / 2 ** 32
  }
}

/** What a matrix is filled with: magnitudes of weights; every exponent; ties and edges of the codes; what is not finite. */
const fillings = {
  weights: (next: () => number) => (next() - 0.5) * 2 ** Math.floor(next() * 8 - 6),
  exponents: (next: () => number) => (next() - 0.5) * 2 ** Math.floor(next() * 276 - 148),
  ties: (next: () => number) =>
    (next() < 0.5 ? -1 : 1) * (Math.floor(next() * 64) / 8) * 2 ** Math.floor(next() * 4 - 2),
  zeros: (next: () => number) => (next() < 0.5 ? -0 : 0),
  strange: (next: () => number) => {
    const kind = next()
    if (kind < 0.004) return Number.NaN
    if (kind < 0.008) return next() < 0.5 ? Number.POSITIVE_INFINITY : Number.NEGATIVE_INFINITY
    return (next() - 0.5) * 2 ** Math.floor(next() * 30 - 15)
  }
} as const
type Filling = keyof typeof fillings

/** Bytes of a tensor, and the values that they are. */
const filled = (dtype: DType, shape: Shape, filling: Filling, seed: number) => {
  const next = random(seed)
  const elements = encode(
    dtype,
    Float32Array.from({ length: elementCount(shape) }, () => fillings[filling](next))
  )
  return { elements, values: decode(dtype, elements) }
}

interface PlacedQuantized {
  readonly data: Placed
  readonly scale: Placed
  readonly global: Placed | undefined
  readonly quantized: QuantizedTensor
}

const placeQuantized = Effect.fnUntraced(function* (
  recipe: QuantizationRecipe,
  shape: Shape,
  scaleType: DType,
  origin: readonly [number, number],
  form: Form = "dense"
) {
  const data = yield* place(codeTypeOf(recipe), codeShapeOf(recipe, shape), form)
  const scale = yield* place(scaleType, scaleShapeOf(recipe, shape, origin)!, form)
  const global = hasGlobal(recipe) ? yield* place("float32", [1]) : undefined
  const quantized: QuantizedTensor = {
    _tag: "QuantizedTensor",
    data: data.tensor,
    scale: scale.tensor,
    ...(global === undefined ? {} : { global: global.tensor }),
    recipe
  }
  return { data, scale, global, quantized } satisfies PlacedQuantized
})

/** Numbers that are NaN in both, or the same bits. */
const expectNumbers = Effect.fnUntraced(function* (what: string, placed: Placed, expected: Uint8Array) {
  const { dtype } = placed.tensor
  const found = gatherElements(placed.tensor, yield* loadBytes(placed.whole))
  if (Buffer.compare(found, expected) === 0) return
  const size = bitsOf(dtype) / 8
  const [ours, theirs] = [decode(dtype, found), decode(dtype, expected)]
  const wrong = theirs.findIndex((value, at) =>
    Number.isNaN(value)
      ? !Number.isNaN(ours[at])
      : found.subarray(at * size, (at + 1) * size).some((byte, k) => byte !== expected[at * size + k])
  )
  yield* check(wrong < 0, () => `${what}: element ${wrong} is ${ours[wrong]} instead of ${theirs[wrong]}.`)
})

/** Codes: those of float8_e4m3fn are NaN in both, or the same bits; two of float4_e2m1 to a byte are the same bits. */
const expectCodes = (what: string, placed: Placed, expected: Uint8Array) =>
  placed.tensor.dtype === "uint8" ? expectElements(what, placed, expected) : expectNumbers(what, placed, expected)

interface Trial {
  readonly recipe: QuantizationRecipe
  readonly dtype: SourceType
  readonly shape: Shape
  readonly filling: Filling
  readonly seed: number
  readonly scaleType?: DType
  readonly forms?: readonly [source: Form, quantized: Form]
  readonly known?: KnownValues
}

const place32 = Effect.fnUntraced(function* (values: ArrayLike<number>, shape: Shape) {
  const placed = yield* place("float32", shape)
  yield* setElements(placed, encode("float32", values))
  return placed
})

/** Quantizes, compares, and reads back. */
const tryOne = Effect.fnUntraced(function* (trial: Trial) {
  const { dtype, filling, forms = ["dense", "dense"], known = {}, recipe, seed, shape } = trial
  const engine = yield* TensorEngine
  const origin = known.origin ?? [0, 0]
  const scaleType = trial.scaleType ?? scaleTypesOf(recipe, dtype)[0]!
  const what = `${recipeId(recipe)} of ${filling} in ${dtype}[${shape.join(",")}]`
  const source = yield* place(dtype, shape, forms[0])
  const { elements, values } = filled(dtype, shape, filling, seed)
  yield* setElements(source, elements)
  const to = yield* placeQuantized(recipe, shape, scaleType, origin, forms[1])
  const scales = scaleShapeOf(recipe, shape, origin)!
  const maxima = known.maxima === undefined ? undefined : yield* place32(known.maxima, hasGlobal(recipe) ? [1] : scales)
  if (known.global !== undefined) yield* setElements(to.global!, encode("float32", [known.global]))
  const wanted = quantizeValues(recipe, values, shape, dtype, scaleType, known)
  yield* engine.quantize(source.tensor, to.quantized, {
    ...(known.origin === undefined ? {} : { origin: known.origin }),
    ...(maxima === undefined ? {} : { maxima: maxima.tensor }),
    ...(known.global === undefined ? {} : { keepsGlobal: true })
  })
  yield* expectCodes(`The codes by ${what}`, to.data, wanted.data)
  yield* expectNumbers(`The scales by ${what}`, to.scale, wanted.scales)
  if (wanted.global !== undefined) {
    yield* expectNumbers(`The global scale by ${what}`, to.global!, encode("float32", [wanted.global]))
  }
  yield* expectElements(`The source of ${what}`, source, elements)
  yield* readBack(what, recipe, to, wanted, shape, scaleType, known.origin)
})

/** Into every type, and into memory of the source's form. */
const readBack = Effect.fnUntraced(function* (
  what: string,
  recipe: QuantizationRecipe,
  from: PlacedQuantized,
  bytes: QuantizedBytes,
  shape: Shape,
  scaleType: DType,
  origin: readonly [number, number] | undefined
) {
  const engine = yield* TensorEngine
  const values = readValues(recipe, bytes, shape, scaleType, origin)
  for (const dtype of ["float32", "bfloat16"] as const) {
    if (!scaleTypesOf(recipe, dtype).includes(scaleType)) continue
    const back = yield* place(dtype, shape)
    yield* engine.dequantize(from.quantized, back.tensor, origin)
    yield* expectNumbers(`${dtype} read by ${what}`, back, encode(dtype, values))
  }
})

const blocksOf: Readonly<Record<QuantizedForm, ReadonlyArray<BlockSize | undefined>>> = {
  mxfp8: [undefined],
  mxfp4: [undefined],
  nvfp4: [undefined],
  fp8: [
    [128, 128],
    [64, 64],
    [1, 128],
    [1, 0],
    [0, 0]
  ]
}

/** Every rule of a form, each with another size of blocks; `turn` goes through the sizes. */
const recipesOf = (form: QuantizedForm, turn: number): ReadonlyArray<QuantizationRecipe> =>
  quantizationRules[form].map((rule, at) =>
    quantizationRecipe(form, rule, "rowMajor", blocksOf[form][(at + turn) % blocksOf[form].length])
  )

/** Shapes of whole blocks, and of blocks cut at the edge where the recipe has them. */
const shapesOf = (recipe: QuantizationRecipe): ReadonlyArray<Shape> =>
  [[[128, 256]], [[130, 200]], [[3, 96]], [[2, 5, 64]], [[320]]]
    .map(([shape]) => shape!)
    .filter((shape) => scaleShapeOf(recipe, shape) !== undefined)

const eachOf = <A>(all: ReadonlyArray<A>, work: (one: A, at: number) => ReturnType<typeof tryOne>) =>
  Effect.forEach(all, (one, at) => Effect.scoped(work(one, at)), { discard: true })

const needs =
  (form: QuantizedForm) =>
  ({ quantize }: TensorEngineCapabilities): string | undefined =>
    quantize.includes(form) ? undefined : `the engine does not convert to ${form}`

const everyRule = (form: QuantizedForm): TensorEngineCase => ({
  name: `quantizes to ${form} by every rule, from every type, and reads it back`,
  requires: needs(form),
  program: eachOf(quantizationRules[form], (_, at) =>
    Effect.gen(function* () {
      for (const [k, dtype] of sourceTypes.entries()) {
        for (const [n, filling] of (Object.keys(fillings) as ReadonlyArray<Filling>).entries()) {
          // Each rule meets each type with most fillings, and each filling with most types.
          if ((at + k + n) % 5 > 2) continue
          const recipe = recipesOf(form, 2 * k + n)[at]!
          const shapes = shapesOf(recipe)
          const shape = shapes[(at + k + n) % shapes.length]!
          yield* Effect.scoped(tryOne({ recipe, dtype, shape, filling, seed: 31 * at + 7 * k + n }))
        }
      }
    })
  )
})

const everyMemory = (form: QuantizedForm): TensorEngineCase => ({
  name: `quantizes to ${form} between strided tensors, and to every type of scales`,
  requires: needs(form),
  program: Effect.gen(function* () {
    const recipes = [...recipesOf(form, 0), ...recipesOf(form, 2)]
    const forms: ReadonlyArray<Form> = ["dense", "padded", "transposed", "spread"]
    let seed = 0
    for (const source of forms) {
      for (const quantized of forms) {
        const recipe = recipes[(seed * 7) % recipes.length]!
        const dtype = sourceTypes[seed % sourceTypes.length]!
        const shapes = shapesOf(recipe)
        const types = scaleTypesOf(recipe, dtype)
        const trial: Trial = {
          recipe,
          dtype,
          shape: shapes[seed % shapes.length]!,
          filling: "weights",
          seed: ++seed,
          scaleType: types[seed % types.length]!,
          forms: [source, quantized]
        }
        yield* Effect.scoped(tryOne(trial))
      }
    }
  })
})

/** Parts of one tensor, cut inside blocks, with the maxima of the whole give the bytes that the whole gives. */
const knownMaxima = (form: QuantizedForm): TensorEngineCase => ({
  name: `quantizes parts to ${form} by maxima that are given`,
  requires: needs(form),
  program: eachOf(recipesOf(form, 1), (recipe, at) =>
    Effect.gen(function* () {
      const dtype = sourceTypes[at % sourceTypes.length]!
      const rows = recipe.rule === "te_16x16" || /^transformers/.test(recipe.rule) ? 128 : 130
      const { values } = filled("float32", [rows, 256], "weights", 77 + at)
      if (hasGlobal(recipe)) {
        const maxima = largestValues(values, [rows, 256], [0, 0], new Float32Array(1), true)
        const shape = [rows === 128 ? 32 : 5, 64]
        yield* tryOne({ recipe, dtype, shape, filling: "weights", seed: at, known: { maxima } })
        if (!readsGlobal(recipe)) return
        const { global } = quantizeValues(recipe, values, [rows, 256], dtype, "float8_e4m3fn", { maxima })
        yield* tryOne({ recipe, dtype, shape, filling: "weights", seed: at, known: { global: global! } })
        return
      }
      const isCut = form === "fp8" && !/^transformers/.test(recipe.rule)
      const [high, wide] = recipe.block
      const origin = isCut ? ([high === 1 ? 0 : 5, wide === 1 ? 0 : 17] as const) : ([0, 0] as const)
      const shape = isCut ? [131, 150] : [128, 256]
      const scales = scaleShapeOf(recipe, shape, origin)!
      const next = random(at)
      const maxima = Float32Array.from({ length: elementCount(scales) }, () => 2 + next())
      yield* tryOne({ recipe, dtype, shape, filling: "weights", seed: at, known: { origin, maxima } })
    })
  )
})

const largestCase: TensorEngineCase = {
  name: "finds largest magnitudes of blocks, and joins them with those before",
  requires: needs("fp8"),
  program: Effect.gen(function* () {
    const engine = yield* TensorEngine
    const trials: ReadonlyArray<readonly [Shape, BlockSize, readonly [number, number]]> = [
      [
        [130, 200],
        [128, 128],
        [0, 0]
      ],
      [
        [130, 200],
        [128, 128],
        [100, 9]
      ],
      [
        [64, 96],
        [1, 32],
        [0, 0]
      ],
      [
        [3, 70, 40],
        [16, 16],
        [3, 0]
      ],
      [
        [5, 300],
        [1, 0],
        [0, 0]
      ],
      [
        [2, 40, 30],
        [0, 0],
        [0, 0]
      ],
      [[500], [1, 64], [0, 10]],
      [
        [0, 64],
        [1, 32],
        [0, 0]
      ]
    ]
    let seed = 0
    for (const [shape, block, origin] of trials) {
      for (const isOne of [false, true]) {
        const dtype = sourceTypes[seed % sourceTypes.length]!
        const filling = (["weights", "strange", "exponents"] as const)[seed % 3]!
        yield* Effect.scoped(
          Effect.gen(function* () {
            const source = yield* place(dtype, shape, (["dense", "padded", "spread", "transposed"] as const)[seed % 4]!)
            const { elements, values } = filled(dtype, shape, filling, ++seed)
            yield* setElements(source, elements)
            const recipe = quantizationRecipe("fp8", "deepgemm_fp32", "rowMajor", block)
            const counts = isOne ? [1] : scaleShapeOf(recipe, shape, origin)!
            const before = Float32Array.from({ length: elementCount(counts) }, (_, at) => (at % 3 === 0 ? 0.25 : 0))
            const maxima = yield* place32(before, counts)
            yield* engine.largest(source.tensor, maxima.tensor, block, origin)
            // One place for several blocks is the largest of all.
            const single = elementCount(counts) === 1
            const wanted = shape.includes(0) ? before : largestValues(values, shape, block, before, single, origin)
            const what = `Maxima of ${filling} in ${dtype}[${shape.join(",")}] by ${block.join("x")}`
            yield* expectNumbers(what, maxima, encode("float32", wanted))
            yield* expectElements(`The source of ${what}`, source, elements)
          })
        )
      }
    }
  })
}

const refusals = (form: QuantizedForm): TensorEngineCase => ({
  name: `refuses what is not ${form}, and writes nothing`,
  requires: needs(form),
  program: Effect.scoped(
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const recipe = quantizationRecipe(form, quantizationRules[form][0]!)
      const shape = [128, 128]
      const source = yield* place("bfloat16", shape)
      yield* setElements(source, filled("bfloat16", shape, "weights", 3).elements)
      const good = yield* placeQuantized(recipe, shape, scaleTypesOf(recipe)[0]!, [0, 0])
      const { quantized } = good
      const refused = (what: string, to: QuantizedTensor, known = {}) =>
        expectFailure(what, engine.quantize(source.tensor, to, known), ["InvalidRequest", "Unsupported"])
      const { data, scale } = quantized
      yield* refused("Codes of another type", { ...quantized, data: { ...data, dtype: "int8" } })
      yield* refused("Scales of another type", { ...quantized, scale: { ...scale, dtype: "int8" } })
      yield* refused("Scales of another shape", { ...quantized, scale: { ...scale, shape: [1] } })
      yield* refused("A rule of nobody", { ...quantized, recipe: { ...recipe, rule: "round" } })
      yield* refused("An origin beyond the block", quantized, { origin: [0, 4096] })
      const few = yield* place("float32", [1, 3])
      yield* refused("Maxima of another shape", quantized, { maxima: few.tensor })
      if (hasGlobal(recipe)) {
        const { global: _, ...without } = quantized
        yield* refused("No place for the global scale", without)
      }
      for (const { tensor, whole } of [good.data, good.scale]) {
        const found = gatherElements(tensor, yield* loadBytes(whole))
        yield* check(
          found.every((byte) => byte === found[0]),
          () => `Something was written into ${tensor.dtype}.`
        )
      }
    })
  )
})

export const engineFormCases: ReadonlyArray<TensorEngineCase> = [
  ...quantizedForms.flatMap((form) => [everyRule(form), everyMemory(form), knownMaxima(form), refusals(form)]),
  largestCase
]
