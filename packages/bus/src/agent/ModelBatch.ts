// SPDX-License-Identifier: Apache-2.0
/**
 * A batch of a model whose sides name, join and cut its tensors by systems of their own: what each rank states of it, checked
 * against what the names have there, and the moves that follow.
 *
 * Invariant: what is derived from statements is derived alike on every rank, errors too. Every element travels once.
 */
import { digestOf } from "@tensorferry/core/base/Digest"
import type { DType } from "@tensorferry/core/base/DType"
import { equalShapes, formatShape } from "@tensorferry/core/base/Region"
import { indexRosters, planRank } from "@tensorferry/core/planner/RosterPlanner"
import type { QuantizedTensor } from "@tensorferry/core/tensor/QuantizedTensor"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { firstOf } from "@tensorferry/core/transform/Compose"
import type { FamilyChoice } from "@tensorferry/model/Cutting"
import { type ModelTensor, worldSizeOf } from "@tensorferry/model/layout/ModelLayout"
import { placeOf, type RankPlace } from "@tensorferry/model/layout/ParallelConfig"
import type { MappingError } from "@tensorferry/model/names/MappingError"
import { mappedDict } from "@tensorferry/model/names/mappedDict"
import {
  type MappedLayout,
  type MappedLayouts,
  type MappedSide,
  mappedLayouts
} from "@tensorferry/model/names/mappedLayouts"
import type { NamedSide } from "@tensorferry/model/names/NamedSide"
import { sideOf } from "@tensorferry/model/names/namedLayouts"
import { scalarTransform } from "@tensorferry/model/names/scalarTransform"
import { openModel } from "@tensorferry/model/openModel"
import { structureOf } from "@tensorferry/model/placement/cutModel"
import type { Placement } from "@tensorferry/model/placement/Placement"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { type BusError, busError } from "../BusError.ts"
import type { RegisterModel } from "../command/Command.ts"
import type { BatchMove, BatchMoves, NoMove } from "./BatchMove.ts"
import { type BatchStatement, familyFault, mismatch } from "./BatchPlan.ts"
import type { Pair } from "./Held.ts"
import { formTransform } from "./QuantizedHeld.ts"
import { statedFamily, statedPlacement, statedSide } from "./StatedNames.ts"

const op = "RegisterModel"

/** A model as the client of this agent states it. */
export interface StatedModel {
  readonly tensors: ReadonlyArray<ModelTensor>
  readonly family: FamilyChoice
  readonly side: NamedSide
  /** Of this side. */
  readonly placement: Placement
  /** Of names, shapes, types and config. */
  readonly digest: string
}

const invalid = (command: RegisterModel, detail: string, remedy: string): BusError =>
  busError("InvalidCommand", { op, detail: `Batch ${command.batchId}: ${detail}`, remedy })

/** Reads names, shapes and config of the model that a command names, and no values. */
export const openStatedModel = Effect.fnUntraced(function* (command: RegisterModel) {
  const stating = { op, subject: `Batch ${command.batchId}` }
  const side = yield* Effect.fromResult(statedSide(stating, command.names, command.rules))
  const placement = yield* Effect.fromResult(statedPlacement(stating, command.placement))
  const model = yield* Effect.mapError(openModel(command.model), ({ reason: { detail, remedy } }) =>
    invalid(command, `model ${command.model}: ${detail}`, remedy)
  )
  const family = yield* statedFamily(stating, model, command.preset)
  const tensors = [...model.tensors].map(({ name, dtype, shape }) => ({ name, dtype, shape }))
  const digest = digestOf([tensors.map(({ name, dtype, shape }) => [name, dtype, shape]), family])
  return { tensors, family, side, placement, digest } satisfies StatedModel
}, Effect.scoped)

/** Ranks that the pair does not see as one model, or as one side of it. */
const statementFault = (
  batch: string,
  { members }: Pick<Pair, "members">,
  statements: ReadonlyArray<BatchStatement>
): BusError | undefined => {
  const { agents, sides } = members
  const models = statements.map(({ model }) => model)
  const plain = models.indexOf(undefined)
  if (plain >= 0) {
    const named = models.findIndex((model) => model !== undefined)
    return mismatch(
      batch,
      `agent ${agents[named]} registers a model by its names, agent ${agents[plain]} tensors of a mesh.`,
      agents[plain]
    )
  }
  const other = models.findIndex((model) => model!.digest !== models[0]!.digest)
  if (other >= 0)
    return mismatch(
      batch,
      `agents ${agents[0]} and ${agents[other]} state different models: names, shapes, types or config.json differ.`,
      agents[other]
    )
  let first = 0
  for (const { name, agents: own } of sides) {
    const { side, placement } = models[first]!
    const wanted = JSON.stringify([side, placement])
    const odd = own.findIndex((_, at) => {
      const model = models[first + at]!
      return JSON.stringify([model.side, model.placement]) !== wanted
    })
    if (odd >= 0)
      return mismatch(
        batch,
        `agents ${own[0]} and ${own[odd]} of side ${name} state different names, degrees or placements.`,
        own[odd]
      )
    if (worldSizeOf(side.config) !== own.length)
      return mismatch(
        batch,
        `side ${name} has ${own.length} agents, and its degrees are those of ${worldSizeOf(side.config)} ranks.`
      )
    first += own.length
  }
  return familyFault(batch, agents, statements)
}

const placeKey = ({ stage, tp, expertTp, expertEp }: RankPlace): string => [stage, tp, expertTp, expertEp].join()

/** Types by place and name, as ranks of one side have them; ranks at one place hold the same. */
const statedTypes = ({ config }: NamedSide, statements: ReadonlyArray<BatchStatement>) => {
  const found = new Map<string, ReadonlyMap<string, DType>>()
  for (const [at, { tensors }] of statements.entries()) {
    const key = placeKey(placeOf(config, 0, at))
    if (!found.has(key)) found.set(key, new Map(tensors.map(({ name, dtype }) => [name!, dtype])))
  }
  return (place: RankPlace, name: string): DType | undefined => found.get(placeKey(place))?.get(name)
}

/** What of a rank's tensors is not as the names of its side have it, in words; the tensor first. */
const tensorFault = (
  { convention, mapping }: NamedSide,
  { tensors, aliases }: ReturnType<MappedLayout["rankOf"]>,
  statement: BatchStatement
): readonly [tensor: string, detail: string] | undefined => {
  const by = mapping === undefined ? convention : "the mapping"
  const held = new Map(statement.tensors.map((tensor) => [tensor.name!, tensor]))
  for (const { name, shape, dtype, rule } of tensors) {
    const own = held.get(name)
    if (own === undefined) return [name, `missing_source (${name} by rule ${rule}): it is not registered.`]
    if (!equalShapes(own.shape, shape))
      return [
        name,
        `shape_mismatch (${name} by rule ${rule}): it is ${formatShape(own.shape)}, ${by} has ${formatShape(shape)} here.`
      ]
    if (own.dtype !== dtype)
      return [name, `shape_mismatch (${name}): it is ${own.dtype}, and ${dtype} on another rank of its place.`]
    held.delete(name)
  }
  for (const name of held.keys()) {
    const of = aliases.get(name)
    return [
      name,
      of === undefined
        ? `unmapped_source (${name}): ${by} has no such tensor here.`
        : `conflicting_alias (${name}): it is the storage of ${of} by ${by}, and is left out.`
    ]
  }
  return undefined
}

/** Parameters of which some rank holds a part quantized; what travels to and from it is values. */
const quantizedParameters = (
  batch: string,
  { members: { sides } }: Pick<Pair, "members">,
  statements: ReadonlyArray<BatchStatement>,
  { source, destination, scalarOf }: MappedLayouts
): Result.Result<ReadonlySet<string>, BusError> => {
  const found = new Map<string, number>()
  for (const [rank, { tensors }] of statements.entries()) {
    const own = new Set(tensors.flatMap(({ form, name }) => (form === undefined ? [] : [name])))
    if (own.size === 0) continue
    const at = rank < sides[0].agents.length ? 0 : 1
    for (const { metadata, view } of (at === 0 ? source : destination).parametersOf(rank)) {
      if (!own.has(view.tensor)) continue
      const detail =
        (found.get(metadata.name) ?? at) !== at
          ? "is quantized on both sides; leave the form out on both"
          : scalarOf(metadata.name) === undefined
            ? undefined
            : "is quantized on one side, and its values change on their way"
      if (detail !== undefined) return Result.fail(mismatch(batch, `${view.tensor} ${detail}.`, undefined, view.tensor))
      found.set(metadata.name, at)
    }
  }
  return Result.succeed(new Set(found.keys()))
}

/** Both directions of a batch, as far as all ranks find them alike. */
export interface ModelPlans {
  readonly layouts: readonly [MappedLayouts, MappedLayouts]
  readonly moves: readonly [Omit<BatchMove, "tensors"> | NoMove, Omit<BatchMove, "tensors"> | NoMove]
}

/** Lays both sides out by what all ranks stated, and plans this rank. */
export const modelPlans = (
  batch: string,
  pair: Pick<Pair, "members" | "rank">,
  statements: ReadonlyArray<BatchStatement>,
  { tensors, family }: StatedModel
): Result.Result<ModelPlans, BusError> =>
  Result.gen(function* () {
    const fault = statementFault(batch, pair, statements)
    if (fault !== undefined) return yield* Result.fail(fault)
    const { agents, sides } = pair.members
    const refused = (error: MappingError | { readonly message: string }): BusError =>
      mismatch(batch, error.message, undefined, "subject" in error ? error.subject : undefined)
    const structure = yield* Result.mapError(structureOf(tensors, family), refused)
    const starts = [0, sides[0].agents.length] as const
    const named = starts.map((start) => statements[start]!.model!)
    const laidOut: Array<MappedSide> = []
    for (const [at, { side, placement }] of named.entries()) {
      const made = yield* Result.mapError(sideOf(side, structure, { ...family, placement }, starts[at]!), refused)
      const own = statements.slice(starts[at]!, starts[at]! + sides[at]!.agents.length)
      laidOut.push({ ...made, dtypeOf: statedTypes(side, own) })
    }
    const there = yield* Result.mapError(mappedLayouts(tensors, laidOut[0]!, laidOut[1]!), refused)
    const back = yield* Result.mapError(mappedLayouts(tensors, laidOut[1]!, laidOut[0]!), refused)
    for (const [rank, statement] of statements.entries()) {
      const at = rank < starts[1] ? 0 : 1
      const odd = tensorFault(named[at]!.side, (at === 0 ? there.source : there.destination).rankOf(rank), statement)
      if (odd !== undefined)
        return yield* Result.fail(
          mismatch(batch, `agent ${agents[rank]} of side ${sides[at]!.name}: ${odd[1]}`, agents[rank], odd[0])
        )
    }
    const quantized = yield* quantizedParameters(batch, pair, statements, there)
    const buckets = statements.flatMap(({ bucketBytes }) => bucketBytes ?? [])
    const movesNothing = tensors.every(({ shape }) => shape.includes(0))
    const moveOf = ({ source, destination, scalarOf }: MappedLayouts): Omit<BatchMove, "tensors"> | NoMove => {
      const index = indexRosters(source.roster, destination.roster)
      if (Result.isFailure(index))
        return {
          refused: "BatchMismatch",
          detail: `Batch ${batch}: ${index.failure.message}`,
          remedy: "Transfer the other way, or let the side that sends hold all that the other side has."
        }
      const waves = buckets.length === 0 ? {} : { waveBytes: Math.max(1, Math.min(...buckets)) }
      return {
        plan: planRank(index.success, pair.rank),
        options: {
          transform:
            quantized.size === 0
              ? scalarTransform(scalarOf)
              : firstOf([formTransform(quantized), scalarTransform(scalarOf)]),
          ...waves
        },
        movesNothing
      }
    }
    return { layouts: [there, back], moves: [moveOf(there), moveOf(back)] } satisfies ModelPlans
  })

/** The moves, with views of this rank's tensors as the plans name them. */
export const modelMoves = (
  batch: string,
  { rank, side }: Pick<Pair, "rank" | "side">,
  { layouts, moves }: ModelPlans,
  held: ReadonlyMap<string, Tensor | QuantizedTensor>
): Result.Result<BatchMoves, BusError> =>
  Result.gen(function* () {
    const made: Array<BatchMove | NoMove> = []
    for (const [direction, move] of moves.entries()) {
      if ("refused" in move) {
        made.push(move)
        continue
      }
      const layout = direction === side ? layouts[direction]!.source : layouts[direction]!.destination
      const dict = mappedDict(layout.rankOf(rank), layout.parametersOf(rank), held)
      const tensors = yield* Result.mapError(dict, ({ message, subject }) =>
        busError("UnsupportedTensor", {
          op,
          paramName: subject,
          detail: `Batch ${batch}: ${message}`,
          remedy: "Register dense tensors of whole bytes, as the names have them."
        })
      )
      made.push({ ...move, tensors })
    }
    return [made[0]!, made[1]!]
  })
