// SPDX-License-Identifier: Apache-2.0
/** Tensors of a safetensors file with their bytes, read in the few lines that the format needs, none of them the product's. */
import { readdirSync, readFileSync } from "node:fs"
import { join } from "node:path"
import type { DType } from "@tensorferry/core/base/DType"
import type { ModelTensor } from "@tensorferry/core/layout/ModelLayout"

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

/** All files of a model. */
export const modelFiles = (folder: string): HeldTensors =>
  new Map(
    readdirSync(folder)
      .filter((file) => /^model.*\.safetensors$/.test(file))
      .flatMap((file) => [...readSafetensors(join(folder, file))])
  )
