// SPDX-License-Identifier: Apache-2.0
/**
 * `TensorEngine` for host memory: strided and casting copies, reductions, block scaling, changes, digests and fills on threads of its own.
 *
 * Invariants: everything is checked before any byte moves; memory stays in place while native work uses it, also when
 * the caller is interrupted or frees it meanwhile. Every tensor it allocates can be shared with other processes.
 */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { elementCount } from "@tensorferry/core/base/Region"
import type { HostMemoryShape } from "@tensorferry/core/service/HostMemory"
import {
  type Fence,
  type KnownScales,
  TensorEngine,
  type TensorEngineCapabilities,
  type TensorEngineShape,
  type TensorError,
  tensorError
} from "@tensorferry/core/service/TensorEngine"
import { cpu } from "@tensorferry/core/tensor/Device"
import { type QuantizedTensor, quantizedForms } from "@tensorferry/core/tensor/QuantizedTensor"
import type { Move, Tensor } from "@tensorferry/core/tensor/Tensor"
import { makeChangeCheck, positionsRefusal } from "@tensorferry/native/ChangeChecks"
import { encodeApply, encodeDiff } from "@tensorferry/native/ChangeTable"
import { makeDigestCheck } from "@tensorferry/native/digest/DigestParts"
import { digestsOfHalves, encodeDigest } from "@tensorferry/native/digest/DigestTable"
import {
  checkedWork,
  type EngineErrors,
  makeAllocate,
  makeFillCheck,
  makeWrapHost
} from "@tensorferry/native/EngineParts"
import { makeReduceCheck } from "@tensorferry/native/MoveChecks"
import { addressOf, encodeFill, encodeReduce } from "@tensorferry/native/MoveTable"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import { acquirePool, type NativeJob, type Start, startJob } from "@tensorferry/native/NativeJob"
import { makeProductCheck } from "@tensorferry/native/ProductChecks"
import { encodeProduct } from "@tensorferry/native/ProductTable"
import { makeQuantizeCheck } from "@tensorferry/native/QuantizeChecks"
import { encodeLargest, encodeQuantize } from "@tensorferry/native/QuantizeTable"
import { makeOpenRing } from "@tensorferry/native/RingKernels"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type * as EffectScope from "effect/Scope"
import { type Addon, backendName, loadAddon } from "./Addon.ts"
import { makeBatchCache } from "./BatchCache.ts"
import { makeChecks, pinsOf, refusal } from "./checks.ts"
import * as HostMemory from "./HostMemory.ts"
import { type PinCount, pinAll } from "./PinCount.ts"
import { encodeRing } from "./ringTable.ts"
import { unavailableBecause } from "./unavailable.ts"

/** How the engine of host memory works. */
export interface TensorEngineOptions {
  /** Threads that copy; 2 by default. */
  readonly threads?: number
}

/** What the engine of host memory promises; the conformance kit holds it to each flag. */
export const capabilities: TensorEngineCapabilities = {
  cast: true,
  reduce: true,
  quantize: quantizedForms,
  changes: true,
  products: true,
  hostVisible: true
}

/** Threads that copy, cast and reduce where no option says otherwise. */
export const defaultThreads = 2

const failureOf = (op: string, failure: NativeFailure): TensorError =>
  failure.code === "InvalidArgument"
    ? refusal("InvalidRequest", op, failure.detail)
    : tensorError(failure.code === "OutOfMemory" ? "OutOfMemory" : "DeviceFailure", {
        backend: backendName,
        op,
        detail: `${failure.op}: ${failure.detail}`,
        remedy:
          failure.code === "Cancelled"
            ? "The engine was closed; build it again."
            : "Report the failure with its detail.",
        nativeCode: failure.nativeCode
      })

const errors: EngineErrors = { refusal, failureOf }

/** An engine over given host memory. */
export const make = Effect.fnUntraced(function* (
  addon: Addon,
  memory: HostMemoryShape,
  options: TensorEngineOptions = {}
): Effect.fn.Return<TensorEngineShape, BackendError, EffectScope.Scope> {
  const pool = yield* Effect.mapError(acquirePool(addon, options.threads ?? defaultThreads), unavailableBecause)
  const checks = makeChecks(addon)
  const batches = makeBatchCache()
  const running = new Set<NativeJob<unknown>>()

  /** Runs native work over memory that stays pinned until it has stopped. */
  const work = <A>(op: string, pins: Iterable<PinCount>, start: Start<A>): Effect.Effect<A, TensorError> =>
    Effect.uninterruptibleMask((restore) =>
      Effect.suspend(() => {
        const unpin = pinAll(pins)
        const started = startJob<A>(addon, start, () => {
          unpin()
          if (Result.isSuccess(started)) running.delete(started.success)
        })
        if (Result.isFailure(started)) {
          unpin()
          return Effect.fail(failureOf(op, started.failure))
        }
        const job = started.success
        running.add(job)
        return restore(job.await).pipe(
          Effect.onInterrupt(() => job.cancel),
          Effect.mapError((failure) => failureOf(op, failure))
        )
      })
    )

  const checkReduce = makeReduceCheck(refusal, checks.checkApart)

  const checkFill = makeFillCheck(errors, checks.checkMove)

  const quantizeChecks = makeQuantizeCheck(refusal, checks, capabilities.quantize)

  const conversion = (
    op: "quantize" | "dequantize",
    plain: Tensor,
    quantized: QuantizedTensor,
    known: KnownScales = {}
  ) =>
    checkedWork(
      () => quantizeChecks.conversion(op, plain, quantized, known),
      () => {
        if (plain.shape.includes(0)) return Effect.void
        const { data, global, scale } = quantized
        const tensors = [plain, data, scale, global, known.maxima].filter((tensor) => tensor !== undefined)
        return work(op, pinsOf(tensors), (done) =>
          addon.startQuantize(pool, encodeQuantize(op, plain, quantized, addressOf, known), done)
        )
      }
    )

  const largest: TensorEngineShape["largest"] = (source, maxima, block, origin = [0, 0]) =>
    checkedWork(
      () => quantizeChecks.largest(source, maxima, block, origin),
      () => {
        if (source.shape.includes(0) || maxima.shape.includes(0)) return Effect.void
        const isOne = elementCount(maxima.shape) === 1
        return work("largest", pinsOf([source, maxima]), (done) =>
          addon.startQuantize(pool, encodeLargest(source, maxima, block, origin, isOne, addressOf), done)
        )
      }
    )

  const checkProduct = makeProductCheck(refusal, checks)

  const checkDigest = makeDigestCheck(refusal, checks)

  const changeChecks = makeChangeCheck(refusal, checks)

  /** Runs the table of a search for changes, or of their writing. */
  const changes = (op: string, table: BigUint64Array, tensors: ReadonlyArray<Tensor>) =>
    work<number>(op, pinsOf(tensors), (done) => addon.startChanges(pool, table, done))

  const engine: TensorEngineShape = {
    name: backendName,
    deviceFamilies: ["cpu"],
    capabilities,
    allocate: makeAllocate(errors, cpu, (byteLength) =>
      Effect.mapError(memory.allocate(byteLength), ({ reason }) =>
        tensorError(reason._tag === "OutOfMemory" ? "OutOfMemory" : "DeviceFailure", { ...reason, op: "allocate" })
      )
    ),
    wrapHost: makeWrapHost(errors, addon),
    copy: (moves: ReadonlyArray<Move>) =>
      Effect.suspend(() => {
        const known = batches.get(moves)
        const checked = known === undefined ? checks.checkBatch("copy", moves) : Result.succeed(known)
        if (Result.isFailure(checked)) return Effect.fail(checked.failure)
        const { table, pins } = checked.success
        if (table.length === 0) return Effect.void
        return work("copy", pins, (done) => {
          const started = addon.startMoves(pool, table, known === undefined, done)
          if (started.code === "Ok" && known === undefined) batches.set(moves, checked.success)
          return started
        })
      }),
    reduce: (dst, sources, op) =>
      checkedWork(
        () => checkReduce(dst, sources, op),
        () => {
          if (dst.shape.includes(0)) return Effect.void
          return work(`reduce ${op}`, pinsOf([dst, ...sources]), (done) =>
            addon.startReduce(pool, encodeReduce(dst, sources, op), done)
          )
        }
      ),
    fill: (tensor, byte) =>
      checkedWork(
        () => checkFill(tensor, byte),
        ({ dst }) => {
          if (dst.shape.includes(0)) return Effect.void
          return work("fill", pinsOf([dst]), (done) => addon.startMoves(pool, encodeFill(dst, byte), false, done))
        }
      ),
    quantize: (source, destination, known) => conversion("quantize", source, destination, known),
    dequantize: (source, destination, origin) =>
      conversion("dequantize", destination, source, origin === undefined ? {} : { origin }),
    largest,
    addProduct: (destination, base, product) =>
      checkedWork(
        () => checkProduct(destination, base, product),
        () =>
          work("addProduct", pinsOf([destination, base, product.a, product.b]), (done) =>
            addon.startProduct(pool, encodeProduct(destination, base, product), done)
          )
      ),
    diff: (base, current, into) =>
      checkedWork(
        () => changeChecks.diff(base, current, into),
        () =>
          current.shape.includes(0)
            ? Effect.succeed(0)
            : changes("diff", encodeDiff(base, current, into), [base, current, into.positions, into.values])
      ),
    apply: (destination, list) =>
      checkedWork(
        () => changeChecks.apply(destination, list),
        () =>
          list.positions.shape[0] === 0
            ? Effect.void
            : Effect.flatMap(
                changes("apply", encodeApply(destination, list), [destination, list.positions, list.values]),
                (wrong) => (wrong < 0 ? Effect.void : Effect.fail(positionsRefusal(refusal, destination, wrong)))
              )
      ),
    digest: (parts) =>
      checkedWork(
        () => checkDigest(parts),
        (entries) => {
          const tensors = parts.map(({ tensor }) => tensor)
          const halves = work<BigUint64Array>("digest", pinsOf(tensors), (done) =>
            addon.startDigest(pool, encodeDigest(parts.length, entries), done)
          )
          return Effect.map(halves, digestsOfHalves)
        }
      ),
    fence: Effect.sync((): Fence => {
      const submitted = [...running]
      return {
        await: Effect.forEach(
          submitted,
          (job) => Effect.mapError(job.await, (failure) => failureOf("fence", failure)),
          {
            discard: true
          }
        )
      }
    })
  }
  const openRing = makeOpenRing({
    ...engine,
    refusal,
    checkTensor: checks.checkTensor,
    isSequential: true,
    run: (steps, tensors) => work("ring", pinsOf(tensors), (done) => addon.startRing(pool, encodeRing(steps), done))
  })
  return { ...engine, openRing }
})

/** Fails with "Unavailable" where the addon cannot be loaded. */
export const layer = (options: TensorEngineOptions = {}): Layer.Layer<TensorEngine, BackendError> =>
  Layer.effect(
    TensorEngine,
    Effect.gen(function* () {
      const addon = yield* loadAddon
      return yield* make(addon, yield* HostMemory.make(addon), options)
    })
  )
