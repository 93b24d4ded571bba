// SPDX-License-Identifier: Apache-2.0
/**
 * The only way in which execution touches bytes: one engine per device family, chosen by `tensor.device`.
 *
 * Contract
 * - `copy` takes one batch. Source and destination of a move have equal shapes; strides are free on both sides; element
 *   types may differ where `isCastable` says so. Equal types are copied as bits (NaN payloads survive). A destination
 *   may be its own source; any other overlap of what a batch writes with what it reads or writes is the caller's error.
 *   A zero-size move does nothing.
 * - Casts give the bits of the reference engine in `@tensorferry/testing`: narrow floats go through float32, round to
 *   nearest, ties to even; float16, bfloat16 and float8_e5m2 overflow to infinity; float8_e4m3fn saturates at 448,
 *   infinity included; float to integer truncates; integers wrap; bool means "not zero".
 * - `reduce` reads its operands in the order given and accumulates 16-bit floats in float32 with one rounding at the end,
 *   so the same operands give the same bits on every device.
 * - `quantize`, `dequantize` and `largest` give the bits of the reference engine too, which are those of the named rule. An
 *   element for which the rule's reference has no code gets code 0 under a scale that says NaN.
 * - `diff` compares bits, so that a NaN equals itself and 0 differs from -0, and gives the same bytes on every device.
 *   `apply` after it makes the base what the other tensor was, bit by bit.
 * - `digest` gives the bits that `ElementDigest` states, so that digests of different devices compare.
 * - An Effect ends when the work is done and visible to the host. Work submitted before a failure may have happened;
 *   destinations of a failed batch hold unspecified bytes.
 * - Freed storage, regions outside their storage, destinations whose elements share memory (see `sharesElements`), unequal
 *   shapes and unsupported types are refused before any byte moves.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type * as EffectScope from "effect/Scope"
import type { DType } from "../base/DType.ts"
import { ReasonError, type ReasonInput, reason, reasonOf } from "../base/Reason.ts"
import type { Shape } from "../base/Region.ts"
import type { Changes } from "../tensor/Changes.ts"
import type { Device } from "../tensor/Device.ts"
import type { ElementDigest } from "../tensor/ElementDigest.ts"
import type { BlockSize, QuantizedForm, QuantizedTensor } from "../tensor/QuantizedTensor.ts"
import type { Storage } from "../tensor/Storage.ts"
import type { Move, Tensor } from "../tensor/Tensor.ts"
import type { RingAnswer, RingGeometry, RingStep } from "./ReplayRingKernels.ts"

/** Why an engine refused a request, or could not carry it out. */
export const TensorReason = Schema.Union([
  /** The device has no memory for this. */
  reason("OutOfMemory"),
  /** A tensor's storage was freed before or during the call. */
  reason("FreedStorage"),
  /** Shapes, regions or types of a request do not fit together. */
  reason("InvalidRequest"),
  /** The engine says in its capabilities that it does not do this. */
  reason("Unsupported"),
  /** The device or its driver failed. */
  reason("DeviceFailure")
])
export type TensorReason = typeof TensorReason.Type

/** Why an engine refused a request or failed at it. */
export class TensorError extends ReasonError<TensorError>()("TensorError", TensorReason) {}

/** Makes the error; scope and retryability default to "op" and false. */
export const tensorError = (tag: TensorReason["_tag"], input: ReasonInput): TensorError =>
  new TensorError({ reason: reasonOf(tag, input) })

/** How operands are combined, element by element. */
export const ReduceOp = Schema.Literals(["sum", "avg", "max", "min", "product"])
export type ReduceOp = typeof ReduceOp.Type

/** Work submitted earlier; `await` ends when it is done. */
export interface Fence {
  /** Ends when everything that was submitted before the fence is done; fails with the first failure of it. */
  readonly await: Effect.Effect<void, TensorError>
}

/** What an engine does beyond copies of equal types. */
export interface TensorEngineCapabilities {
  /** Casts between element types; equal types always copy. */
  readonly cast: boolean
  /** `reduce` by every operation. */
  readonly reduce: boolean
  /** Forms that it quantizes to by every rule, and reads. */
  readonly quantize: ReadonlyArray<QuantizedForm>
  /** Finds and writes changed elements: `diff` and `apply`. */
  readonly changes: boolean
  /** Adds products of narrow matrices: `addProduct`. */
  readonly products: boolean
  /** `Storage.bytes` of allocated tensors is present. */
  readonly hostVisible: boolean
}

/** What is known of scales before a tensor, or a part of one, is quantized. */
export interface KnownScales {
  /** Row and column at which the source begins within its first block; 0 and 0 by default. */
  readonly origin?: readonly [row: number, column: number]
  /**
   * Largest magnitudes of what shares a scale, where the source is not all of it: float32, one per block in the shape of
   * the scales or, in forms with a global scale, one for all. The source's own by default.
   */
  readonly maxima?: Tensor
  /** In forms with a global scale: the stored one is read, not written, where its rule can. */
  readonly keepsGlobal?: boolean
}

/** `scale * b @ a`, of matrices [rows, rank] and [rank, columns]: what an adapter adds to a weight. */
export interface LowRankProduct {
  /** [rows, rank] */
  readonly b: Tensor
  /** [rank, columns] */
  readonly a: Tensor
  /** Taken as float32. */
  readonly scale: number
}

/** A tensor as a part of a whole, for `digest`. */
export interface DigestPart {
  /** The elements of the part. */
  readonly tensor: Tensor
  /** Shape of the whole, in elements; the tensor's own by default. */
  readonly whole?: Shape
  /** Where the part begins in the whole, in elements by dimension; at its beginning by default. */
  readonly origin?: ReadonlyArray<number>
}

/** A ring in the memory of an engine, freed by the scope that opened it. */
export interface OpenRing {
  /** What gathers rows. */
  readonly gather: "kernel" | "copies"
  /** `[capacity, rowBytes]`, uint8. */
  readonly rows: Tensor
  /** Carries out steps, and gives the answers of the samples among them once all has happened. */
  readonly run: (steps: ReadonlyArray<RingStep>) => Effect.Effect<ReadonlyArray<RingAnswer>, TensorError>
}

/** What an engine does. */
export interface TensorEngineShape {
  /** Name for reports. */
  readonly name: string
  /** Families whose memory it allocates. */
  readonly deviceFamilies: ReadonlyArray<string>
  /** What it does beyond copies of equal types. */
  readonly capabilities: TensorEngineCapabilities
  /** Dense row-major memory with unspecified contents, freed by the scope. `device` defaults to the engine's first. */
  readonly allocate: (
    dtype: DType,
    shape: Shape,
    device?: Device
  ) => Effect.Effect<Tensor, TensorError, EffectScope.Scope>
  /** Storage over bytes that the caller owns and keeps until the scope closes. */
  readonly wrapHost: (bytes: Uint8Array) => Effect.Effect<Storage, TensorError, EffectScope.Scope>
  /**
   * Lets the device reach this host memory at the speed of the link until the scope ends; copies work without it. Absent
   * where it would change nothing.
   */
  readonly pinHost?: (tensor: Tensor) => Effect.Effect<void, TensorError, EffectScope.Scope>
  /** Carries out moves, in any order. An array that is given again is known, and costs less. */
  readonly copy: (moves: ReadonlyArray<Move>) => Effect.Effect<void, TensorError>
  /** Operands and result share shape and type. */
  readonly reduce: (dst: Tensor, sources: ReadonlyArray<Tensor>, op: ReduceOp) => Effect.Effect<void, TensorError>
  /** Sets every byte of every element; for poisoning and clearing. */
  readonly fill: (tensor: Tensor, byte: number) => Effect.Effect<void, TensorError>
  /** Writes data and scales of a quantized tensor from a plain one of its shape, by the rule of its recipe. */
  readonly quantize: (
    source: Tensor,
    destination: QuantizedTensor,
    known?: KnownScales
  ) => Effect.Effect<void, TensorError>
  /**
   * Raises float32 `maxima` to the largest magnitude of each block of the source; NaN where one is there or was. They have
   * the shape of row-major scales, or one element for all of the source.
   */
  readonly largest: (
    source: Tensor,
    maxima: Tensor,
    block: BlockSize,
    origin?: KnownScales["origin"]
  ) => Effect.Effect<void, TensorError>
  /** Writes a plain tensor from a quantized one, by the arithmetic of the rule's reference. */
  readonly dequantize: (
    source: QuantizedTensor,
    destination: Tensor,
    origin?: KnownScales["origin"]
  ) => Effect.Effect<void, TensorError>
  /**
   * Finds the elements of `current` whose bits differ from those of `base`, a tensor of equal shape and type, and gives
   * their number. Positions and values of the first of them are written to `into`, as many as it has room for; the rest of
   * `into` keeps its bytes. At most `changeLimit` elements are compared, of whole bytes each.
   */
  readonly diff: (base: Tensor, current: Tensor, into: Changes) => Effect.Effect<number, TensorError>
  /**
   * Writes changed elements and no others. Positions that do not ascend, or lie outside of the tensor, are refused before
   * anything is written.
   */
  readonly apply: (destination: Tensor, changes: Changes) => Effect.Effect<void, TensorError>
  /**
   * Writes `base + scale * b @ a` to the destination, which may be the base itself. All are matrices of bfloat16, float16 or
   * float32; destination and base are of one type, and so are the factors. Sums run over ranks in their order in float64 and
   * round once to float32; then the scale, the sum with the base and the destination's type each round.
   */
  readonly addProduct: (destination: Tensor, base: Tensor, product: LowRankProduct) => Effect.Effect<void, TensorError>
  /**
   * A digest of each part, in the order given: of its elements at their places in the whole, whatever their strides. Parts of
   * elements that share bytes begin and end at whole bytes of the whole.
   */
  readonly digest: (parts: ReadonlyArray<DigestPart>) => Effect.Effect<ReadonlyArray<ElementDigest>, TensorError>
  /** An empty replay ring that kernels work on. Absent where the engine has none; copies do the same, more slowly. */
  readonly openRing?: (geometry: RingGeometry) => Effect.Effect<OpenRing, TensorError, EffectScope.Scope>
  /** Everything submitted so far. */
  readonly fence: Effect.Effect<Fence, TensorError>
}

/** The service that touches bytes: allocates, copies, casts, reduces and quantizes tensors of one device family. */
export class TensorEngine extends Context.Service<TensorEngine, TensorEngineShape>()(
  "@tensorferry/core/service/TensorEngine"
) {}
