// SPDX-License-Identifier: Apache-2.0
/**
 * `TensorEngine` for memory of one device: a batch is one program of one kernel, and copies by the copy engines between
 * device and host.
 *
 * Invariants: everything is checked before any byte moves; memory stays while work on it runs, also when the caller is
 * interrupted or frees it meanwhile. Memory of other devices of the process takes part where this one can reach it.
 */
import { availableParallelism } from "node:os"
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { elementCount } from "@tensorferry/core/base/Region"
import { busyPoll, defaultBusyPollMillis } from "@tensorferry/core/service/BusyPolling"
import {
  type KnownScales,
  TensorEngine,
  type TensorEngineShape,
  type TensorError
} from "@tensorferry/core/service/TensorEngine"
import type { QuantizedTensor } from "@tensorferry/core/tensor/QuantizedTensor"
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
  makeWorkAccount,
  makeWrapHost
} from "@tensorferry/native/EngineParts"
import { makeReduceCheck } from "@tensorferry/native/MoveChecks"
import { addressOf, encodeFill, encodeReduce } from "@tensorferry/native/MoveTable"
import { makeProductCheck } from "@tensorferry/native/ProductChecks"
import { encodeProduct } from "@tensorferry/native/ProductTable"
import { makeQuantizeCheck } from "@tensorferry/native/QuantizeChecks"
import { encodeLargest, encodeQuantize } from "@tensorferry/native/QuantizeTable"
import { makeOpenRing } from "@tensorferry/native/RingKernels"
import type { LoweredStep } from "@tensorferry/native/RingProgram"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type * as EffectScope from "effect/Scope"
import { loadAddon, packageName } from "./Addon.ts"
import { makeBatchPrograms, makeScalingLists } from "./BatchPrograms.ts"
import { tensorEngineCapabilities } from "./capabilities.ts"
import { type CheckedBatch, type HostRange, makeChecks } from "./checks.ts"
import { type DeviceMemory, makeDeviceMemory } from "./DeviceMemory.ts"
import { refusal, tensorFailure } from "./failures.ts"
import { type Gpu, openGpu } from "./Gpu.ts"
import { makeProgram, type ProgramSteps, runOnce } from "./GpuProgram.ts"
import type { GpuOptions } from "./options.ts"
import { makePins } from "./pins.ts"
import { StepTable } from "./StepTable.ts"

/** The device that an engine works on, and its memory. */
export interface EngineDevice {
  readonly gpu: Gpu
  readonly memory: DeviceMemory
}

const device: unique symbol = Symbol("@tensorferry/backend-cuda/EngineDevice")

interface GpuEngine extends TensorEngineShape {
  readonly [device]: EngineDevice
}

/** The device behind an engine of this package, also through wrappers that spread it; undefined for other engines. */
export const deviceOf = (engine: TensorEngineShape): EngineDevice | undefined => (engine as Partial<GpuEngine>)[device]

/** Work keeps its thread awake for so long: what takes longer hardly feels what it costs to wake a thread. */
const awakeMillis = Math.min(2, defaultBusyPollMillis(availableParallelism(), 1))

/** Kernels, copies to the device and copies from it each have a stream. */
const kernels = 0
const toDevice = 1
const fromDevice = 2

const stepsOf = ({ table, copies }: CheckedBatch): ProgramSteps => {
  const steps = new StepTable()
  if (table.length > 0) steps.moves(kernels, 0)
  for (const { isToDevice, destination, source, byteLength } of copies) {
    steps.copyHost(isToDevice ? toDevice : fromDevice, destination, source, byteLength)
  }
  return { steps: steps.table, moves: table.length > 0 ? [table] : [] }
}

const kernelSteps = (add: (steps: StepTable) => void, moves: ReadonlyArray<BigUint64Array> = []): ProgramSteps => {
  const steps = new StepTable()
  add(steps)
  return { steps: steps.table, moves }
}

/** Steps of a replay ring: its kernel on one stream, its rows on their way to the device on the other. */
const ringSteps = (lowered: ReadonlyArray<LoweredStep>): ProgramSteps =>
  kernelSteps((steps) => {
    for (const step of lowered) {
      if (step.kind === "launch") steps.ring(step.stream, step.words)
      else if (step.kind === "copy") steps.copy(step.stream, step.destination, step.source, step.byteLength)
      else if (step.kind === "record") steps.record(step.stream, step.event)
      else steps.wait(step.stream, step.event)
    }
  })

/** What the addon gives for a writing whose positions are all right; else the place of a wrong one. */
const allAscend = 2n ** 64n - 1n

const errors: EngineErrors = { refusal, failureOf: tensorFailure }

/** What conversions between values and quantized tensors stand on. */
interface ConversionParts {
  readonly gpu: Gpu
  readonly checks: ReturnType<typeof makeChecks>
  readonly batches: ReturnType<typeof makeBatchPrograms>
  readonly work: ReturnType<typeof makeWorkAccount>["work"]
  readonly runSteps: (
    op: string,
    steps: ProgramSteps,
    pins: ReadonlyArray<HostRange>
  ) => Effect.Effect<void, TensorError>
}

/** Quantizing, reading back and maxima. */
const makeConversions = ({ gpu, checks, batches, work, runSteps }: ConversionParts) => {
  const quantizeChecks = makeQuantizeCheck(refusal, checks, tensorEngineCapabilities.quantize)

  const scalings = makeScalingLists()

  const conversion = (
    op: "quantize" | "dequantize",
    plain: Tensor,
    quantized: QuantizedTensor,
    known: KnownScales = {}
  ) =>
    Effect.suspend(() => {
      // Maxima and origins are as good as new each time; programs are kept for conversions that need neither.
      const isKnownAgain = known.maxima === undefined && known.origin === undefined
      const scaling = known.keepsGlobal === true && op === "quantize" ? "keep" : op
      const list = isKnownAgain ? scalings.listOf(scaling, plain, quantized) : undefined
      const kept = list === undefined ? undefined : batches.get(list)
      if (kept !== undefined) return work(op, kept.run)
      const checked = quantizeChecks.conversion(op, plain, quantized, known)
      if (Result.isFailure(checked)) return Effect.fail(checked.failure)
      if (plain.shape.includes(0)) return Effect.void
      const words = encodeQuantize(op, plain, quantized, addressOf, known)
      const steps = kernelSteps((table) => table.quantize(kernels, words))
      const { data, global, scale } = quantized
      const pins = checks.pinsOf([plain, data, scale, global, known.maxima].filter((tensor) => tensor !== undefined))
      if (list === undefined || pins.length > 0 || !batches.isWorthKeeping(list)) return runSteps(op, steps, pins)
      const made = makeProgram(gpu, steps)
      if (Result.isFailure(made)) return Effect.fail(tensorFailure(op, made.failure))
      batches.keep(list, made.success)
      return work(op, made.success.run)
    })

  const largest: TensorEngineShape["largest"] = (source, maxima, block, origin = [0, 0]) =>
    checkedWork(
      () => quantizeChecks.largest(source, maxima, block, origin),
      () => {
        if (source.shape.includes(0) || maxima.shape.includes(0)) return Effect.void
        const words = encodeLargest(source, maxima, block, origin, elementCount(maxima.shape) === 1, addressOf)
        return runSteps(
          "largest",
          kernelSteps((table) => table.quantize(kernels, words)),
          checks.pinsOf([source, maxima])
        )
      }
    )

  return { conversion, largest }
}

/** An engine on an open device. */
export const make = Effect.fnUntraced(function* (
  gpu: Gpu,
  memory: DeviceMemory
): Effect.fn.Return<TensorEngineShape, never, EffectScope.Scope> {
  const { addon } = gpu
  const account = makeWorkAccount(errors)
  const { fence } = account
  const work: typeof account.work = (op, run) =>
    Effect.suspend(() => {
      const stopPolling = busyPoll(awakeMillis)
      return Effect.ensuring(account.work(op, run), Effect.sync(stopPolling))
    })
  const checks = makeChecks(gpu)
  const batches = makeBatchPrograms()
  yield* Effect.addFinalizer(() => Effect.andThen(Effect.sync(batches.closeAll), memory.shutdown.wait))

  const { pinAll, pinHost } = makePins(gpu, checks)

  /** Runs steps once over host memory that stays pinned until they have ended. */
  const runSteps = (
    op: string,
    steps: ProgramSteps,
    pins: ReadonlyArray<HostRange>
  ): Effect.Effect<void, TensorError> =>
    Effect.suspend(() => {
      const pinned = pinAll(pins)
      if (Result.isFailure(pinned)) return Effect.fail(tensorFailure(op, pinned.failure))
      return work(op, runOnce(gpu, steps, pinned.success))
    })

  const copy = (moves: ReadonlyArray<Move>): Effect.Effect<void, TensorError> =>
    Effect.suspend(() => {
      const known = batches.get(moves)
      if (known !== undefined) return work("copy", known.run)
      const checked = checks.checkBatch("copy", moves)
      if (Result.isFailure(checked)) return Effect.fail(checked.failure)
      const batch = checked.success
      if (batch.table.length === 0 && batch.copies.length === 0) return Effect.void
      const steps = stepsOf(batch)
      if (!batch.isOfDevices || !batches.isWorthKeeping(moves)) return runSteps("copy", steps, batch.pins)
      const made = makeProgram(gpu, steps)
      if (Result.isFailure(made)) return Effect.fail(tensorFailure("copy", made.failure))
      batches.keep(moves, made.success)
      return work("copy", made.success.run)
    })

  const checkReduce = makeReduceCheck(refusal, checks.checkApart)

  const checkFill = makeFillCheck(errors, checks.checkMove)

  const { conversion, largest } = makeConversions({ gpu, checks, batches, work, runSteps })

  const checkProduct = makeProductCheck(refusal, checks)

  const checkDigest = makeDigestCheck(refusal, checks)

  const changeChecks = makeChangeCheck(refusal, checks)

  /** Runs steps that write so many words of the host, and gives these. */
  const resultOf = (
    op: string,
    words: number,
    steps: (table: StepTable, place: number) => void,
    tensors: ReadonlyArray<Tensor>
  ): Effect.Effect<BigUint64Array, TensorError> =>
    Effect.suspend(() => {
      // A buffer of its own does not move while the device writes to it.
      const result = new BigUint64Array(new ArrayBuffer(8 * words))
      const place = addon.addressOf(new Uint8Array(result.buffer))
      if (place.code !== "Ok") return Effect.fail(tensorFailure(op, place))
      const made = kernelSteps((table) => steps(table, Number(place.value)))
      return Effect.map(runSteps(op, made, checks.pinsOf(tensors)), () => result)
    })

  /** Runs a search for changes, or their writing, and gives its result. */
  const changes = (op: string, words: BigUint64Array, tensors: ReadonlyArray<Tensor>) =>
    Effect.map(
      resultOf(op, 1, (table, place) => table.changes(kernels, place, words), tensors),
      ([result]) => result!
    )

  const engine: GpuEngine = {
    [device]: { gpu, memory },
    name: `${packageName} on ${gpu.facts.name}`,
    deviceFamilies: [gpu.vendor],
    capabilities: tensorEngineCapabilities,
    allocate: makeAllocate(errors, gpu.device, memory.allocate),
    wrapHost: makeWrapHost(errors, addon),
    pinHost,
    copy,
    reduce: (dst, sources, op) =>
      checkedWork(
        () => checkReduce(dst, sources, op),
        () => {
          if (dst.shape.includes(0)) return Effect.void
          const steps = kernelSteps((table) => table.reduce(kernels, encodeReduce(dst, sources, op)))
          return runSteps(`reduce ${op}`, steps, checks.pinsOf([dst, ...sources]))
        }
      ),
    fill: (tensor, byte) =>
      checkedWork(
        () => checkFill(tensor, byte),
        ({ dst }) => {
          if (dst.shape.includes(0)) return Effect.void
          return runSteps(
            "fill",
            kernelSteps((table) => table.moves(kernels, 0), [encodeFill(dst, byte)]),
            checks.pinsOf([dst])
          )
        }
      ),
    quantize: (source, destination, known) => conversion("quantize", source, destination, known),
    dequantize: (source, destination, origin) =>
      conversion("dequantize", destination, source, origin === undefined ? {} : { origin }),
    largest,
    addProduct: (destination, base, product) =>
      checkedWork(
        () => checkProduct(destination, base, product),
        () => {
          const words = encodeProduct(destination, base, product)
          const tensors = [destination, base, product.a, product.b]
          return runSteps(
            "addProduct",
            kernelSteps((table) => table.product(kernels, words)),
            checks.pinsOf(tensors)
          )
        }
      ),
    diff: (base, current, into) =>
      checkedWork(
        () => changeChecks.diff(base, current, into),
        () =>
          current.shape.includes(0)
            ? Effect.succeed(0)
            : Effect.map(
                changes("diff", encodeDiff(base, current, into), [base, current, into.positions, into.values]),
                Number
              )
      ),
    apply: (destination, list) =>
      checkedWork(
        () => changeChecks.apply(destination, list),
        () =>
          list.positions.shape[0] === 0
            ? Effect.void
            : Effect.flatMap(
                changes("apply", encodeApply(destination, list), [destination, list.positions, list.values]),
                (wrong) =>
                  wrong === allAscend ? Effect.void : Effect.fail(positionsRefusal(refusal, destination, Number(wrong)))
              )
      ),
    digest: (parts) =>
      checkedWork(
        () => checkDigest(parts),
        (entries) => {
          if (parts.length === 0) return Effect.succeed([])
          const words = encodeDigest(parts.length, entries)
          const tensors = parts.map(({ tensor }) => tensor)
          const halves = resultOf("digest", 2 * parts.length, (table, at) => table.digest(kernels, at, words), tensors)
          return Effect.map(halves, digestsOfHalves)
        }
      ),
    fence
  }
  const openRing = makeOpenRing({
    ...engine,
    refusal,
    checkTensor: checks.checkTensor,
    isSequential: false,
    run: (steps, tensors) => runSteps("ring", ringSteps(steps), checks.pinsOf(tensors))
  })
  return { ...engine, openRing }
})

/** An engine on a device of its own. */
export const open = Effect.fnUntraced(function* (
  options: GpuOptions,
  backend: string = packageName
): Effect.fn.Return<TensorEngineShape, BackendError, EffectScope.Scope> {
  const gpu = yield* openGpu(yield* loadAddon, backend, options)
  return yield* make(gpu, makeDeviceMemory(gpu, { arenaBytes: options.arenaBytes }))
})

/** Fails with "Unavailable" where there is no device, or nothing to reach it with. */
export const layer = (options: GpuOptions = {}, backend?: string): Layer.Layer<TensorEngine, BackendError> =>
  Layer.effect(TensorEngine, open(options, backend))
