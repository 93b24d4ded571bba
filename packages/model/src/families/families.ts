// SPDX-License-Identifier: Apache-2.0
/** All model families that are known, by the `model_type` of a config.json. Adding one is a file beside this and a line here. */
import type { Family } from "../structure/Family.ts"
import { bert } from "./dense/bert.ts"
import { exaone4 } from "./dense/exaone4.ts"
import { gemma2, gemma3 } from "./dense/gemma.ts"
import { gemma3n } from "./dense/gemma3n.ts"
import { glm4 } from "./dense/glm4.ts"
import { hrm } from "./dense/hrm.ts"
import { hunyuan, hunyuanMoe } from "./dense/hunyuan.ts"
import { llama } from "./dense/llama.ts"
import { mistral3 } from "./dense/mistral3.ts"
import { olmo2 } from "./dense/olmo2.ts"
import { phi3 } from "./dense/phi3.ts"
import { qwen } from "./dense/qwen.ts"
import { qwen2 } from "./dense/qwen2.ts"
import { qwen3 } from "./dense/qwen3.ts"
import { starcoder2 } from "./dense/starcoder2.ts"
import { bamba } from "./hybrid/bamba.ts"
import { falconH1 } from "./hybrid/falconH1.ts"
import { graniteHybrid } from "./hybrid/graniteHybrid.ts"
import { jamba } from "./hybrid/jamba.ts"
import { lfm2Moe } from "./hybrid/lfm2.ts"
import { mamba2 } from "./hybrid/mamba2.ts"
import { nemotron } from "./hybrid/nemotron.ts"
import { olmoHybrid } from "./hybrid/olmoHybrid.ts"
import { qwen3Next, qwen35, qwen35Moe } from "./hybrid/qwen3Next.ts"
import { deepseek, deepseekSparse } from "./moe/deepseek.ts"
import { ernie } from "./moe/ernie.ts"
import { glm4Moe } from "./moe/glm4Moe.ts"
import { gptOss } from "./moe/gptOss.ts"
import { graniteMoe } from "./moe/graniteMoe.ts"
import { llama4 } from "./moe/llama4.ts"
import { minimax } from "./moe/minimax.ts"
import { mixtral } from "./moe/mixtral.ts"
import { olmoe } from "./moe/olmoe.ts"
import { qwen2Moe } from "./moe/qwen2Moe.ts"
import { qwen3Moe, qwen3VlMoe } from "./moe/qwen3Moe.ts"

/** All families that are known, each a file of data beside this one. */
export const families: ReadonlyArray<Family> = [
  llama,
  mistral3,
  qwen,
  qwen2,
  qwen3,
  gemma2,
  gemma3,
  gemma3n,
  phi3,
  glm4,
  olmo2,
  exaone4,
  starcoder2,
  hunyuan,
  hrm,
  bert,
  mixtral,
  minimax,
  qwen2Moe,
  qwen3Moe,
  qwen3VlMoe,
  olmoe,
  deepseek,
  deepseekSparse,
  glm4Moe,
  gptOss,
  llama4,
  graniteMoe,
  ernie,
  hunyuanMoe,
  qwen3Next,
  qwen35,
  qwen35Moe,
  nemotron,
  falconH1,
  bamba,
  graniteHybrid,
  jamba,
  lfm2Moe,
  olmoHybrid,
  mamba2
]

const byType: ReadonlyMap<string, Family> = new Map(
  families.flatMap((family) => family.modelTypes.map((type) => [type, family] as const))
)

/** All values of `model_type` that are known, in alphabetical order. */
export const modelTypes: ReadonlyArray<string> = [...byType.keys()].sort()

/** The family of a `model_type`; undefined where none covers it. */
export const findFamily = (modelType: string): Family | undefined => byType.get(modelType)
