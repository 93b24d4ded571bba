// SPDX-License-Identifier: Apache-2.0
/** Tensors of a safetensors file with their bytes, read in the few lines that the format needs, none of them the product's. */
import { readdirSync, readFileSync } from "node:fs"
import { join } from "node:path"
import type { DType } from "@tensorferry/core/base/DType"
import type { ModelTensor } from "@tensorferry/model/layout/ModelLayout"

export type HeldTensors = ReadonlyMap<string, ModelTensor & { readonly bytes: Uint8Array }>

interface Entry {
  readonly dtype: string
  readonly shape: ReadonlyArray<number>
  readonly data_offsets: readonly [from: number, to: number]
}

const dtypes: { readonly [name: string]: DType } = { F32: "float32", BF16: "bfloat16", I64: "int64" }

/** One file. */
export const readSafetensors = (file: string): HeldTensors => {
  const bytes = readFileSync(file)
  const start = 8 + Number(bytes.readBigUInt64LE(0))
  const header: { readonly [name: string]: Entry } = JSON.parse(bytes.subarray(8, start).toString("utf8"))
  const entries = Object.entries(header).filter(([name]) => name !== "__metadata__")
  return new Map(
    entries.map(
      ([
        name,
        {
          dtype,
          shape,
          data_offsets: [from, to]
        }
      ]) => [name, { name, dtype: dtypes[dtype]!, shape, bytes: bytes.subarray(start + from, start + to) }]
    )
  )
}

/** The bytes of a file of these tensors, of two bytes an element. */
export const safetensorsBytes = (
  tensors: ReadonlyArray<{ readonly name: string; readonly shape: ReadonlyArray<number>; readonly bytes: Uint8Array }>
): Uint8Array => {
  let end = 0
  const header = Object.fromEntries(
    tensors.map(({ name, shape, bytes }) => {
      const start = end
      end += bytes.length
      return [name, { dtype: "BF16", shape, data_offsets: [start, end] }]
    })
  )
  const text = Buffer.from(JSON.stringify(header))
  const length = Buffer.alloc(8)
  length.writeBigUInt64LE(BigInt(text.length))
  return Buffer.concat([length, text, ...tensors.map(({ bytes }) => bytes)])
}

/** All files of a model. */
export const modelFiles = (folder: string): HeldTensors =>
  new Map(
    readdirSync(folder)
      .filter((file) => /^model.*\.safetensors$/.test(file))
      .flatMap((file) => [...readSafetensors(join(folder, file))])
  )
