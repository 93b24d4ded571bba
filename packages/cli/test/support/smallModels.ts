// SPDX-License-Identifier: Apache-2.0
/** Folders of small models with the names and shapes that transformers itself saves, their bytes made up. */
import { mkdirSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { gunzipSync } from "node:zlib"
import type { Shape } from "@tensorferry/core/base/Region"
import { writeModel } from "./models.ts"

const data = fileURLToPath(new URL("../../../model/test/data/models/small-models.json.gz", import.meta.url))

interface SmallModel {
  readonly config: Readonly<Record<string, unknown>>
  readonly tensors: Readonly<Record<string, Shape>>
}

/** The model of a type. */
export const smallModel = (type: string): SmallModel =>
  (JSON.parse(gunzipSync(readFileSync(data)).toString("utf8")) as { models: Record<string, SmallModel> }).models[type]!

/** Writes a model of a type as a published checkpoint, its config changed where stated; the folder. */
export const writeSmallModel = async (
  folder: string,
  type: string,
  change: Readonly<Record<string, unknown>> = {}
): Promise<string> => {
  const { config, tensors } = smallModel(type)
  mkdirSync(folder, { recursive: true })
  const entries = Object.entries(tensors).map(([name, shape]) => ({ name, dtype: "bfloat16" as const, shape }))
  await writeModel(join(folder, "model.safetensors"), entries, new Map([["format", "pt"]]))
  writeFileSync(join(folder, "config.json"), JSON.stringify({ ...config, ...change }))
  return folder
}
