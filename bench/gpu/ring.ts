// SPDX-License-Identifier: Apache-2.0
/**
 * A replay ring on a device: batches of 16,384 rows of 512 float32 out of a million rows, and 1,024 new rows a tick. PyTorch
 * gathers and sends the same in the same run. Times are of the whole Effect, as a learner waits for it.
 *
 * Every row states its number in its first column, so batches are held against the rows that seed and tick must have drawn.
 */
import type { BackendDescriptor, BackendOptions } from "@tensorferry/core/backend/BackendDescriptor"
import { median } from "@tensorferry/core/base/Numbers"
import { makeRowLayout } from "@tensorferry/core/replay/ReplayRowLayout"
import { drawRows } from "@tensorferry/core/replay/ReplaySampling"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { tensorView } from "@tensorferry/core/tensor/Tensor"
import { makeDeviceRing } from "@tensorferry/replay/DeviceRingLayer"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { runPython } from "./python.ts"
import type { Figure } from "./replay.ts"

const rounds = 201
/** A learner's ticks: V8 has compiled what they run. */
const warmUps = 600
const width = 512
const batchRows = 16_384
const newRows = 1024

/** What PyTorch's users do, in milliseconds. */
interface PythonTime {
  readonly case: string
  readonly ms: number
}

/** Figures of pushes, samples and ticks. `shrink` divides the rows, for rehearsals; `script` is PyTorch's side, if it is there. */
export const measureRing = (
  descriptor: BackendDescriptor,
  options: BackendOptions,
  shrink: number,
  script: string | undefined,
  tell: (figure: Figure) => void
): Effect.Effect<void, unknown> =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const layout = Result.getOrThrow(makeRowLayout([{ name: "observation", dtype: "float32", shape: [width] }]))
    const [capacity, count, added] = [2 ** 20, batchRows, newRows].map((rows) =>
      Math.max(64, Math.floor(rows / shrink))
    ) as [number, number, number]
    const ring = yield* makeDeviceRing({ layout, capacity })
    let end = 0
    const rowsOf = (from: number, rows: number): Uint8Array => {
      const made = new Float32Array(rows * width)
      for (let row = 0; row < rows; row++) made.fill((from + row) % 2 ** 24, row * width, (row + 1) * width)
      return new Uint8Array(made.buffer)
    }
    while (end < capacity) end = yield* ring.push(rowsOf(end, Math.min(8192, capacity - end)))
    const batch = yield* ring.allocateBatch({ count, window: 1, packing: "columns" })
    const seen = new Float32Array(count * width)
    const there = Result.getOrThrow(
      tensorView(yield* engine.wrapHost(new Uint8Array(seen.buffer)), "float32", [count, width])
    )
    /** Whether the batch in memory holds whole rows, those that seed and tick draw from `first` on. */
    const check = (tick: number, first: number, last: number) =>
      Effect.gen(function* () {
        yield* engine.copy([{ dst: there, src: batch.columns.observation! }])
        const drawn = drawRows({ seed: 7, tick, rows: count, range: last - first })
        for (let row = 0; row < count; row++)
          for (const column of [0, 255, width - 1])
            if (seen[row * width + column] !== (first + drawn[row]!) % 2 ** 24)
              return yield* Effect.die(new Error(`Tick ${tick}: row ${row} of the batch is wrong.`))
      })
    const of = (name: string, taken: ReadonlyArray<number>, target?: number): Figure => ({
      case: name,
      value: median(taken),
      unit: "ms",
      ...(target === undefined ? {} : { target }),
      lowerIsBetter: true,
      detail: `whole Effect, median of ${taken.length}, fastest ${Math.min(...taken).toFixed(4)}; ${ring.gather}`
    })
    const measured = <A, E>(
      work: (tick: number) => Effect.Effect<A, E>,
      checked: (tick: number, answer: A) => Effect.Effect<void, unknown>
    ) =>
      Effect.gen(function* () {
        const taken: Array<number> = []
        for (let round = -warmUps; round < rounds; round++) {
          const begun = performance.now()
          const answer = yield* work(round + warmUps)
          if (round >= 0) taken.push(performance.now() - begun)
          if (round % 50 === 0) yield* checked(round + warmUps, answer)
        }
        return taken
      })
    const rows = rowsOf(0, added)
    const sample = (tick: number) => ring.sample(batch, { seed: 7, tick })
    const names = `${count} of ${capacity} rows of ${width} float32`
    const samples = yield* measured(sample, (tick, { first, end: last }) => check(tick, first, last))
    // What a learner waits for once the rows of a tick are in place.
    tell(of(`replay ring: a batch of ${names}`, samples, 0.06))
    const pushes = yield* measured(
      () => ring.push(rows),
      () => Effect.void
    )
    tell(of(`replay ring: push ${added} rows`, pushes))
    for (const sees of ["old", "new"] as const) {
      const ticks = yield* measured(
        (tick) => ring.tick(rows, batch, { seed: 7, tick, sees }),
        () => Effect.void
      )
      tell(of(`replay ring: a tick of ${added} new rows, and a batch that sees ${sees} rows`, ticks))
    }
    if (script === undefined) return
    for (const { case: name, ms } of runPython<PythonTime>(script, [capacity, batchRows, width, newRows]))
      tell({
        case: `${name} (PyTorch, reference)`,
        value: ms,
        unit: "ms",
        lowerIsBetter: true,
        detail: "median of 200"
      })
  }).pipe(Effect.scoped, Effect.provide(descriptor.tensorEngine!(options)))
