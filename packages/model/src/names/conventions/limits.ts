// SPDX-License-Identifier: Apache-2.0
/** What systems refuse beyond what cuts of tensors ask for: counts that degrees have to fit, and tensors without a place. */
import type { ModelStructure } from "../../describe/ModelStructure.ts"
import type { Limit } from "../Mapping.ts"

/** The path of a layer's experts, of the first layer that has any. */
const expertsPath = ({ modules }: ModelStructure): string | undefined => {
  for (const { kind, expertsOf, path } of modules) {
    if (expertsOf !== undefined) return expertsOf
    if (kind.expertDim !== undefined) return path.slice(0, path.lastIndexOf("."))
  }
  return undefined
}

/** No more ranks than experts, even where every rank has a share of each. */
export const fewRanks = (structure: ModelStructure): ReadonlyArray<Limit> => {
  const subject = expertsPath(structure)
  const { experts } = structure.numbers
  return subject === undefined || experts === undefined
    ? []
    : [{ subject, what: "experts", count: experts, by: "tp", rule: "at most" }]
}

/** The first layer, by its number, that has a module. */
export const firstLayerWith = ({ modules }: ModelStructure, path: string): number | undefined =>
  modules.find(({ kind, layer }) => layer !== undefined && kind.spec.path.startsWith(path))?.layer

/** Groups of Mamba-2 mixers. `name` is what its projection is called in a layer. */
export const mixerGroups = (
  structure: ModelStructure,
  name: (layer: number) => string,
  rule: "divides" | "divides or one"
): ReadonlyArray<Limit> => {
  const layer = firstLayerWith(structure, "mixer.in_proj")
  const { ssmGroups } = structure.numbers
  return layer === undefined || ssmGroups === undefined
    ? []
    : [{ subject: name(layer), what: "mixer groups", count: ssmGroups, by: "tp", rule }]
}

/** Engines give every rank the same number of rows of the padded vocabulary. `nameOf` makes their name of the embedding's. */
export const equalVocabulary = (
  { modules }: ModelStructure,
  nameOf: (name: string) => string = (name) => name
): ReadonlyArray<Limit> => {
  const embedding = modules.find(
    ({ kind: { spec }, layer }) => layer === undefined && spec.structure === "embedding" && spec.dims !== undefined
  )
  const [tensor] = embedding?.tensors ?? []
  const count = tensor?.shape[0]
  return tensor === undefined || count === undefined || count < 1
    ? []
    : [
        {
          subject: nameOf(tensor.name),
          what: "rows of the padded vocabulary",
          count,
          by: "tp",
          rule: "divides",
          isPadded: true
        }
      ]
}

/** What Megatron asks of degrees. */
export const megatronLimits = (structure: ModelStructure): ReadonlyArray<Limit> => {
  const { numbers, stacks, family } = structure
  const path = expertsPath(structure)
  const layer = path === undefined ? undefined : Number(/\.layers\.(\d+)\./.exec(path)?.[1] ?? 0)
  const experts = `decoder.layers.${layer}.mlp.experts`
  const layers = stacks.find(({ kind }) => kind === "language")?.layers.length
  return [
    ...(numbers.vocabulary === undefined
      ? []
      : [
          {
            subject: "embedding.word_embeddings.weight",
            what: "rows of the vocabulary",
            count: numbers.vocabulary,
            by: "tp",
            rule: "divides",
            unless: "vocabulary"
          } as const
        ]),
    ...(layers === undefined || layers === 0
      ? []
      : [
          {
            subject: "decoder.layers",
            what: "layers",
            count: layers,
            by: "pp",
            rule: "divides",
            unless: "stages"
          } as const
        ]),
    ...(layer === undefined || numbers.experts === undefined
      ? []
      : [
          {
            subject: experts,
            what: "experts",
            count: numbers.experts,
            by: "ep",
            rule: "divides",
            unless: "experts"
          } as const
        ]),
    // Its grouped experts have biases only where each is whole.
    ...(layer === undefined || family.name !== "gpt_oss"
      ? []
      : [
          {
            subject: experts,
            what: "biases of experts",
            count: 1,
            by: "etp",
            rule: "at most",
            kind: "unsupported"
          } as const
        ]),
    ...mixerGroups(structure, (number) => `decoder.layers.${number}.mixer.in_proj.weight`, "divides")
  ]
}
