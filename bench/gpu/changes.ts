// SPDX-License-Identifier: Apache-2.0
/**
 * Digests, adapters and changed elements on a device: a digest of 512 MiB, products added to a weight of 512 MiB, changes found
 * and collected out of two tensors of 512 MiB, and written into one. Milliseconds of the device between two events around the kernels, and of the whole Effect, which a host's wait adds to.
 *
 * What was found is held against the list that was made on the host, and what was written against the other tensor.
 */
import type { BackendDescriptor, BackendOptions } from "@tensorferry/core/backend/BackendDescriptor"
import { median } from "@tensorferry/core/base/Numbers"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import type { Changes } from "@tensorferry/core/tensor/Changes"
import { type Tensor, tensorByteLength, tensorView } from "@tensorferry/core/tensor/Tensor"
import { makeProgram } from "@tensorferry/gpu/GpuProgram"
import { StepTable } from "@tensorferry/gpu/StepTable"
import { deviceOf } from "@tensorferry/gpu/TensorEngine"
import { encodeApply, encodeDiff } from "@tensorferry/native/ChangeTable"
import { bytesOfPart } from "@tensorferry/native/digest/DigestParts"
import { encodeDigest } from "@tensorferry/native/digest/DigestTable"
import { addressOf } from "@tensorferry/native/MoveTable"
import { encodeProduct } from "@tensorferry/native/ProductTable"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Figure } from "./replay.ts"

const rounds = 15
const warmUps = 3
const elements = 2 ** 28

/** Share of elements that changed, and milliseconds: of a search, and of a writing. */
const shares: ReadonlyArray<{ readonly share: number; readonly find?: number; readonly write: number }> = [
  { share: 0.0005, write: 0.02 },
  { share: 0.01, find: 0.4, write: 0.103 },
  { share: 0.03, write: 0.164 },
  { share: 0.1, write: 0.277 }
]

/** Ascending positions, each element with the same chance. */
const drawn = (count: number, share: number): Uint32Array => {
  let state = 12_345
  const made: Array<number> = []
  let at = -1
  for (;;) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    at += 1 + Math.floor(Math.log1p(-(state + 1) / 2 ** 32 + 2 ** -33) / Math.log1p(-share))
    if (!(at < count)) return Uint32Array.from(made)
    made.push(at)
  }
}

const upload = (engine: TensorEngineShape, tensor: Tensor, bytes: Uint8Array) =>
  Effect.scoped(
    Effect.gen(function* () {
      const src = Result.getOrThrow(tensorView(yield* engine.wrapHost(bytes), tensor.dtype, tensor.shape))
      yield* engine.copy([{ dst: tensor, src }])
    })
  )

/** Milliseconds of the device for work whose result nobody reads. */
const deviceTime = (engine: TensorEngineShape, table: BigUint64Array) => {
  const steps = new StepTable()
  steps.spanBegins(0, 0)
  steps.changes(0, 0, table)
  steps.spanEnds(0, 0)
  return spanTimes(engine, steps)
}

/** Milliseconds of the only span. */
const spanTimes = (engine: TensorEngineShape, steps: StepTable) =>
  Effect.gen(function* () {
    const program = Result.getOrThrow(makeProgram(deviceOf(engine)!.gpu, { steps: steps.table, moves: [] }))
    const times: Array<number> = []
    for (let round = -warmUps; round < rounds; round++) {
      const [microseconds] = yield* program.run
      if (round >= 0) times.push(microseconds! / 1000)
    }
    program.close()
    return times
  })

const wholeTime = <A, E>(effect: Effect.Effect<A, E>) =>
  Effect.gen(function* () {
    const times: Array<number> = []
    for (let round = -warmUps; round < rounds; round++) {
      const begun = performance.now()
      yield* effect
      if (round >= 0) times.push(performance.now() - begun)
    }
    return times
  })

const figureOf = (
  name: string,
  target: number | undefined,
  device: ReadonlyArray<number>,
  whole: ReadonlyArray<number>
): Figure => ({
  case: name,
  value: median(device),
  unit: "ms",
  ...(target === undefined ? {} : { target }),
  lowerIsBetter: true,
  detail: `median of ${rounds} on the device, fastest ${Math.min(...device).toFixed(3)}; whole Effect ${median(whole).toFixed(3)} ms`
})

/** Adapters of these ranks, added to a weight of 512 MiB; milliseconds. */
const ranks = [8, 64]
const columns = 16_384

const measureProducts = (engine: TensorEngineShape, shrink: number, tell: (figure: Figure) => void) =>
  Effect.gen(function* () {
    const rows = Math.max(1, Math.floor(elements / columns / shrink))
    const [base, destination] = [
      yield* engine.allocate("bfloat16", [rows, columns]),
      yield* engine.allocate("bfloat16", [rows, columns])
    ]
    yield* engine.fill(base, 0x3c)
    for (const rank of ranks) {
      const product = {
        b: yield* engine.allocate("bfloat16", [rows, rank]),
        a: yield* engine.allocate("bfloat16", [rank, columns]),
        scale: 0.5
      }
      yield* Effect.forEach([product.a, product.b], (factor) => engine.fill(factor, 0x3c))
      const steps = new StepTable()
      steps.spanBegins(0, 0)
      steps.product(0, encodeProduct(destination, base, product))
      steps.spanEnds(0, 0)
      const name = `add an adapter of rank ${rank} into ${((rows * columns) / 2 ** 19).toFixed(0)} MiB`
      const work = engine.addProduct(destination, base, product)
      tell(figureOf(name, 0.36, yield* spanTimes(engine, steps), yield* wholeTime(work)))
    }
  }).pipe(Effect.scoped)

/** Digests of a tensor of 512 MiB. */
const measureDigest = (engine: TensorEngineShape, shrink: number, tell: (figure: Figure) => void) =>
  Effect.gen(function* () {
    const tensor = yield* engine.allocate("bfloat16", [Math.floor(2 ** 28 / shrink)])
    yield* engine.fill(tensor, 0x3c)
    const entries = Result.getOrThrow(bytesOfPart(0, { tensor }))
    const words = yield* engine.wrapHost(new Uint8Array(16))
    const result = Result.getOrThrow(tensorView(words, "uint64", [2]))
    const steps = new StepTable()
    steps.spanBegins(0, 0)
    steps.digest(0, addressOf(result), encodeDigest(1, entries))
    steps.spanEnds(0, 0)
    const name = `digest of ${(tensorByteLength(tensor) / 2 ** 20).toFixed(0)} MiB`
    tell(figureOf(name, 0.2, yield* spanTimes(engine, steps), yield* wholeTime(engine.digest([{ tensor }]))))
  }).pipe(Effect.scoped)

/** Figures of searches, writings and adapters, each told as soon as it is known. `shrink` divides lengths, for rehearsals. */
export const measureChanges = (
  descriptor: BackendDescriptor,
  options: BackendOptions,
  shrink: number,
  tell: (figure: Figure) => void
): Effect.Effect<void, unknown> =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const count = Math.floor(elements / shrink)
    const host = new Uint16Array(count).map((_, at) => Math.imul(at, 40_503) >>> 8)
    const allocate = () => engine.allocate("bfloat16", [count])
    yield* measureDigest(engine, shrink, tell)
    yield* measureProducts(engine, shrink, tell)
    const [base, current] = [yield* allocate(), yield* allocate()]
    for (const { share, find, write } of shares) {
      yield* upload(engine, base, new Uint8Array(host.buffer))
      const positions = drawn(count, share)
      const values = Uint16Array.from(positions, (at) => host[at]! ^ (1 << (at % 16)))
      const changed = host.slice()
      for (let at = 0; at < positions.length; at++) changed[positions[at]!] = values[at]!
      yield* upload(engine, current, new Uint8Array(changed.buffer))
      const list: Changes = {
        positions: yield* engine.allocate("uint32", [positions.length]),
        values: yield* engine.allocate("bfloat16", [positions.length])
      }
      const percent = `${100 * share}%`
      const found = yield* engine.diff(base, current, list)
      const back = new Uint8Array(4 * positions.length)
      const there = Result.getOrThrow(tensorView(yield* engine.wrapHost(back), "uint32", [positions.length]))
      yield* engine.copy([{ dst: there, src: list.positions }])
      const isRight = found === positions.length && Buffer.compare(back, new Uint8Array(positions.buffer)) === 0
      if (!isRight) return yield* Effect.die(new Error(`${percent}: found ${found} of ${positions.length} changes.`))
      const search = yield* deviceTime(engine, encodeDiff(base, current, list))
      const name = `find and collect in 2 x ${(count / 2 ** 19).toFixed(0)} MiB, ${percent} changed`
      tell(figureOf(name, find, search, yield* wholeTime(engine.diff(base, current, list))))
      const written = yield* deviceTime(engine, encodeApply(base, list))
      const left = yield* engine.diff(base, current, list)
      if (left !== 0) return yield* Effect.die(new Error(`${percent}: ${left} elements differ after the writing.`))
      yield* upload(engine, list.positions, new Uint8Array(positions.buffer))
      const into = `write ${percent} into ${(count / 2 ** 19).toFixed(0)} MiB`
      tell(figureOf(into, write, written, yield* wholeTime(engine.apply(base, list))))
    }
  }).pipe(Effect.scoped, Effect.provide(descriptor.tensorEngine!(options)))
