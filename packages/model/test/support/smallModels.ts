// SPDX-License-Identifier: Apache-2.0
/** Small models with the names and shapes that transformers itself saves. */
import { readFileSync } from "node:fs"
import { gunzipSync } from "node:zlib"
import type { DType } from "@tensorferry/core/base/DType"
import type { Shape } from "@tensorferry/core/base/Region"
import type { FamilyChoice } from "@tensorferry/model/Cutting"
import type { NamedSide } from "@tensorferry/model/names/NamedSide"
import type { ModelConfig } from "@tensorferry/model/structure/ModelConfig"
import * as Result from "effect/Result"
import type { ModelTensor } from "../../src/layout/ModelLayout.ts"
import { parseParallelConfig } from "../../src/layout/ModelLayout.ts"

interface SmallModel {
  readonly config: ModelConfig
  readonly tensors: Readonly<Record<string, Shape>>
}

const { models } = JSON.parse(
  gunzipSync(readFileSync(new URL("../data/models/small-models.json.gz", import.meta.url))).toString("utf8")
) as { readonly models: Readonly<Record<string, SmallModel>> }

/** The tensors of a type, of four bytes an element unless stated, and how they are read. */
export const smallModel = (
  type: string,
  dtype: DType = "float32"
): { readonly tensors: ReadonlyArray<ModelTensor>; readonly family: FamilyChoice } => {
  const { config, tensors } = models[type]!
  return {
    tensors: Object.entries(tensors).map(([name, shape]) => ({ name, dtype, shape })),
    family: { preset: type, placement: {}, config }
  }
}

/** A side as it is typed: `vllm:tp=2`. */
export const side = (text: string): NamedSide => {
  const [convention, degrees] = text.split(":") as [string, string]
  return { convention, config: Result.getOrThrow(parseParallelConfig(degrees)) }
}
