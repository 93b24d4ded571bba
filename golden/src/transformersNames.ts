// SPDX-License-Identifier: Apache-2.0
/**
 * Names of transformers 5 as recorded by loading and saving numbered tensors: a load is our mapping, a save is its way back.
 */
import type { ModelTensor } from "@tensorferry/model/layout/ModelLayout"
import { placeOf } from "@tensorferry/model/layout/ParallelConfig"
import { hf } from "@tensorferry/model/names/conventions/hf"
import { transformers } from "@tensorferry/model/names/conventions/transformers"
import { wayBackOf } from "@tensorferry/model/names/inverse"
import { type MappedModel, type MappedRank, mapModel } from "@tensorferry/model/names/mapModel"
import { structureOf } from "@tensorferry/model/placement/cutModel"
import type { ModelConfig } from "@tensorferry/model/structure/ModelConfig"
import * as Result from "effect/Result"
import { compareRank, type Named, type NameVerdict, type RecordedMapping } from "./nameMappings.ts"

interface RecordedCase extends RecordedMapping {
  readonly sources: Named
}

interface RecordedModel {
  readonly family: string
  readonly hf_config: ModelConfig
  readonly float32_of_bfloat16_model: ReadonlyArray<string>
  readonly cases: ReadonlyArray<RecordedCase>
}

/** A file of recorded loads and saves. */
export interface RecordedTransformers {
  readonly families: ReadonlyArray<RecordedModel>
}

const config = { tp: 1, pp: 1, dp: 1 }
const place = placeOf(config, 0, 0)

const tensorsOf = (named: Named): ReadonlyArray<ModelTensor> =>
  named.map(([name, shape]) => ({ name, dtype: "bfloat16", shape }))

const mapCase = ({ hf_config: hfConfig }: RecordedModel, { id, sources }: RecordedCase) =>
  Result.gen(function* () {
    const tensors = tensorsOf(sources)
    const structure = yield* structureOf(tensors, {
      preset: hfConfig.model_type as string,
      config: hfConfig,
      placement: {}
    })
    const convention = id.endsWith("/save-native") ? hf : transformers
    const options = { stages: 1, tp: 1, ...(id.endsWith("/load-headless") ? { headless: true as const } : {}) }
    const mapping = convention.mapping(structure, options)
    const model: MappedModel = yield* mapModel({ structure, tensors, mapping, config, placement: {} })
    return { structure, model }
  })

/** The way back from what the model holds to its files. */
const savedRank = (model: RecordedModel, loaded: RecordedCase): Result.Result<MappedRank, Error> =>
  Result.gen(function* () {
    const { structure, model: mapped } = yield* mapCase(model, loaded)
    const { tensors } = yield* mapped.rankAt(place)
    const files = yield* wayBackOf(mapped, tensors, tensorsOf(loaded.sources))
    const aliases = new Map(structure.aliases.map(({ name, of }) => [name, of]))
    return { tensors: files.map((tensor) => ({ ...tensor, rule: tensor.name })), aliases }
  })

const loadedRank = (model: RecordedModel, one: RecordedCase): Result.Result<MappedRank, Error> =>
  Result.gen(function* () {
    const { structure, model: mapped } = yield* mapCase(model, one)
    const rank = yield* mapped.rankAt(place)
    // Files under the names of memory have the head's other name too.
    return one.id.endsWith("/save-native")
      ? { ...rank, aliases: new Map(structure.aliases.map(({ name, of }) => [name, of])) }
      : rank
  })

const compareTypes = (rank: MappedRank, { float32_of_bfloat16_model: wide }: RecordedModel): string | undefined => {
  const wrong = rank.tensors.find(({ name, dtype }) => (dtype === "float32") !== wide.includes(name))
  return wrong === undefined ? undefined : `${wrong.name} is ${wrong.dtype}, recorded otherwise`
}

const unknownOf = (model: RecordedModel, one: RecordedCase): string | undefined =>
  Result.match(mapCase(model, one), {
    onFailure: ({ message }) => message,
    onSuccess: ({ structure }) => {
      const [unknown] = structure.unknown
      return unknown === undefined
        ? undefined
        : `describe does not know ${unknown.tensor}: ${unknown.why ?? "no such name"}`
    }
  })

/** All loads and saves of a recording. */
export const checkTransformers = ({ families }: RecordedTransformers): ReadonlyArray<NameVerdict> =>
  families.flatMap((model) =>
    model.cases.map((one) => {
      const isSave = one.id.endsWith("/save")
      const load = model.cases.find(({ id }) => id.endsWith("/load"))!
      const rank = isSave ? savedRank(model, load) : loadedRank(model, one)
      if (Result.isFailure(rank)) return { name: one.id, fault: rank.failure.message }
      const isLoad = one.id.endsWith("/load")
      const fault =
        compareRank(rank.success, one, one.sources) ??
        (isLoad ? (compareTypes(rank.success, model) ?? unknownOf(model, one)) : undefined)
      return { name: one.id, fault }
    })
  )
