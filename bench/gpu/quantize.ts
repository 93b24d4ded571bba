// SPDX-License-Identifier: Apache-2.0
/**
 * Block scaling on a device, in bytes read and written per second beside a copy of as many bytes by the same engine in the
 * same run; and `golden/mxfp8` there, bit by bit. Besides dense tensors, which have the target: rows of a wider tensor, whose
 * last blocks leave threads of a team idle, and rows that lie at odd addresses, which single threads convert.
 *
 * Both are timed as whole Effects over large tensors, taking turns, so that a launch and a wait count little and alike.
 */
import type { BackendDescriptor, BackendOptions } from "@tensorferry/core/backend/BackendDescriptor"
import { median } from "@tensorferry/core/base/Numbers"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { mxfp8Recipe, type QuantizedTensor, scaleShapeOf } from "@tensorferry/core/tensor/QuantizedTensor"
import { sliceTensor } from "@tensorferry/core/tensor/Tensor"
import { checkMxfp8, RecordedMxfp8 } from "@tensorferry/golden/mxfp8"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type { Figure } from "./replay.ts"

const rounds = 15
const warmUps = 3

const timed = <E, R>(effect: Effect.Effect<void, E, R>) =>
  Effect.suspend(() => {
    const begun = performance.now()
    return Effect.map(effect, () => (performance.now() - begun) / 1000)
  })

interface Form {
  readonly name: string
  readonly columns: number
  /** Elements before a row and after it, in the plain tensor. */
  readonly around: readonly [before: number, after: number]
  readonly target?: number
}

const forms: ReadonlyArray<Form> = [
  { name: "", columns: 8192, around: [0, 0], target: 0.8 },
  { name: " in rows of 8224", columns: 8192 - 32, around: [32, 32] },
  { name: " at odd addresses", columns: 8192 - 32, around: [1, 31] }
]

const measure = (
  engine: TensorEngineShape,
  dtype: "bfloat16" | "float32",
  op: "quantize" | "dequantize",
  rows: number,
  { name, columns, around: [before, after], target }: Form
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
    const data = yield* engine.allocate("float8_e4m3fn", shape)
    const scale = yield* engine.allocate("float8_e8m0fnu", scaleShapeOf(mxfp8Recipe(), shape)!)
    const quantized: QuantizedTensor = { _tag: "QuantizedTensor", data, scale, recipe: mxfp8Recipe("rceil") }
    yield* engine.quantize(plain, quantized)
    const bytes = elements * (dtype === "bfloat16" ? 2 : 4) + elements + elements / 32
    const half = Math.floor(bytes / 2 / 16) * 16
    const [from, to] = [yield* engine.allocate("uint8", [half]), yield* engine.allocate("uint8", [half])]
    yield* engine.fill(from, 1)
    const moves = [{ dst: to, src: from }]
    const work = op === "quantize" ? engine.quantize(plain, quantized) : engine.dequantize(quantized, plain)
    const [ours, copies]: [Array<number>, Array<number>] = [[], []]
    for (let round = -warmUps; round < rounds; round++) {
      const [mine, copy] = [yield* timed(work), yield* timed(engine.copy(moves))]
      if (round < 0) continue
      ours.push(mine)
      copies.push(copy)
    }
    const [rate, reference] = [bytes / median(ours) / 1e9, (2 * half) / median(copies) / 1e9]
    const figure: Figure = {
      case: `${op} ${dtype} [${rows},${columns}]${name}`,
      value: rate / reference,
      unit: "of copy bandwidth",
      ...(target === undefined ? {} : { target }),
      lowerIsBetter: false,
      detail: `${rate.toFixed(0)} GB/s read + written, copy ${reference.toFixed(0)} GB/s, median of ${rounds}; fastest ${(bytes / Math.min(...ours) / 1e9).toFixed(0)} GB/s`
    }
    return figure
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
          tell(yield* measure(engine, dtype, op, Math.max(1, Math.floor(262_144 / shrink)), form))
  }).pipe(Effect.provide(descriptor.tensorEngine!(options)))

/** Faults of the recorded results on the device. `recorded` is the parsed file of `golden/mxfp8`. */
export const goldenQuantize = (descriptor: BackendDescriptor, options: BackendOptions, recorded: unknown) =>
  Effect.gen(function* () {
    const verdicts = yield* checkMxfp8(yield* TensorEngine, Schema.decodeUnknownSync(RecordedMxfp8)(recorded))
    return { count: verdicts.length, faults: verdicts.filter(({ fault }) => fault !== undefined) }
  }).pipe(Effect.provide(descriptor.tensorEngine!(options)))
