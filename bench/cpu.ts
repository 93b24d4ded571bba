// SPDX-License-Identifier: Apache-2.0
/**
 * Copies, casts and quantized forms in host memory: the whole Effect of the embedded engine against PyTorch on the CPU, two threads
 * each, taking turns in one run over warm memory.
 *
 * Figures count payload bytes of the source, except where a row says "read + written".
 */
import { TensorEngine as HostEngine } from "@tensorferry/backend-torch-copy"
import { bitsOf, type DType } from "@tensorferry/core/base/DType"
import { median } from "@tensorferry/core/base/Numbers"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import type { TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import {
  codeShapeOf,
  codeTypeOf,
  hasGlobal,
  mxfp8Recipe,
  type QuantizationRecipe,
  quantizationRecipe,
  scaleShapeOf,
  scaleTypesOf
} from "@tensorferry/core/tensor/QuantizedTensor"
import { type Move, sliceTensor, type Tensor, transposeTensor } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type { BenchResult } from "./measure.ts"
import { type Reference, startTorch } from "./reference.ts"

const threads = 2
const rounds = 11
const warmUps = 3
const square: Shape = [8192, 8192]

/** A tensor whose bytes were all written. */
const filled = (engine: TensorEngineShape, dtype: DType, shape: Shape, byte: number) =>
  Effect.tap(engine.allocate(dtype, shape), (tensor) => engine.fill(tensor, byte))

/** The best copy: dense bytes, as many as a cast of a square matrix touches on its wider side. */
const plainCopy = (engine: TensorEngineShape) => one(engine, "uint8", "uint8", same, [2 ** 28])

const one = (engine: TensorEngineShape, from: DType, to: DType, view: (source: Tensor) => Tensor, source: Shape) =>
  Effect.gen(function* () {
    const src = view(yield* filled(engine, from, source, 0x3c))
    return [{ dst: yield* filled(engine, to, src.shape, 0), src }]
  })

const many = (engine: TensorEngineShape, count: number, byteLength: number) =>
  Effect.forEach(Array.from({ length: count }), () =>
    Effect.map(
      one(engine, "uint8", "uint8", (source) => source, [byteLength]),
      ([move]) => move!
    )
  )

const same = (source: Tensor): Tensor => source
const leftHalf = (source: Tensor): Tensor =>
  Result.getOrThrow(
    sliceTensor(source, [
      [0, source.shape[0]!],
      [0, source.shape[1]! / 2]
    ])
  )

interface CpuCase {
  readonly name: string
  /** Ours to PyTorch's; of a cast to the bytes per second of a plain copy by the same engine. */
  readonly target: number
  readonly isCast?: boolean
  /** Gives the engine a list that it has not seen before each time. */
  readonly isFresh?: boolean
  readonly moves: (engine: TensorEngineShape) => Effect.Effect<ReadonlyArray<Move>, unknown, Scope.Scope>
  /** Gives what is timed in place of a copy. */
  readonly begin?: (
    engine: TensorEngineShape,
    moves: ReadonlyArray<Move>
  ) => Effect.Effect<Effect.Effect<unknown, unknown>, unknown, Scope.Scope>
}

/** A form of the only move's source, with scales of its own. A global scale is given, as PyTorch's side has it. */
const quantizeBy =
  (recipe: QuantizationRecipe): NonNullable<CpuCase["begin"]> =>
  (engine, [move]) =>
    Effect.gen(function* () {
      const { src, dst: data } = move!
      const scale = yield* filled(engine, scaleTypesOf(recipe)[0]!, scaleShapeOf(recipe, src.shape)!, 0)
      const global = hasGlobal(recipe) ? yield* filled(engine, "float32", [1], 0x3c) : undefined
      const parts = global === undefined ? {} : { global }
      const known = global === undefined ? {} : { keepsGlobal: true }
      return engine.quantize(src, { _tag: "QuantizedTensor", data, scale, ...parts, recipe }, known)
    })

/** A matrix and the codes of a form. */
const codesOf =
  (recipe: QuantizationRecipe): CpuCase["moves"] =>
  (engine) =>
    Effect.gen(function* () {
      const src = yield* filled(engine, "bfloat16", square, 0x3c)
      return [{ dst: yield* filled(engine, codeTypeOf(recipe), codeShapeOf(recipe, square), 0), src }]
    })

const formCase = (name: string, target: number, recipe: QuantizationRecipe): CpuCase => ({
  name,
  target,
  moves: codesOf(recipe),
  begin: quantizeBy(recipe)
})

/** Every hundredth element of the source, at places without a pattern, differs from the destination. */
const findChanges: NonNullable<CpuCase["begin"]> = (engine, [move]) =>
  Effect.gen(function* () {
    const { dst: base, src: current } = move!
    yield* engine.copy([{ dst: base, src: current }])
    const count = current.shape[0]!
    const bytes = current.storage.bytes!
    for (let at = 0; at < count; at += 100) bytes[2 * (at + ((Math.imul(at, 40_503) >>> 4) % 100))]! ^= 1
    const room = Math.ceil(count / 50)
    const into = {
      positions: yield* filled(engine, "uint32", [room], 0),
      values: yield* filled(engine, "bfloat16", [room], 0)
    }
    return engine.diff(base, current, into)
  })

const cases: ReadonlyArray<CpuCase> = [
  { name: "contiguous", target: 0.95, moves: (engine) => one(engine, "uint8", "uint8", same, [2 ** 28]) },
  {
    name: "half-columns",
    target: 0.95,
    moves: (engine) => one(engine, "bfloat16", "bfloat16", leftHalf, [8192, 16384])
  },
  { name: "4096 x 256 KiB", target: 0.95, moves: (engine) => many(engine, 4096, 256 * 1024) },
  { name: "20000 x 4 KiB", target: 1.5, moves: (engine) => many(engine, 20_000, 4096) },
  { name: "20000 x 4 KiB, new list", target: 1.5, isFresh: true, moves: (engine) => many(engine, 20_000, 4096) },
  {
    name: "fp32->bf16",
    target: 0.9,
    isCast: true,
    moves: (engine) => one(engine, "float32", "bfloat16", same, square)
  },
  {
    name: "bf16->fp32",
    target: 0.9,
    isCast: true,
    moves: (engine) => one(engine, "bfloat16", "float32", same, square)
  },
  { name: "bf16->e4m3", target: 1.5, moves: (engine) => one(engine, "bfloat16", "float8_e4m3fn", same, square) },
  formCase("bf16->mxfp8", 1.5, mxfp8Recipe("rceil")),
  formCase("bf16->fp8 in blocks", 8, quantizationRecipe("fp8", "deepgemm_fp32")),
  formCase("bf16->nvfp4", 8, quantizationRecipe("nvfp4", "modelopt")),
  formCase("bf16->mxfp4", 8, quantizationRecipe("mxfp4", "modelopt")),
  {
    name: "find changes, 1%",
    target: 5,
    moves: (engine) => one(engine, "bfloat16", "bfloat16", same, [2 ** 27]),
    begin: findChanges
  },
  {
    // Reads only: beside it, the bytes that a plain copy reads and writes.
    name: "digest",
    target: 0.9,
    isCast: true,
    moves: (engine) =>
      Effect.gen(function* () {
        const src = yield* filled(engine, "bfloat16", square, 0x3c)
        return [{ dst: { ...src, shape: [0, 0] }, src }]
      }),
    begin: (engine, [move]) => Effect.succeed(engine.digest([{ tensor: move!.src }]))
  },
  {
    name: "transpose",
    target: 1.5,
    moves: (engine) => one(engine, "bfloat16", "bfloat16", (source) => transposeTensor(source, 0, 1), square)
  }
]

const bytesOf = (moves: ReadonlyArray<Move>, side: "src" | "dst"): number =>
  moves.reduce((sum, move) => sum + (elementCount(move[side].shape) * bitsOf(move[side].dtype)) / 8, 0)

/** Seconds of single runs, taking turns, so that other work on the machine slows all alike. */
interface Measured {
  readonly ours: ReadonlyArray<number>
  readonly theirs: ReadonlyArray<number>
  /** Of `plainCopy`; empty unless the case is a cast. */
  readonly copies: ReadonlyArray<number>
  readonly read: number
  readonly written: number
}

const timed = <E, R>(effect: Effect.Effect<unknown, E, R>) =>
  Effect.suspend(() => {
    const begun = performance.now()
    return Effect.map(effect, () => (performance.now() - begun) / 1000)
  })

const measure = (
  engine: TensorEngineShape,
  reference: Reference | undefined,
  { name, moves, isCast, isFresh, begin }: CpuCase
) =>
  Effect.gen(function* () {
    const batch = yield* moves(engine)
    const work = begin === undefined ? undefined : yield* begin(engine, batch)
    const copy = isCast ? yield* plainCopy(engine) : []
    if (reference !== undefined) yield* Effect.promise(() => reference.ask({ case: name }))
    const [ours, theirs, copies]: [Array<number>, Array<number>, Array<number>] = [[], [], []]
    for (let round = -warmUps; round < rounds; round++) {
      const mine = yield* timed(work ?? engine.copy(isFresh ? [...batch] : batch))
      const plain = copy.length === 0 ? undefined : yield* timed(engine.copy(copy))
      const answer = reference === undefined ? {} : yield* Effect.promise(() => reference.ask({ run: true }))
      if (round < 0) continue
      ours.push(mine)
      if (plain !== undefined) copies.push(plain)
      if (typeof answer.seconds === "number") theirs.push(answer.seconds)
    }
    return { ours, theirs, copies, read: bytesOf(batch, "src"), written: bytesOf(batch, "dst") }
  }).pipe(Effect.scoped)

const resultOf = ({ name, target, isCast }: CpuCase, measured: Measured): BenchResult => {
  const { ours, theirs, copies, read, written } = measured
  const bytes = (isCast ? read + written : read) / 1e9
  const reference = theirs.length === 0 ? undefined : bytes / median(theirs)
  const goal = isCast ? (2 * 2 ** 28) / 1e9 / median(copies) : reference
  const fastest = (seconds: ReadonlyArray<number>) => (bytes / Math.min(...seconds)).toPrecision(3)
  const beside = theirs.length === 0 ? "; no PyTorch found" : ` against ${fastest(theirs)}`
  return {
    case: `${name}, median of ${rounds} (fastest ${fastest(ours)}${beside})`,
    unit: isCast ? "GB/s read + written" : "GB/s",
    ours: bytes / median(ours),
    ...(reference === undefined ? {} : { reference }),
    ...(goal === undefined ? {} : { target: target * goal }),
    lowerIsBetter: false
  }
}

export const cpu = async (): Promise<ReadonlyArray<BenchResult>> => {
  const reference = await startTorch("torch_cpu.py", [String(threads)])
  const only = process.env.TENSORFERRY_BENCH_CASE
  const program = Effect.gen(function* () {
    const engine = yield* TensorEngine
    const results: Array<BenchResult> = []
    for (const each of cases) {
      if (only === undefined || each.name.includes(only))
        results.push(resultOf(each, yield* measure(engine, reference, each)))
    }
    return results
  })
  const results = await Effect.runPromise(Effect.provide(program, HostEngine.layer({ threads })))
  reference?.close()
  return results
}
