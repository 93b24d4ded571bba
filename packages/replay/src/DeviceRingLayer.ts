// SPDX-License-Identifier: Apache-2.0
/**
 * `DeviceReplayRing` over any `TensorEngine`: checks, pieces, turns and deadlines. What the device does is `OpenRing`.
 *
 * Invariants: one run is under way at a time. Rows are copied to pinned memory of the ring before they travel, so the
 * caller's memory may change as soon as a push ends, and the pinned memory is written again only after its run has ended.
 */
import { bitsOf } from "@tensorferry/core/base/DType"
import { equalShapes } from "@tensorferry/core/base/Region"
import type { RingAnswer, RingSample, RingStep } from "@tensorferry/core/service/ReplayRingKernels"
import { orAfterRunningTime } from "@tensorferry/core/service/RunningTime"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { isContiguous, type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import { type BatchForm, batchByteLength, batchColumns } from "./BatchLayout.ts"
import { openRing } from "./copyingRing.ts"
import {
  type DeviceBatch,
  type DeviceDraw,
  DeviceReplayRing,
  type DeviceReplayRingShape,
  type DeviceRingInput,
  type DrawnFrom
} from "./DeviceReplayRing.ts"
import { type DeviceRingError, type DeviceRingReason, deviceRingError, ofEngine } from "./DeviceRingError.ts"
import { type Pushed, pieceRowsOf, pushSteps } from "./pushSteps.ts"

/** Pieces of one run: as many may lie before a sample that waits its turn. */
const piecesOfRun = 4
const defaultPieceBytes = 2 ** 20
const pageBytes = 4096
const mostCount = 2 ** 24
const mostWindow = 2 ** 16
const mostRows = 2 ** 31
const mostWeight = 2 ** 32 - 1

const remedies: Partial<Record<DeviceRingReason["_tag"], string>> = {
  InvalidLayout: `Give 1 to ${mostRows} rows, and as the end of episodes a scalar column of bool, uint8 or int8.`,
  InvalidRequest: "Give whole packed rows, natural numbers, and memory of allocateBatch of this ring.",
  RingEmpty: "Push rows first.",
  NothingToDraw: "Draw shorter windows or fewer of them, push more rows, or give rows weights.",
  RingTorn: "Let only the ring's own service write to its memory, and make a new ring.",
  DeviceFailed: "Make a new ring.",
  DeadlineExceeded: "See whether the device still works; the work goes on, and later operations wait for it."
}

const refuse = (tag: DeviceRingReason["_tag"], op: string, detail: string): DeviceRingError =>
  deviceRingError(tag, { op, detail, remedy: remedies[tag] ?? "", isRetryable: tag === "DeadlineExceeded" })

const isWhole = (value: number, least: number, most: number): boolean =>
  Number.isSafeInteger(value) && value >= least && value <= most

/** Which byte of a row says that an episode ends. */
const endByte = ({ capacity, episodeEnd, layout }: DeviceRingInput): Result.Result<number | undefined, string> => {
  if (!isWhole(capacity, 1, mostRows)) return Result.fail(`A ring of ${capacity} rows`)
  if (episodeEnd === undefined) return Result.succeed(undefined)
  const column = layout.columns.find(({ name }) => name === episodeEnd)
  if (column === undefined) return Result.fail(`There is no column "${episodeEnd}"`)
  return column.shape.length === 0 && ["bool", "uint8", "int8"].includes(column.dtype)
    ? Result.succeed(column.byteOffset)
    : Result.fail(`Column "${episodeEnd}" of ${bitsOf(column.dtype)} bits and ${column.shape.length} dimensions`)
}

/** Why a batch of this form cannot be. */
const formFault = ({ count, window }: BatchForm, capacity: number): string | undefined =>
  isWhole(count, 1, mostCount) && isWhole(window, 1, Math.min(mostWindow, capacity))
    ? undefined
    : `A batch of ${count} windows of ${window} rows of a ring of ${capacity}`

const answerFault = (op: string, asked: RingSample, answer: RingAnswer): DeviceRingError | undefined => {
  const { drawn, end, first, isTorn } = answer
  if (isTorn) return refuse("RingTorn", op, `Rows ${first} to ${end} of the ring contradict what was pushed.`)
  if (drawn === asked.count) return undefined
  if (end === first) return refuse("RingEmpty", op, "The ring has no row that can be drawn.")
  const what = `${asked.draws} windows of ${asked.window} rows`
  return refuse("NothingToDraw", op, `Rows ${first} to ${end} gave ${drawn} of ${asked.count} ${what}.`)
}

/**
 * Host memory for rows that the device reaches at the speed of the link. It has its pages for itself: devices refuse copies of
 * other memory that lies on a pinned page in part.
 */
const pinnedRows = Effect.fnUntraced(function* (engine: TensorEngineShape, rows: number, rowBytes: number) {
  const length = Math.ceil((rows * rowBytes) / pageBytes) * pageBytes
  const storage = yield* engine.wrapHost(new Uint8Array(length + pageBytes))
  const byteOffset = (pageBytes - Number(storage.address % BigInt(pageBytes))) % pageBytes
  const pages = yield* Effect.orDie(Effect.fromResult(tensorView(storage, "uint8", [length], { byteOffset })))
  if (engine.pinHost !== undefined) yield* engine.pinHost(pages)
  const bytes = storage.bytes!.subarray(byteOffset, byteOffset + rows * rowBytes)
  const tensor: Tensor = { ...pages, shape: [rows, rowBytes], strides: [rowBytes, 1] }
  return { bytes, tensor }
})

/** Makes a ring over an engine; it is freed by the scope. */
export const makeDeviceRing = Effect.fnUntraced(function* (
  input: DeviceRingInput
): Effect.fn.Return<DeviceReplayRingShape, DeviceRingError, TensorEngine | Scope.Scope> {
  const engine = yield* TensorEngine
  const background = yield* Effect.scope
  const { capacity, layout } = input
  const { rowBytes } = layout
  const deadline = Duration.fromInputUnsafe(input.deadline ?? "60 seconds")
  const end = endByte(input)
  if (Result.isFailure(end)) return yield* refuse("InvalidLayout", "makeDeviceRing", `${end.failure} cannot be.`)
  const episodeEnd = end.success
  const geometry = {
    capacity,
    rowBytes,
    columns: layout.columns.map(({ byteLength, byteOffset }) => ({ byteLength, byteOffset })),
    ...(episodeEnd === undefined ? {} : { episodeEnd })
  }
  const pieceRows = pieceRowsOf(capacity, Math.floor((input.pieceBytes ?? defaultPieceBytes) / rowBytes))
  const failed = ofEngine("makeDeviceRing")
  const open = yield* Effect.mapError(openRing(engine, geometry), failed)
  const { bytes: staging, tensor: staged } = yield* Effect.mapError(
    pinnedRows(engine, piecesOfRun * pieceRows, rowBytes),
    failed
  )

  const turns = yield* Semaphore.make(1)
  let written = 0
  let broken: DeviceRingError | undefined

  /** One run that nobody takes back: its caller may stop waiting, the ring may not. */
  const runNow = (op: string, steps: ReadonlyArray<RingStep>, done: () => void) =>
    Effect.suspend(() => {
      if (broken !== undefined) return Effect.fail(broken)
      return Effect.tapError(Effect.tap(Effect.mapError(open.run(steps), ofEngine(op)), Effect.sync(done)), (error) =>
        Effect.sync(() => {
          if (error.reason._tag !== "InvalidRequest") {
            broken = refuse("DeviceFailed", op, `An earlier operation failed: ${error.reason.detail}`)
          }
        })
      )
    })

  /** Takes a turn of the device, and waits for its end until the deadline. */
  const turn = <A>(op: string, work: Effect.Effect<A, DeviceRingError>): Effect.Effect<A, DeviceRingError> => {
    const taken = Effect.uninterruptibleMask((restore) =>
      Effect.gen(function* () {
        yield* restore(turns.take(1))
        const ended = Effect.ensuring(work, turns.release(1))
        const fiber = yield* Effect.forkIn(Effect.uninterruptible(ended), background, { startImmediately: true })
        return yield* restore(Fiber.join(fiber))
      })
    )
    return orAfterRunningTime(taken, {
      duration: deadline,
      orElse: () =>
        Effect.fail(
          refuse("DeadlineExceeded", op, `The device did not end the work within ${Duration.format(deadline)}.`)
        )
    })
  }

  const sampleOf = ({ form, lengths, memory, positions }: DeviceBatch, draw: DeviceDraw): RingSample => ({
    ...form,
    seed: draw.seed,
    tick: draw.tick,
    draws: draw.draws ?? "uniform",
    episodes: draw.episodes ?? "cross",
    into: memory,
    positions,
    lengths
  })

  const drawFault = (op: string, { form }: DeviceBatch, draw: DeviceDraw): DeviceRingError | undefined => {
    const fault = formFault(form, capacity)
    if (fault !== undefined) return refuse("InvalidRequest", op, `${fault} cannot be drawn.`)
    if (!isWhole(draw.seed, 0, Number.MAX_SAFE_INTEGER) || !isWhole(draw.tick, 0, Number.MAX_SAFE_INTEGER)) {
      return refuse("InvalidRequest", op, `Seed ${draw.seed} and tick ${draw.tick} are not natural numbers.`)
    }
    return (draw.episodes ?? "cross") !== "cross" && episodeEnd === undefined
      ? refuse("InvalidRequest", op, "The ring has no column that says where episodes end.")
      : undefined
  }

  const drawn = (op: string, asked: RingSample, [answer]: ReadonlyArray<RingAnswer>) =>
    Effect.suspend((): Effect.Effect<DrawnFrom, DeviceRingError> => {
      const fault = answerFault(op, asked, answer!)
      return fault === undefined
        ? Effect.succeed({ first: answer!.first, end: answer!.end, total: answer!.total })
        : Effect.fail(fault)
    })

  /** Pushes some rows in one run. */
  const pushSome = (op: string, rows: Uint8Array, weight: number, sampled: Pick<Pushed, "sample" | "sees">) =>
    turn(
      op,
      Effect.suspend(() => {
        staging.set(rows)
        const count = rows.byteLength / rowBytes
        const some = { ...staged, shape: [count, rowBytes] }
        const steps = pushSteps({ geometry, at: written, pieceRows, weight, rows: some, ...sampled })
        return runNow(op, steps, () => {
          written += count
        })
      })
    )

  const pushFault = (op: string, rows: Uint8Array, weight: number): DeviceRingError | undefined => {
    if (rows.byteLength % rowBytes !== 0) {
      return refuse("InvalidRequest", op, `${rows.byteLength} bytes are not whole rows of ${rowBytes} bytes.`)
    }
    return isWhole(weight, 0, mostWeight)
      ? undefined
      : refuse("InvalidRequest", op, `The weight ${weight} is not a whole number of 32 bits.`)
  }

  const pieceOf = (rows: Uint8Array, at: number): Uint8Array => rows.subarray(at, at + staging.byteLength)

  /** Pushes rows from a byte on. */
  const pushRest = Effect.fnUntraced(function* (op: string, rows: Uint8Array, from: number, weight: number) {
    for (let at = from; at < rows.byteLength; at += staging.byteLength) {
      yield* pushSome(op, pieceOf(rows, at), weight, {})
    }
    return written
  })

  const weighFault = (positions: Tensor, weights: Tensor): DeviceRingError | undefined => {
    const fits =
      positions.dtype === "int64" &&
      weights.dtype === "uint32" &&
      positions.shape.length === 1 &&
      equalShapes(positions.shape, weights.shape) &&
      [positions, weights].every(isContiguous)
    return fits
      ? undefined
      : refuse("InvalidRequest", "weigh", "Positions are int64 and weights uint32, dense and of one length.")
  }

  return {
    layout,
    capacity,
    gather: open.gather,
    pieceRows,
    push: Effect.fn("DeviceReplayRing.push")(function* (rows, weight = 1) {
      const fault = pushFault("push", rows, weight)
      return yield* fault ?? pushRest("push", rows, 0, weight)
    }),
    allocateBatch: Effect.fn("DeviceReplayRing.allocateBatch")(function* (form) {
      const op = "allocateBatch"
      const fault = formFault(form, capacity)
      if (fault !== undefined) return yield* refuse("InvalidRequest", op, `${fault} cannot be.`)
      const allocate = (dtype: "uint8" | "int64" | "uint32", length: number) =>
        Effect.mapError(engine.allocate(dtype, [length]), ofEngine(op))
      const memory = yield* allocate("uint8", batchByteLength(layout, form))
      const columns = batchColumns(layout, form, memory)
      if (Result.isFailure(columns)) return yield* refuse("InvalidRequest", op, `${columns.failure.detail}.`)
      const [positions, lengths] = [yield* allocate("int64", form.count), yield* allocate("uint32", form.count)]
      return { form, memory, columns: columns.success, positions, lengths }
    }),
    sample: Effect.fn("DeviceReplayRing.sample")(function* (into, draw) {
      const fault = drawFault("sample", into, draw)
      if (fault !== undefined) return yield* fault
      const asked = sampleOf(into, draw)
      const steps: ReadonlyArray<RingStep> = [{ _tag: "Sample", stream: 0, ...asked }]
      const answers = yield* turn(
        "sample",
        runNow("sample", steps, () => undefined)
      )
      return yield* drawn("sample", asked, answers)
    }),
    tick: Effect.fn("DeviceReplayRing.tick")(function* (rows, into, draw, weight = 1) {
      const op = "tick"
      const fault = pushFault(op, rows, weight) ?? drawFault(op, into, draw)
      if (fault !== undefined) return yield* fault
      const sample = sampleOf(into, draw)
      const sees = draw.sees ?? "old"
      // Old rows are drawn in the first run, new ones in the last.
      const runs = Math.max(1, Math.ceil(rows.byteLength / staging.byteLength))
      const at = sees === "old" ? 0 : (runs - 1) * staging.byteLength
      yield* pushRest(op, rows.subarray(0, at), 0, weight)
      const from = yield* drawn(op, sample, yield* pushSome(op, pieceOf(rows, at), weight, { sample, sees }))
      yield* pushRest(op, rows, at + staging.byteLength, weight)
      return from
    }),
    weigh: Effect.fn("DeviceReplayRing.weigh")(function* (positions, weights) {
      const fault = weighFault(positions, weights)
      if (fault !== undefined) return yield* fault
      if (positions.shape[0] === 0) return
      const steps: ReadonlyArray<RingStep> = [{ _tag: "Weigh", stream: 0, positions, weights }]
      yield* turn(
        "weigh",
        runNow("weigh", steps, () => undefined)
      )
    })
  }
})

/** The ring as a service over the engine in the context. */
export const layer = (input: DeviceRingInput): Layer.Layer<DeviceReplayRing, DeviceRingError, TensorEngine> =>
  Layer.effect(DeviceReplayRing, makeDeviceRing(input))
