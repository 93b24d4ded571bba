// SPDX-License-Identifier: Apache-2.0
/** Writes folders of shards with a manifest by hand, so that a test can say exactly what is wrong with one. */
import { createHash } from "node:crypto"
import { writeFileSync } from "node:fs"
import { join } from "node:path"
import { byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, fullRegion, type Region, regionShape, type Shape } from "@tensorferry/core/base/Region"
import { writeSafetensors } from "@tensorferry/model/checkpoint/SafetensorsWriter"
import * as Effect from "effect/Effect"

/** A manifest as JSON that a test may change in any way. */
export interface ManifestJson {
  format: unknown
  version: unknown
  layout: Record<string, unknown>
  rules: Record<string, unknown>
  metadata: Record<string, unknown>
  tensors: Array<Record<string, unknown>>
  shards: Array<{
    file: string
    rank: number
    tensors: Array<{ name: string; shape: unknown; pieces: Array<{ local: unknown; global: unknown }>; digest: string }>
  }>
}

export interface Part {
  readonly name: string
  readonly dtype: DType
  readonly region: Region
  readonly data: Uint8Array
}

const sha256 = (bytes: Uint8Array): string => createHash("sha256").update(bytes).digest("hex")

/** One file per element of `files`; then the manifest, as `change` leaves it. */
export const writeSharded = async (
  folder: string,
  tensors: ReadonlyArray<{ readonly name: string; readonly dtype: DType; readonly shape: Shape }>,
  files: ReadonlyArray<ReadonlyArray<Part>>,
  change: (manifest: ManifestJson) => void = () => undefined
): Promise<void> => {
  const manifest: ManifestJson = {
    format: "tensorferry.checkpoint",
    version: 2,
    layout: { tp: files.length, pp: 1, dp: 1 },
    rules: {
      rules: [
        { match: "cut*", shard: 0 },
        { match: "*", shard: "replicate" }
      ]
    },
    metadata: {},
    tensors: tensors.map((tensor) => ({ ...tensor })),
    shards: []
  }
  for (const [rank, parts] of files.entries()) {
    const file = `rank-0000${rank}.safetensors`
    const sources = parts.map(({ name, dtype, region, data }) => ({ name, dtype, shape: regionShape(region), data }))
    await Effect.runPromise(writeSafetensors(join(folder, file), sources))
    manifest.shards.push({
      file,
      rank,
      tensors: parts.map(({ name, region, data }) => {
        const shape = regionShape(region)
        const pieces = shape.includes(0) ? [] : [{ local: fullRegion(shape), global: region }]
        return { name, shape, pieces, digest: sha256(data) }
      })
    })
  }
  change(manifest)
  writeFileSync(join(folder, "tensorferry.json"), JSON.stringify(manifest))
}

/** `count` equal cuts of the first dimension, the bytes of a part being its number plus one. */
export const cut = (name: string, dtype: DType, shape: Shape, count: number): ReadonlyArray<Part> =>
  Array.from({ length: count }, (_, at) => {
    const rows = shape[0]! / count
    const region = shape.map((length, dim) =>
      dim === 0 ? ([at * rows, (at + 1) * rows] as const) : ([0, length] as const)
    )
    const data = new Uint8Array(byteLengthOf(dtype, elementCount(regionShape(region)))).fill(at + 1)
    return { name, dtype, region, data }
  })
