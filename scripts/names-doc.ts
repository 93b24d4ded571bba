// SPDX-License-Identifier: Apache-2.0
/**
 * Makes the table of conventions in docs/names.md from the conventions themselves and from the recordings that they are held
 * against. `--check` writes nothing, and fails if the page has another table.
 */
import { conventions } from "@tensorferry/model/names/conventions/conventions"
import { madeTable, unzipped } from "./pages/madeTable.ts"

/** Recordings by convention: what the system itself made of numbered tensors. */
const recordings: Readonly<Record<string, string>> = {
  transformers: "golden/names_transformers/names_transformers.json.gz",
  megatron: "golden/names_megatron/names_megatron.json.gz",
  vllm: "golden/names_vllm/names_vllm.json.gz",
  sglang: "golden/names_vllm/names_sglang.json.gz"
}

const recordedOf = (name: string): string => {
  const file = recordings[name]
  if (file === undefined) return ""
  const { families } = unzipped(file) as {
    readonly families: ReadonlyArray<{ readonly hf_config: { readonly model_type: string } }>
  }
  const types = new Set(families.map(({ hf_config }) => hf_config.model_type))
  return `${families.length} models of ${types.size} types`
}

madeTable(
  "names",
  ["name", "names and joins as", "recorded", "families"],
  conventions.map(({ name, reference, families }) => [
    `\`${name}\``,
    reference,
    recordedOf(name),
    families?.join(", ") ?? "all"
  ])
)
