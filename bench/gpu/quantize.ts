// SPDX-License-Identifier: Apache-2.0
/**
 * Quantized forms on a device, in bytes read and written per second beside a copy of as many bytes by the same engine in the
 * same run; and recordings there, bit by bit. Of MXFP8, besides dense tensors: rows of a wider tensor, whose last blocks leave
 * threads of a team idle, and rows that lie at odd addresses.
 *
 * Both are timed as whole Effects over large tensors, taking turns, so that a launch and a wait count little and alike; and by
 * the device's clock, which is how kernels of others are measured.
 */
import { deviceOf } from "@tensorferry/backend-cuda"
import type { BackendDescriptor, BackendOptions } from "@tensorferry/core/backend/BackendDescriptor"
import { bitsOf } from "@tensorferry/core/base/DType"
import { median } from "@tensorferry/core/base/Numbers"
import { elementCount } from "@tensorferry/core/base/Region"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import {
  codeShapeOf,
  codesPerByte,
  codeTypeOf,
  hasGlobal,
  mxfp8Recipe,
  type QuantizationRecipe,
  type QuantizedTensor,
  quantizationRecipe,
  scaleShapeOf,
  scaleTypesOf
} from "@tensorferry/core/tensor/QuantizedTensor"
import { sliceTensor } from "@tensorferry/core/tensor/Tensor"
import { checkEngineForms } from "@tensorferry/golden/engineForms"
import { checkMxfp8, RecordedMxfp8 } from "@tensorferry/golden/mxfp8"
import { makeProgram } from "@tensorferry/gpu/GpuProgram"
import { StepTable } from "@tensorferry/gpu/StepTable"
import { addressOf } from "@tensorferry/native/MoveTable"
import { encodeQuantize } from "@tensorferry/native/QuantizeTable"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type { Figure } from "./replay.ts"

const rounds = 31
/** As many as compile the JavaScript around the work, which takes the device a quarter of a millisecond. */
const warmUps = 100

const timed = <E, R>(effect: Effect.Effect<void, E, R>) =>
  Effect.suspend(() => {
    const begun = performance.now()
    return Effect.map(effect, () => (performance.now() - begun) / 1000)
  })

/** Median seconds by the device's clock of what the steps between two events do. */
const deviceSeconds = (engine: TensorEngineShape, add: (steps: StepTable) => void) =>
  Effect.gen(function* () {
    const steps = new StepTable()
    steps.spanBegins(0, 0)
    add(steps)
    steps.spanEnds(0, 0)
    const program = yield* Effect.acquireRelease(
      Effect.fromResult(makeProgram(deviceOf(engine)!.gpu, { steps: steps.table, moves: [] })),
      ({ close }) => Effect.sync(close)
    )
    const taken: Array<number> = []
    for (let round = -warmUps; round < rounds; round++) {
      const [microseconds] = yield* program.run
      if (round >= 0) taken.push(microseconds! / 1e6)
    }
    return median(taken)
  }).pipe(Effect.scoped)

interface Form {
  readonly name: string
  readonly columns: number
  /** Elements before a row and after it, in the plain tensor. */
  readonly around: readonly [before: number, after: number]
  /** Of copy bandwidth. */
  readonly target?: number
  /** Read and written per second, in GB. */
  readonly rate?: number
}

const forms: ReadonlyArray<Form> = [
  { name: "", columns: 8192, around: [0, 0], target: 0.85 },
  { name: " in rows of 8224", columns: 8192 - 32, around: [32, 32] },
  { name: " at odd addresses", columns: 8192 - 32, around: [1, 31], target: 0.4 }
]

/** A global scale that is given: no pass over the tensor looks for it. */
const others: ReadonlyArray<readonly [QuantizationRecipe, Form]> = [
  [quantizationRecipe("fp8", "deepgemm_fp32"), { name: "", columns: 8192, around: [0, 0], rate: 3300 }],
  [quantizationRecipe("fp8", "deepseek_v3_fp32"), { name: "", columns: 8192, around: [0, 0] }],
  [quantizationRecipe("nvfp4", "modelopt"), { name: "", columns: 8192, around: [0, 0], rate: 2800 }],
  [quantizationRecipe("nvfp4", "te_1x16"), { name: "", columns: 8192, around: [0, 0] }],
  [quantizationRecipe("mxfp4", "te_ref"), { name: "", columns: 8192, around: [0, 0] }]
]

const measure = (
  engine: TensorEngineShape,
  dtype: "bfloat16" | "float32",
  op: "quantize" | "dequantize",
  rows: number,
  tell: (figure: Figure) => void,
  { name, columns, around: [before, after], rate: wanted, target }: Form,
  recipe: QuantizationRecipe = mxfp8Recipe("rceil")
) =>
  Effect.gen(function* () {
    const shape = [rows, columns]
    const elements = rows * columns
    const whole = yield* engine.allocate(dtype, [rows, before + columns + after])
    yield* engine.fill(whole, 0x3c)
    const plain = yield* Effect.fromResult(
      sliceTensor(whole, [
        [0, rows],
        [before, before + columns]
      ])
    )
    const data = yield* engine.allocate(codeTypeOf(recipe), codeShapeOf(recipe, shape))
    const scaleShape = scaleShapeOf(recipe, shape)!
    const scale = yield* engine.allocate(scaleTypesOf(recipe)[0]!, scaleShape)
    const global = hasGlobal(recipe) ? yield* engine.allocate("float32", [1]) : undefined
    if (global !== undefined) yield* engine.fill(global, 0x3c)
    const quantized: QuantizedTensor = {
      _tag: "QuantizedTensor",
      data,
      scale,
      ...(global === undefined ? {} : { global }),
      recipe
    }
    const known = global === undefined ? {} : { keepsGlobal: true }
    yield* engine.quantize(plain, quantized, known)
    const scales = elementCount(scaleShape) * (bitsOf(scale.dtype) / 8)
    const bytes = elements * (dtype === "bfloat16" ? 2 : 4) + elements / codesPerByte(recipe) + scales
    const half = Math.floor(bytes / 2 / 16) * 16
    const [from, to] = [yield* engine.allocate("uint8", [half]), yield* engine.allocate("uint8", [half])]
    yield* engine.fill(from, 1)
    const moves = [{ dst: to, src: from }]
    const work = op === "quantize" ? engine.quantize(plain, quantized, known) : engine.dequantize(quantized, plain)
    const [ours, copies]: [Array<number>, Array<number>] = [[], []]
    for (let round = -warmUps; round < rounds; round++) {
      const [mine, copy] = [yield* timed(work), yield* timed(engine.copy(moves))]
      if (round < 0) continue
      ours.push(mine)
      copies.push(copy)
    }
    const [rate, reference] = [bytes / median(ours) / 1e9, (2 * half) / median(copies) / 1e9]
    const common = {
      ...(target === undefined && wanted === undefined ? {} : { target: target ?? wanted! }),
      unit: wanted === undefined ? "of copy bandwidth" : "GB/s read + written",
      lowerIsBetter: false
    }
    const what = `${op} ${recipe.name}/${recipe.rule} ${dtype} [${rows},${columns}]${name}`
    const valueOf = (own: number, copy: number): number => (wanted === undefined ? own / copy : own)
    tell({
      ...common,
      case: what,
      value: valueOf(rate, reference),
      detail: `${rate.toFixed(0)} GB/s read + written, copy ${reference.toFixed(0)} GB/s, median of ${rounds}; fastest ${(bytes / Math.min(...ours) / 1e9).toFixed(0)} GB/s`
    })
    const words = encodeQuantize(op, plain, quantized, addressOf, op === "quantize" ? known : {})
    const [own, copied] = [
      bytes / (yield* deviceSeconds(engine, (steps) => steps.quantize(0, words))) / 1e9,
      (2 * half) / (yield* deviceSeconds(engine, (steps) => steps.copy(0, addressOf(to), addressOf(from), half))) / 1e9
    ]
    tell({
      ...common,
      case: `${what}, by the device's clock`,
      value: valueOf(own, copied),
      detail: `${own.toFixed(0)} GB/s read + written, the vendor's copy ${copied.toFixed(0)} GB/s, median of ${rounds}`
    })
  }).pipe(Effect.scoped)

/** Figures of both directions, each told as soon as it is known. `shrink` divides lengths, for rehearsals. */
export const measureQuantize = (
  descriptor: BackendDescriptor,
  options: BackendOptions,
  shrink: number,
  tell: (figure: Figure) => void
): Effect.Effect<void, unknown> =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    for (const form of forms)
      for (const op of ["quantize", "dequantize"] as const)
        for (const dtype of ["bfloat16", "float32"] as const)
          yield* measure(engine, dtype, op, Math.max(1, Math.floor(262_144 / shrink)), tell, form)
    const rows = Math.max(128, 128 * Math.floor(32_768 / 128 / shrink))
    for (const [recipe, form] of others) {
      yield* measure(engine, "bfloat16", "quantize", rows, tell, form, recipe)
      // Eight times as long, a launch and a wait count little.
      const { rate: _, ...longer } = form
      yield* measure(engine, "bfloat16", "quantize", 8 * rows, tell, longer, recipe)
    }
  }).pipe(Effect.provide(descriptor.tensorEngine!(options)))

/** Faults of the recorded results of a set of `formSets` on the device. */
export const goldenForms = (descriptor: BackendDescriptor, options: BackendOptions, set: string, recorded: unknown) =>
  Effect.gen(function* () {
    const verdicts = yield* checkEngineForms(yield* TensorEngine, set, recorded)
    return { count: verdicts.length, faults: verdicts.filter(({ fault }) => fault !== undefined) }
  }).pipe(Effect.provide(descriptor.tensorEngine!(options)))

/** Faults of the recorded results on the device. `recorded` is the parsed file of `golden/mxfp8`. */
export const goldenQuantize = (descriptor: BackendDescriptor, options: BackendOptions, recorded: unknown) =>
  Effect.gen(function* () {
    const verdicts = yield* checkMxfp8(yield* TensorEngine, Schema.decodeUnknownSync(RecordedMxfp8)(recorded))
    return { count: verdicts.length, faults: verdicts.filter(({ fault }) => fault !== undefined) }
  }).pipe(Effect.provide(descriptor.tensorEngine!(options)))
