// SPDX-License-Identifier: Apache-2.0
/**
 * Element types: their names, widths and kinds. Names are PyTorch's; `safetensors` is the spelling of the file format.
 *
 * Invariant: every width is stated in bits, because three types of the file format are narrower than a byte.
 */
import * as Schema from "effect/Schema"

/** What arithmetic an element type takes part in. `opaque` types are moved as bits and never cast. */
export type DTypeKind = "float" | "integer" | "unsigned" | "bool" | "opaque"

/** Element types by their names in PyTorch. Spelled out, so that an editor shows this name and not the list. */
export type DType =
  | "bool"
  | "uint8"
  | "int8"
  | "uint16"
  | "int16"
  | "uint32"
  | "int32"
  | "uint64"
  | "int64"
  | "float16"
  | "bfloat16"
  | "float32"
  | "float64"
  | "float8_e4m3fn"
  | "float8_e5m2"
  | "float8_e8m0fnu"
  | "float8_e4m3fnuz"
  | "float8_e5m2fnuz"
  | "float4_e2m1fn"
  | "float6_e2m3fn"
  | "float6_e3m2fn"
  | "complex64"

interface DTypeFacts {
  readonly bits: number
  readonly kind: DTypeKind
  readonly safetensors: string
}

const table = {
  bool: { bits: 8, kind: "bool", safetensors: "BOOL" },
  uint8: { bits: 8, kind: "unsigned", safetensors: "U8" },
  int8: { bits: 8, kind: "integer", safetensors: "I8" },
  uint16: { bits: 16, kind: "unsigned", safetensors: "U16" },
  int16: { bits: 16, kind: "integer", safetensors: "I16" },
  uint32: { bits: 32, kind: "unsigned", safetensors: "U32" },
  int32: { bits: 32, kind: "integer", safetensors: "I32" },
  uint64: { bits: 64, kind: "unsigned", safetensors: "U64" },
  int64: { bits: 64, kind: "integer", safetensors: "I64" },
  float16: { bits: 16, kind: "float", safetensors: "F16" },
  bfloat16: { bits: 16, kind: "float", safetensors: "BF16" },
  float32: { bits: 32, kind: "float", safetensors: "F32" },
  float64: { bits: 64, kind: "float", safetensors: "F64" },
  float8_e4m3fn: { bits: 8, kind: "float", safetensors: "F8_E4M3" },
  float8_e5m2: { bits: 8, kind: "float", safetensors: "F8_E5M2" },
  float8_e8m0fnu: { bits: 8, kind: "float", safetensors: "F8_E8M0" },
  float8_e4m3fnuz: { bits: 8, kind: "opaque", safetensors: "F8_E4M3FNUZ" },
  float8_e5m2fnuz: { bits: 8, kind: "opaque", safetensors: "F8_E5M2FNUZ" },
  float4_e2m1fn: { bits: 4, kind: "opaque", safetensors: "F4" },
  float6_e2m3fn: { bits: 6, kind: "opaque", safetensors: "F6_E2M3" },
  float6_e3m2fn: { bits: 6, kind: "opaque", safetensors: "F6_E3M2" },
  complex64: { bits: 64, kind: "opaque", safetensors: "C64" }
} as const satisfies Record<DType, DTypeFacts>

/** All element types, in a fixed order. */
export const dtypes = Object.keys(table) as ReadonlyArray<string> as ReadonlyArray<DType>

/** Element types as a schema. */
export const DType = Schema.Literals(dtypes as readonly [DType, ...Array<DType>])

/** Width of one element in bits. */
export const bitsOf = (dtype: DType): number => table[dtype].bits

/** Whether a type is a float, an integer or a bool. */
export const kindOf = (dtype: DType): DTypeKind => table[dtype].kind

/** Spelling of the type in a safetensors header. */
export const safetensorsNameOf = (dtype: DType): string => table[dtype].safetensors

const bySafetensorsName: ReadonlyMap<string, DType> = new Map(dtypes.map((dtype) => [table[dtype].safetensors, dtype]))

/** The type that a safetensors header names; undefined for names that are not known. */
export const fromSafetensorsName = (name: string): DType | undefined => bySafetensorsName.get(name)

/** True for types whose elements share bytes; they move only along whole bytes. */
export const isSubByte = (dtype: DType): boolean => table[dtype].bits % 8 !== 0

/** True where `TensorEngine.copy` may convert between the two types. Equal types always copy, as bits. */
export const isCastable = (from: DType, to: DType): boolean =>
  from === to || (table[from].kind !== "opaque" && table[to].kind !== "opaque")

/** Bytes that `elements` densely stored elements take, rounded up to whole bytes. Exact up to 2^53. */
export const byteLengthOf = (dtype: DType, elements: number): number => {
  const bits = table[dtype].bits
  if (bits % 8 === 0) return elements * (bits / 8)
  return Math.floor(elements / 8) * bits + Math.ceil(((elements % 8) * bits) / 8)
}

/**
 * The type that travels between two sides: the narrower of the two, so that no side sends bits that the other drops;
 * the source's where widths are equal. At most one cast happens on the way.
 */
export const wireDType = (source: DType, destination: DType): DType =>
  table[destination].bits < table[source].bits ? destination : source
