// SPDX-License-Identifier: Apache-2.0
/**
 * `openRing` of engines whose addon has the kernel of rings: memory, checks and answers. How launches and copies get to the
 * device is the engine's.
 *
 * Invariant: an address reaches the addon only after its tensor was checked, and memory that a run uses stays until the run
 * has ended.
 */
import type { DType } from "@tensorferry/core/base/DType"
import { elementCount, formatShape } from "@tensorferry/core/base/Region"
import {
  columnAlignment,
  type RingGeometry,
  type RingSample,
  type RingStep
} from "@tensorferry/core/service/ReplayRingKernels"
import type { OpenRing, TensorEngineShape, TensorError } from "@tensorferry/core/service/TensorEngine"
import { isContiguous, type Tensor, tensorByteLength, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { describeTensor, type Refusal } from "./MoveChecks.ts"
import { addressOf } from "./MoveTable.ts"
import {
  answerBytes,
  answerOf,
  type LoweredStep,
  lowerRing,
  requestBytes,
  ringTable,
  stateBytes
} from "./RingProgram.ts"

/** What an engine lends to its rings. */
export interface RingEngine {
  /** As of the engine: memory for rows and the tree of weights. */
  readonly allocate: TensorEngineShape["allocate"]
  /** As of the engine. */
  readonly fill: TensorEngineShape["fill"]
  /** As of the engine. */
  readonly copy: TensorEngineShape["copy"]
  /** As of the engine: memory of the host that steps read. */
  readonly wrapHost: TensorEngineShape["wrapHost"]
  /** Makes the engine's errors. */
  readonly refusal: Refusal
  /** The engine's own check of one tensor. */
  readonly checkTensor: (op: string, tensor: Tensor, isWritten: boolean) => TensorError | undefined
  /** Draws go on one after the other, as on a processor. */
  readonly isSequential: boolean
  /** Carries out steps over these tensors and waits for their end. */
  readonly run: (steps: ReadonlyArray<LoweredStep>, tensors: ReadonlyArray<Tensor>) => Effect.Effect<void, TensorError>
}

const op = "ring"

/** Bytes that a batch takes. */
const batchBytes = ({ columns, rowBytes }: RingGeometry, { count, packing, window }: RingSample): number =>
  packing === "rows"
    ? count * window * rowBytes
    : columns.reduce(
        (sum, { byteLength }) => sum + Math.ceil((count * window * byteLength) / columnAlignment) * columnAlignment,
        0
      )

const isWhole = (value: number, least: number, most: number): boolean =>
  Number.isSafeInteger(value) && value >= least && value <= most

/** Tensors of a step that are read, and that are written. */
const tensorsOf = (step: RingStep): readonly [read: ReadonlyArray<Tensor>, written: ReadonlyArray<Tensor>] => {
  if (step._tag === "Place") return [[step.source], []]
  if (step._tag === "Sample") return [[], [step.into, step.positions, step.lengths]]
  return step._tag === "Weigh" ? [[step.positions, step.weights], []] : [[], []]
}

/** `openRing` of an engine. */
export const makeOpenRing = (engine: RingEngine): NonNullable<TensorEngineShape["openRing"]> => {
  const { refusal } = engine

  const isList = (tensor: Tensor, dtype: DType, length: number, alignment: number): boolean =>
    tensor.dtype === dtype &&
    elementCount(tensor.shape) === length &&
    isContiguous(tensor) &&
    addressOf(tensor) % alignment === 0

  /** What is wrong with the form of a step's tensors and numbers. */
  const formFault = (geometry: RingGeometry, step: RingStep): string | undefined => {
    const { capacity, rowBytes } = geometry
    switch (step._tag) {
      case "Place": {
        const { source } = step
        const rows = source.shape[0] ?? 0
        const fits = source.shape[1] === rowBytes && (step.at % capacity) + rows <= capacity
        return fits && isList(source, "uint8", rows * rowBytes, 1)
          ? undefined
          : `${describeTensor(source)} does not hold rows for slot ${step.at % capacity} of ${capacity}.`
      }
      case "Sample": {
        const { count, into, lengths, positions, window } = step
        if (!isWhole(count, 1, 2 ** 24) || !isWhole(window, 1, 2 ** 16)) return `${count} windows of ${window} rows.`
        if (step.episodes !== "cross" && geometry.episodeEnd === undefined) return "No byte says where episodes end."
        const fits =
          isList(positions, "int64", count, 8) && isList(lengths, "uint32", count, 4) && into.dtype === "uint8"
        return fits && isContiguous(into) && tensorByteLength(into) >= batchBytes(geometry, step)
          ? undefined
          : `${describeTensor(into)} with ${formatShape(positions.shape)} positions does not hold ${count} windows.`
      }
      case "Weigh": {
        const length = step.positions.shape[0] ?? -1
        return isList(step.positions, "int64", length, 8) && isList(step.weights, "uint32", length, 4)
          ? undefined
          : `${describeTensor(step.positions)} and ${describeTensor(step.weights)} are not positions and weights.`
      }
      case "Reserve":
      case "Commit":
        return isWhole(step.at, 0, 2 ** 53 - 2 ** 32) && isWhole(step.rows, 0, capacity)
          ? undefined
          : `${step.rows} rows from ${step.at} on.`
      default:
        return undefined
    }
  }

  const faultOf = (geometry: RingGeometry, step: RingStep): TensorError | undefined => {
    const fault = formFault(geometry, step)
    if (fault !== undefined) return refusal("InvalidRequest", op, fault)
    const [read, written] = tensorsOf(step)
    for (const tensor of read) {
      const wrong = engine.checkTensor(op, tensor, false)
      if (wrong !== undefined) return wrong
    }
    for (const tensor of written) {
      const wrong = engine.checkTensor(op, tensor, true)
      if (wrong !== undefined) return wrong
    }
    return undefined
  }

  const bytes = (length: number) => engine.allocate("uint8", [length])

  return Effect.fnUntraced(function* (geometry: RingGeometry): Effect.fn.Return<OpenRing, TensorError, Scope.Scope> {
    const { capacity, rowBytes } = geometry
    if (!isWhole(capacity, 1, 2 ** 31) || !isWhole(rowBytes, 8, 2 ** 31 - 8) || rowBytes % 8 !== 0) {
      return yield* refusal("InvalidRequest", op, `A ring of ${capacity} rows of ${rowBytes} bytes.`)
    }
    const rows = yield* engine.allocate("uint8", [capacity, rowBytes])
    const state = yield* bytes(stateBytes(capacity))
    yield* engine.fill(state, 0)
    const content = ringTable(geometry)
    const table = yield* bytes(content.byteLength)
    const uploaded = Effect.gen(function* () {
      const src = { ...table, storage: yield* engine.wrapHost(content), byteOffset: 0 }
      yield* engine.copy([{ dst: table, src: { ...src, device: src.storage.device } }])
    })
    yield* Effect.scoped(uploaded)
    const requests = [yield* bytes(requestBytes), yield* bytes(requestBytes)] as const
    const own = [rows, state, table, ...requests]

    const run = (steps: ReadonlyArray<RingStep>) =>
      Effect.scoped(
        Effect.gen(function* () {
          for (const step of steps) {
            const fault = faultOf(geometry, step)
            if (fault !== undefined) return yield* fault
          }
          const freed = own.find(({ storage }) => storage.isFreed())
          if (freed !== undefined) return yield* refusal("FreedStorage", op, "The ring was closed.")
          const samples = steps.filter(({ _tag }) => _tag === "Sample").length
          // A buffer of its own does not move while the device writes to it.
          const answers = new BigUint64Array(new ArrayBuffer(Math.max(1, samples) * answerBytes))
          const storage = yield* engine.wrapHost(new Uint8Array(answers.buffer))
          const view = yield* Effect.orDie(Effect.fromResult(tensorView(storage, "uint8", [answers.byteLength])))
          const places = {
            geometry,
            state: addressOf(state),
            rows: addressOf(rows),
            table: addressOf(table),
            requests: [addressOf(requests[0]), addressOf(requests[1])] as const,
            answers: addressOf(view),
            isSequential: engine.isSequential
          }
          const used = steps.flatMap((step) => tensorsOf(step).flat())
          yield* engine.run(lowerRing(places, steps), [...own, ...used])
          return Array.from({ length: samples }, (_, at) => answerOf(answers.subarray(6 * at, 6 * at + 6)))
        })
      )

    return { gather: "kernel", rows, run }
  })
}
