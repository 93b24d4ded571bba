// SPDX-License-Identifier: Apache-2.0
/**
 * The slow `TensorEngine` in plain TypeScript that defines the bits: other engines are right where they agree with it.
 *
 * It is strict, so that faults of callers show: memory is poisoned when allocated and again when freed, batches that
 * overlap are refused, addresses are unique and never reused.
 */

import { bitsOf, byteLengthOf, isCastable } from "@tensorferry/core/base/DType"
import { elementCount, equalShapes, formatShape, isRepresentable } from "@tensorferry/core/base/Region"
import {
  type DigestPart,
  type KnownScales,
  type LowRankProduct,
  type ReduceOp,
  TensorEngine,
  type TensorEngineShape,
  type TensorError,
  tensorError
} from "@tensorferry/core/service/TensorEngine"
import { type Changes, firstChanges } from "@tensorferry/core/tensor/Changes"
import { type Device, equalDevices, formatDevice } from "@tensorferry/core/tensor/Device"
import type { ElementDigest } from "@tensorferry/core/tensor/ElementDigest"
import { type BlockSize, type QuantizedTensor, quantizedForms } from "@tensorferry/core/tensor/QuantizedTensor"
import { makeStorage, type Storage } from "@tensorferry/core/tensor/Storage"
import { byteMove, type Move, type Tensor, tensorFault, tensorView } from "@tensorferry/core/tensor/Tensor"
import type { SourceType } from "@tensorferry/model/quantize/numbers"
import { applyFault, diffFault, positionsRefusal } from "@tensorferry/native/ChangeChecks"
import { bytesOfPart } from "@tensorferry/native/digest/DigestParts"
import { digestHostBytes } from "@tensorferry/native/digest/hostDigest"
import { refusalOf } from "@tensorferry/native/MoveChecks"
import { productFault } from "@tensorferry/native/ProductChecks"
import { largestFault, type QuantizedFault, quantizedFault } from "@tensorferry/native/QuantizeChecks"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import { bytesOf, denseOf, floatsOf, storeAt, storeDense, storeFloats } from "./denseBytes.ts"
import { denseTail, findOverlap, isSameView, walk } from "./tensorWalk.ts"
import { elementCodec } from "./values/casts.ts"
import { findChanges, firstWrongPosition } from "./values/changes.ts"
import { sumWithProduct } from "./values/products.ts"
import { largestValues, quantizeValues, readValues } from "./values/quantizing.ts"
import { reduction } from "./values/reductions.ts"

/** The memory of the engine and the device that it stands for. */
export interface ReferenceEngineOptions {
  /** Byte that new memory is filled with, so that bytes nobody wrote show. 0xA5 by default. */
  readonly poison?: number
  /** Bytes that may be allocated at one time; more is OutOfMemory. 8 GiB by default. */
  readonly memoryLimit?: number
  /** The family whose engine this one stands for. `cpu` by default. */
  readonly deviceFamily?: string
}

const engineName = "reference"
const defaultPoison = 0xa5
const defaultMemoryLimit = 2 ** 33
/** Addresses are multiples of this, and so far apart at least. */
const addressStep = 4096n

let nextAddress = 1n << 20n

/** Addresses that no other memory of the process has; nothing lies there. */
const takeAddresses = (byteLength: number): bigint => {
  const address = nextAddress
  nextAddress += (BigInt(byteLength) / addressStep + 2n) * addressStep
  return address
}

const invalid = (op: string, detail: string): TensorError =>
  tensorError("InvalidRequest", { backend: engineName, op, detail, remedy: "Correct the request." })

const unsupported = (op: string, detail: string): TensorError =>
  tensorError("Unsupported", { backend: engineName, op, detail, remedy: "Ask the engine's capabilities first." })

const describe = (tensor: Tensor): string => `${tensor.dtype}${formatShape(tensor.shape)}`

const outOfMemory = (byteLength: number, detail: string): TensorError =>
  tensorError("OutOfMemory", {
    backend: engineName,
    op: "allocate",
    detail: `${byteLength} bytes were asked for; ${detail}.`,
    remedy: "Free tensors or ask for less.",
    isRetryable: true
  })

type Checked<A> = Result.Result<A, TensorError>

/** All that a tensor must be before its bytes are touched. */
const checkTensor = (op: string, family: string, tensor: Tensor, isWritten: boolean): Checked<void> => {
  if (tensor.storage.isFreed()) {
    return Result.fail(
      tensorError("FreedStorage", {
        backend: engineName,
        op,
        detail: `The storage of ${describe(tensor)} was freed.`,
        remedy: "Keep the scope that allocated it open while it is used."
      })
    )
  }
  if (tensor.device.family !== family || !equalDevices(tensor.device, tensor.storage.device)) {
    return Result.fail(
      invalid(
        op,
        `${describe(tensor)} on ${formatDevice(tensor.device)}, stored on ${formatDevice(tensor.storage.device)}, is not a tensor of ${family}.`
      )
    )
  }
  if (tensor.storage.bytes === undefined)
    return Result.fail(invalid(op, `The storage of ${describe(tensor)} has no bytes that the host can see.`))
  const fault = tensorFault(tensor, isWritten)
  return fault === undefined
    ? Result.succeed(undefined)
    : Result.fail(invalid(op, `${describe(tensor)} cannot be used: ${fault}.`))
}

/** A move in whole bytes, or why it cannot be done. */
const checkMove = (op: string, family: string, move: Move): Checked<Move> => {
  for (const tensor of [move.dst, move.src]) {
    const checked = checkTensor(op, family, tensor, tensor === move.dst)
    if (Result.isFailure(checked)) return Result.fail(checked.failure)
  }
  const { dst, src } = move
  if (!equalShapes(dst.shape, src.shape))
    return Result.fail(invalid(op, `The shapes of ${describe(dst)} and ${describe(src)} differ.`))
  if (!isCastable(src.dtype, dst.dtype))
    return Result.fail(unsupported(op, `There is no conversion from ${src.dtype} to ${dst.dtype}.`))
  return Result.mapError(byteMove(move), (fault) => invalid(op, `The move cannot be done: ${fault.detail}.`))
}

const checkBatch = (op: string, family: string, moves: ReadonlyArray<Move>): Checked<ReadonlyArray<Move>> => {
  const checked = Result.all(moves.map((move) => checkMove(op, family, move)))
  if (Result.isFailure(checked)) return checked
  const overlap = findOverlap(checked.success)
  return overlap === undefined
    ? checked
    : Result.fail(invalid(op, `The regions of the batch overlap at byte ${overlap} of a storage.`))
}

const viewOf = (tensor: Tensor): DataView => {
  const bytes = bytesOf(tensor)
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
}

const copyBits = (move: Move): void => {
  const { dst, src } = move
  if (dst.shape.includes(0)) return
  const { outer, run } = denseTail(move)
  const size = bitsOf(dst.dtype) / 8
  const [to, from] = [bytesOf(dst), bytesOf(src)]
  walk(dst.shape.slice(0, outer), [dst.strides.slice(0, outer), src.strides.slice(0, outer)], ([dstAt, srcAt]) => {
    const start = src.byteOffset + srcAt! * size
    to.set(from.subarray(start, start + run * size), dst.byteOffset + dstAt! * size)
  })
}

const convert = ({ dst, src }: Move): void => {
  const [reader, writer] = [elementCodec(src.dtype)!, elementCodec(dst.dtype)!]
  const [from, to] = [viewOf(src), viewOf(dst)]
  const [srcSize, dstSize] = [bitsOf(src.dtype) / 8, bitsOf(dst.dtype) / 8]
  walk(dst.shape, [dst.strides, src.strides], ([dstAt, srcAt]) =>
    writer.write(to, dst.byteOffset + dstAt! * dstSize, reader.read(from, src.byteOffset + srcAt! * srcSize))
  )
}

const copy = (family: string, moves: ReadonlyArray<Move>): Checked<void> =>
  Result.map(checkBatch("copy", family, moves), (checked) => {
    for (const move of checked) {
      if (move.dst.dtype === move.src.dtype) copyBits(move)
      else convert(move)
    }
  })

const reduce = (family: string, dst: Tensor, sources: ReadonlyArray<Tensor>, op: ReduceOp): Checked<void> => {
  const call = `reduce ${op}`
  if (sources.length === 0) return Result.fail(invalid(call, "There are no operands."))
  const other = sources.find((source) => source.dtype !== dst.dtype)
  if (other !== undefined)
    return Result.fail(invalid(call, `The types of ${describe(dst)} and ${describe(other)} differ.`))
  const combine = reduction(dst.dtype, op)
  const codec = elementCodec(dst.dtype)
  if (combine === undefined || codec === undefined)
    return Result.fail(unsupported(call, `There is no ${op} of ${dst.dtype}.`))
  for (const src of sources) {
    const checked = checkMove(call, family, { dst, src })
    if (Result.isFailure(checked)) return Result.fail(checked.failure)
    // The result may replace an operand element by element, but may not meet one anywhere else.
    const overlap = isSameView(dst, src) ? undefined : findOverlap([{ dst, src }])
    if (overlap !== undefined)
      return Result.fail(invalid(call, `The result overlaps an operand at byte ${overlap} of its storage.`))
  }
  const size = bitsOf(dst.dtype) / 8
  const inputs = sources.map((source) => ({ view: viewOf(source), start: source.byteOffset }))
  const output = viewOf(dst)
  walk(dst.shape, [dst.strides, ...sources.map((source) => source.strides)], ([dstAt, ...at]) => {
    const operands = inputs.map(({ view, start }, index) => codec.read(view, start + at[index]! * size))
    codec.write(output, dst.byteOffset + dstAt! * size, combine(operands))
  })
  return Result.succeed(undefined)
}

/** Tensors of this engine that fit together, and what is written meets nothing else. */
const checkConversion = (
  op: string,
  family: string,
  fault: QuantizedFault | undefined,
  written: ReadonlyArray<Tensor>,
  read: ReadonlyArray<Tensor>
): Checked<void> => {
  for (const tensor of [...written, ...read]) {
    const checked = checkTensor(op, family, tensor, written.includes(tensor))
    if (Result.isFailure(checked)) return checked
  }
  if (fault !== undefined)
    return Result.fail(fault.tag === "Unsupported" ? unsupported(op, fault.detail) : invalid(op, fault.detail))
  const batches: ReadonlyArray<ReadonlyArray<Move>> = [
    written.map((tensor) => ({ dst: tensor, src: tensor })),
    ...written.flatMap((dst) => read.map((src) => [{ dst, src }]))
  ]
  const overlap = batches.map(findOverlap).find((at) => at !== undefined)
  return overlap === undefined
    ? Result.succeed(undefined)
    : Result.fail(invalid(op, `What is written overlaps at byte ${overlap} of a storage.`))
}

const quantize = (
  family: string,
  source: Tensor,
  destination: QuantizedTensor,
  known: KnownScales = {}
): Checked<void> => {
  const { data, global, recipe, scale } = destination
  const globals = global === undefined ? [] : [global]
  const keeps = known.keepsGlobal === true
  const checked = checkConversion(
    "quantize",
    family,
    quantizedFault(source, destination, known),
    [data, scale, ...(keeps ? [] : globals)],
    [source, ...(known.maxima === undefined ? [] : [known.maxima]), ...(keeps ? globals : [])]
  )
  return Result.map(checked, () => {
    if (source.shape.includes(0)) return
    const dtype = source.dtype as SourceType
    const made = quantizeValues(recipe, floatsOf(source), source.shape, dtype, scale.dtype, {
      ...(known.origin === undefined ? {} : { origin: known.origin }),
      ...(known.maxima === undefined ? {} : { maxima: floatsOf(known.maxima) }),
      ...(keeps && global !== undefined ? { global: floatsOf(global)[0]! } : {})
    })
    storeDense(data, made.data)
    storeDense(scale, made.scales)
    if (!keeps && global !== undefined && made.global !== undefined) storeFloats(global, Float32Array.of(made.global))
  })
}

const dequantize = (
  family: string,
  source: QuantizedTensor,
  destination: Tensor,
  origin: KnownScales["origin"]
): Checked<void> => {
  const { data, global, recipe, scale } = source
  const fault = quantizedFault(destination, source, origin === undefined ? {} : { origin })
  const read = [data, scale, ...(global === undefined ? [] : [global])]
  return Result.map(checkConversion("dequantize", family, fault, [destination], read), () => {
    if (destination.shape.includes(0)) return
    const bytes = {
      data: denseOf(data),
      scales: denseOf(scale),
      ...(global === undefined ? {} : { global: floatsOf(global)[0]! })
    }
    storeFloats(destination, readValues(recipe, bytes, destination.shape, scale.dtype, origin))
  })
}

const largest = (
  family: string,
  source: Tensor,
  maxima: Tensor,
  block: BlockSize,
  origin: readonly [number, number] = [0, 0]
): Checked<void> => {
  const fault = largestFault(source, maxima, block, origin)
  return Result.map(checkConversion("largest", family, fault, [maxima], [source]), () => {
    if (source.shape.includes(0) || maxima.shape.includes(0)) return
    const isOne = elementCount(maxima.shape) === 1
    storeFloats(maxima, largestValues(floatsOf(source), source.shape, block, floatsOf(maxima), isOne, origin))
  })
}

const addProduct = (family: string, destination: Tensor, base: Tensor, product: LowRankProduct): Checked<void> => {
  const fault = productFault(destination, base, product)
  const { a, b, scale } = product
  const read = isSameView(destination, base) ? [a, b] : [base, a, b]
  return Result.map(checkConversion("addProduct", family, fault, [destination], read), () => {
    const [rows, columns] = destination.shape as [number, number]
    const factors = { b: floatsOf(b), a: floatsOf(a), rank: a.shape[0]!, scale }
    storeFloats(destination, sumWithProduct(floatsOf(base), rows, columns, factors))
  })
}

const diff = (family: string, base: Tensor, current: Tensor, into: Changes): Checked<number> => {
  const fault = diffFault(base, current, into)
  return Result.map(checkConversion("diff", family, fault, [into.positions, into.values], [base, current]), () => {
    const size = bitsOf(current.dtype) / 8
    const found = findChanges(denseOf(base), denseOf(current), size)
    const count = found.positions.length
    const room = firstChanges(into, count)
    const taken = room.positions.shape[0]!
    storeDense(room.positions, new Uint8Array(found.positions.slice(0, taken).buffer))
    storeDense(room.values, found.values.slice(0, taken * size))
    return count
  })
}

const apply = (family: string, destination: Tensor, changes: Changes): Checked<void> => {
  const { positions, values } = changes
  const fault = applyFault(destination, changes)
  return Result.flatMap(checkConversion("apply", family, fault, [destination], [positions, values]), () => {
    const at = new Uint32Array(denseOf(positions).buffer)
    const wrong = firstWrongPosition(at, elementCount(destination.shape))
    if (wrong >= 0) return Result.fail(positionsRefusal(refusalOf(engineName), destination, wrong))
    storeAt(destination, at, denseOf(values))
    return Result.succeed(undefined)
  })
}

const digest = (family: string, parts: ReadonlyArray<DigestPart>): Checked<ReadonlyArray<ElementDigest>> => {
  for (const { tensor } of parts) {
    const checked = checkTensor("digest", family, tensor, false)
    if (Result.isFailure(checked)) return Result.fail(checked.failure)
  }
  const entries = Result.all(parts.map((part, at) => bytesOfPart(at, part)))
  return Result.isFailure(entries)
    ? Result.fail(invalid("digest", entries.failure))
    : Result.succeed(digestHostBytes(parts.length, entries.success.flat()))
}

const fill = (family: string, tensor: Tensor, byte: number): Checked<void> => {
  if (!Number.isInteger(byte) || byte < 0 || byte > 255) return Result.fail(invalid("fill", `${byte} is not a byte.`))
  return Result.map(checkMove("fill", family, { dst: tensor, src: tensor }), (move) => {
    const { outer, run } = denseTail(move)
    const size = bitsOf(move.dst.dtype) / 8
    walk(move.dst.shape.slice(0, outer), [move.dst.strides.slice(0, outer)], ([at]) => {
      const start = move.dst.byteOffset + at! * size
      bytesOf(move.dst).fill(byte, start, start + run * size)
    })
  })
}

/** Memory of `byteLength` bytes, or nothing where the process has none left. */
const allocateBytes = (byteLength: number): Uint8Array | undefined =>
  Result.getOrUndefined(Result.try(() => new Uint8Array(byteLength)))

const scoped = (make: () => Checked<Storage>) =>
  Effect.acquireRelease(
    Effect.suspend(() => Effect.fromResult(make())),
    (storage) => Effect.sync(() => storage.free())
  )

/** An engine with its own count of allocated memory. */
export const make = (options: ReferenceEngineOptions = {}): TensorEngineShape => {
  const family = options.deviceFamily ?? "cpu"
  const poison = options.poison ?? defaultPoison
  const limit = options.memoryLimit ?? defaultMemoryLimit
  const firstDevice: Device = { family, index: 0 }
  let used = 0

  const allocateStorage = (byteLength: number, device: Device): Checked<Storage> => {
    if (used + byteLength > limit) return Result.fail(outOfMemory(byteLength, `${limit - used} of ${limit} are left`))
    const bytes = allocateBytes(byteLength)?.fill(poison)
    if (bytes === undefined) return Result.fail(outOfMemory(byteLength, "the process has no such memory"))
    used += byteLength
    const release = () => {
      used -= byteLength
      bytes.fill(poison ^ 0xff)
    }
    return Result.succeed(makeStorage({ device, address: takeAddresses(byteLength), byteLength, bytes, release }))
  }

  return {
    name: engineName,
    deviceFamilies: [family],
    capabilities: {
      cast: true,
      reduce: true,
      quantize: quantizedForms,
      changes: true,
      products: true,
      hostVisible: true
    },
    allocate: (dtype, shape, device = firstDevice) =>
      Effect.gen(function* () {
        if (device.family !== family)
          return yield* invalid("allocate", `${formatDevice(device)} is not a device of ${family}.`)
        if (!isRepresentable(shape, bitsOf(dtype))) {
          return yield* invalid(
            "allocate",
            `The shape ${formatShape(shape)} of ${dtype} is not of natural numbers, or exceeds 2^53 bits.`
          )
        }
        const byteLength = byteLengthOf(dtype, elementCount(shape))
        const storage = yield* scoped(() => allocateStorage(byteLength, device))
        return yield* Effect.fromResult(
          Result.mapError(tensorView(storage, dtype, shape), (fault) => invalid("allocate", fault.detail))
        )
      }),
    wrapHost: (bytes) =>
      scoped(() =>
        Result.succeed(
          makeStorage({
            device: firstDevice,
            address: takeAddresses(bytes.byteLength),
            byteLength: bytes.byteLength,
            bytes,
            release: () => {}
          })
        )
      ),
    copy: (moves) => Effect.suspend(() => Effect.fromResult(copy(family, moves))),
    reduce: (dst, sources, op) => Effect.suspend(() => Effect.fromResult(reduce(family, dst, sources, op))),
    fill: (tensor, byte) => Effect.suspend(() => Effect.fromResult(fill(family, tensor, byte))),
    quantize: (source, destination, known) =>
      Effect.suspend(() => Effect.fromResult(quantize(family, source, destination, known))),
    dequantize: (source, destination, origin) =>
      Effect.suspend(() => Effect.fromResult(dequantize(family, source, destination, origin))),
    largest: (source, maxima, block, origin) =>
      Effect.suspend(() => Effect.fromResult(largest(family, source, maxima, block, origin))),
    addProduct: (destination, base, product) =>
      Effect.suspend(() => Effect.fromResult(addProduct(family, destination, base, product))),
    diff: (base, current, into) => Effect.suspend(() => Effect.fromResult(diff(family, base, current, into))),
    apply: (destination, changes) => Effect.suspend(() => Effect.fromResult(apply(family, destination, changes))),
    digest: (parts) => Effect.suspend(() => Effect.fromResult(digest(family, parts))),
    fence: Effect.succeed({ await: Effect.void })
  }
}

/** The reference engine as the `TensorEngine` of a program. */
export const layer = (options?: ReferenceEngineOptions): Layer.Layer<TensorEngine> =>
  Layer.sync(TensorEngine, () => make(options))
