// SPDX-License-Identifier: Apache-2.0
/**
 * Tensors that are one storage by the config and yet stored apart. Their names and shapes are legal; that their values are
 * equal only somebody who reads them can say.
 */
import type { ModelStructure, Module } from "../describe/ModelStructure.ts"
import { MappingError } from "./MappingError.ts"

/** Two tensors whose values must be the same. */
export interface EqualPair {
  readonly name: string
  readonly of: string
}

/** The head, or the embedding, that the model stores. What a classifier has in its place has no rows of a vocabulary. */
const endOf = ({ modules }: ModelStructure, slot: "head" | "embedding"): Module | undefined =>
  modules.find(
    ({ kind: { spec }, layer }) =>
      layer === undefined && spec.dims !== undefined && spec.member?.set === "ends" && spec.member.slots[0] === slot
  )

/** Pairs of a model that must be equal: a head that is stored beside the embedding that it is tied to. */
export const equalTensors = (structure: ModelStructure): ReadonlyArray<EqualPair> => {
  const [head, embedding] = [endOf(structure, "head"), endOf(structure, "embedding")]
  if (!structure.isTied || head === undefined || embedding === undefined) return []
  return embedding.tensors.flatMap(({ name: of }) => {
    const own = head.tensors.find(({ name }) => name.slice(head.path.length) === of.slice(embedding.path.length))
    return own === undefined ? [] : [{ name: own.name, of }]
  })
}

/** Names of an embedding that the model does not store, and the tensors of its head that are what it would be. */
export const embeddingOfHead = (structure: ModelStructure): ReadonlyArray<EqualPair> => {
  const [head, embedding] = [endOf(structure, "head"), endOf(structure, "embedding")]
  const { stacks, family, isTied } = structure
  const [stack] = family.stacks
  const spec = stack?.ends.find(({ member }) => member?.slots[0] === "embedding")
  if (!isTied || head === undefined || embedding !== undefined || spec === undefined) return []
  const prefix = stacks.find(({ kind }) => kind === "language")?.prefix ?? stack!.prefixes[0]!
  return head.tensors.map(({ name }) => ({ name: `${prefix}${spec.path}${name.slice(head.path.length)}`, of: name }))
}

/** A pair whose values differ. */
export const conflictingAlias = ({ name, of }: EqualPair): MappingError =>
  new MappingError({
    kind: "conflicting_alias",
    subject: name,
    detail: `The config ties it to ${of}, and their values differ.`,
    remedy: "Remove it from the checkpoint, or untie it in config.json."
  })
