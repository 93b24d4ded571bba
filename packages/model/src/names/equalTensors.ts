// SPDX-License-Identifier: Apache-2.0
/**
 * Tensors that are one storage by the config and yet stored apart. Their names and shapes are legal; that their values are
 * equal only somebody who reads them can say.
 */
import type { ModelStructure } from "../describe/ModelStructure.ts"
import { MappingError } from "./MappingError.ts"

/** Two tensors whose values must be the same. */
export interface EqualPair {
  readonly name: string
  readonly of: string
}

/** Pairs of a model that must be equal: a head that is stored beside the embedding that it is tied to. */
export const equalTensors = ({ modules, isTied }: ModelStructure): ReadonlyArray<EqualPair> => {
  if (!isTied) return []
  const find = (slot: string) =>
    modules.find(
      ({ kind, layer }) => layer === undefined && kind.spec.member?.set === "ends" && kind.spec.member.slots[0] === slot
    )
  const [head, embedding] = [find("head"), find("embedding")]
  if (head === undefined || embedding === undefined) return []
  return embedding.tensors.flatMap(({ name: of }) => {
    const own = head.tensors.find(({ name }) => name.slice(head.path.length) === of.slice(embedding.path.length))
    return own === undefined ? [] : [{ name: own.name, of }]
  })
}

/** A pair whose values differ. */
export const conflictingAlias = ({ name, of }: EqualPair): MappingError =>
  new MappingError({
    kind: "conflicting_alias",
    subject: name,
    detail: `The config ties it to ${of}, and their values differ.`,
    remedy: "Remove it from the checkpoint, or untie it in config.json."
  })
