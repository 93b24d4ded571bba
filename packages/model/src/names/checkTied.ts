// SPDX-License-Identifier: Apache-2.0
/**
 * Tensors that the config ties and the checkpoint stores apart, read and compared before a system gets them that has one
 * storage for both: the values of one would be lost in silence.
 */
import { fullRegion } from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import { boundedRegions } from "../BoundedRegions.ts"
import type { ModelStructure } from "../describe/ModelStructure.ts"
import type { Model } from "../Model.ts"
import { conflictingAlias, equalTensors } from "./equalTensors.ts"
import type { NamedSide } from "./NamedSide.ts"

/** Conventions that keep what a checkpoint stores, tied or not. */
const keeping: ReadonlySet<string> = new Set(["hf", "fsdp2-hf"])

/** Fails with the first of two tied tensors whose values differ, where a side has one storage for both. */
export const checkTied = Effect.fn("checkTied")(function* (
  model: Model,
  structure: ModelStructure,
  { convention, mapping }: NamedSide
) {
  if (mapping !== undefined || keeping.has(convention)) return
  const pairs = equalTensors(structure)
  for (const pair of pairs) {
    const [own, other] = [pair.name, pair.of].map((name) => model.tensors.find((tensor) => tensor.name === name)!)
    if (own!.dtype !== other!.dtype) return yield* conflictingAlias(pair)
    for (const { region, start, end } of boundedRegions(own!.dtype, fullRegion(own!.shape))) {
      const [one, two] = [new Uint8Array(end - start), new Uint8Array(end - start)]
      yield* model.readRegion(pair.name, region, one)
      yield* model.readRegion(pair.of, region, two)
      if (Buffer.compare(one, two) !== 0) return yield* conflictingAlias(pair)
    }
  }
})
