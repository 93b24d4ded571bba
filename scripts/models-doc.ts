// SPDX-License-Identifier: Apache-2.0
/**
 * Makes the table of families in docs/models.md from the families themselves and from the data that they are held against.
 * `--check` writes nothing, and fails if the page has another table.
 */
import { families } from "@tensorferry/model/families/families"
import { madeTable, unzipped } from "./pages/madeTable.ts"

/** Types whose ranks were recorded from an engine. */
const recorded = (engine: string): ReadonlySet<string> => {
  const { families: known } = unzipped(`golden/names_vllm/names_${engine}.json.gz`) as {
    readonly families: ReadonlyArray<{ readonly hf_config: { readonly model_type: string } }>
  }
  return new Set(known.map(({ hf_config }) => hf_config.model_type))
}

/** Types that transformers itself loaded and saved. */
const loaded = (
  unzipped("golden/names_transformers/names_transformers.json.gz") as {
    readonly families: ReadonlyArray<{ readonly hf_config: { readonly model_type: string } }>
  }
).families.map(({ hf_config }) => hf_config.model_type)

const saved = new Set([
  ...loaded,
  ...Object.values(
    (
      unzipped("packages/model/test/data/models/small-models.json.gz") as {
        readonly models: Readonly<Record<string, { readonly config: { readonly model_type: string } }>>
      }
    ).models
  ).map(({ config }) => config.model_type)
])
const engines = [
  ["vLLM", recorded("vllm")],
  ["SGLang", recorded("sglang")]
] as const

const rows = families.map(({ name, modelTypes, stacks, towers = [], ends = [] }) => {
  const structures = new Set(
    [...stacks.flatMap((stack) => [...stack.modules, ...stack.ends]), ...ends]
      .filter(({ dims }) => dims !== undefined)
      .map(({ structure }) => structure)
  )
  const proofs = [
    ...(modelTypes.some((type) => saved.has(type)) ? ["transformers"] : []),
    ...engines.flatMap(([engine, types]) => (modelTypes.some((type) => types.has(type)) ? [engine] : []))
  ]
  const kinds = [...new Set([...stacks.map(({ kind }) => kind), ...towers.map(({ kind }) => kind)])]
  const held = proofs.join(", ") || "published names"
  return [name, modelTypes.join(", "), kinds.join(", "), [...structures].join(", "), held]
})

madeTable("models", ["family", "model types", "stacks", "cut alike", "held against"], rows)
