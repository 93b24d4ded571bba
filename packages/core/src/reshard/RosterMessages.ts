// SPDX-License-Identifier: Apache-2.0
/**
 * What ranks send each other so that all know both rosters: first a small statement from every rank, then the contents
 * of each layout class, once, from the lowest rank that holds it. Pure: bytes in, data or a fault out.
 *
 * Invariant: a function of the bytes alone, so all ranks that received the same bytes get the same rosters or the same
 * fault. Nothing that arrives is trusted: contents must have the digest that was stated, every index must exist, and
 * what is allocated is bounded by the bytes received and a constant.
 */

import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { type Digest, digestOf } from "../base/Digest.ts"
import type { Rank } from "../base/Ids.ts"
import { Natural } from "../base/Numbers.ts"
import { ParameterMetadata } from "../layout/ParameterMetadata.ts"
import { expandRuns, runsLength, runsOf, StepRun } from "../layout/RankRuns.ts"
import {
  type ClassContents,
  type GroupSet,
  ParameterStructure,
  type Roster,
  type RosterPart,
  rosterFromParts,
  rosterPart
} from "../layout/Roster.ts"

const Index = Schema.NullOr(Natural)

/** One side of a statement: which class the rank is of, and what only it can say, its groups. */
const SideStatement = Schema.Struct({
  contents: Schema.String.check(Schema.isPattern(/^[0-9a-f]{64}$/)),
  lists: Schema.Array(Schema.Array(StepRun)),
  /** By group slot: tensor, expert, data and pipeline parallel; indices into `lists`. */
  groups: Schema.Array(Schema.Tuple([Index, Index, Index, Index]))
})
type SideStatement = typeof SideStatement.Type

const longestFault = 1000

/** A statement, or why the rank cannot make one, so that all ranks fail with its reason. */
const StatementMessage = Schema.Union([
  Schema.Struct({
    version: Schema.Literal(2),
    source: Schema.NullOr(SideStatement),
    destination: Schema.NullOr(SideStatement)
  }),
  Schema.Struct({
    version: Schema.Literal(2),
    detail: Schema.String.check(Schema.isMaxLength(longestFault)),
    remedy: Schema.String.check(Schema.isMaxLength(longestFault))
  })
])
const statementCodec = Schema.fromJsonString(StatementMessage)

/** Contents as sent: parameters as rows, the resolved name null where it is the name. */
const ContentsMessage = Schema.Struct({
  structures: Schema.Array(ParameterStructure),
  parameters: Schema.Array(
    Schema.Tuple([
      Schema.String,
      Schema.NullOr(Schema.String),
      Index,
      Index,
      Schema.NullOr(Schema.String),
      Natural,
      Natural
    ])
  )
})
const contentsCodec = Schema.fromJsonString(ContentsMessage)

/** Ranks that the groups of a job may name in all, beside `groupsPerRank` for each rank. */
const mostGroupRanks = 2 ** 22
const groupsPerRank = 64

const sideNames = ["source", "destination"] as const

/** Why no rosters can be made of what ranks sent. */
export interface RosterFault {
  /** The rank that sent what cannot be used. */
  readonly rank: Rank
  readonly detail: string
  readonly remedy: string
}

const fault = (rank: Rank, detail: string, remedy: string): Result.Result<never, RosterFault> =>
  Result.fail({ rank, detail, remedy })

const sameVersion = "See the error of that rank, and run the same version on all ranks."

/** What a rank sends in the first round, and keeps for the second. */
export interface OwnStatement {
  readonly payload: Uint8Array
  /** Digest to text of the classes that this rank holds. */
  readonly contents: ReadonlyMap<Digest, string>
}

const encodeContents = ({ structures, parameters }: ClassContents): string =>
  JSON.stringify({
    structures,
    parameters: parameters.map(
      ({ name, resolvedName, globalExpertIndex, numExperts, aliasOf, structure, groupSlot }) => [
        name,
        resolvedName === name ? null : resolvedName,
        globalExpertIndex,
        numExperts,
        aliasOf,
        structure,
        groupSlot
      ]
    )
  })

const encodeParameter = Schema.encodeResult(ParameterMetadata)

/** What is wrong with a rank's own parameters. */
const ownFault = (
  rank: Rank,
  parameters: ReadonlyArray<ParameterMetadata>
): Pick<RosterFault, "detail" | "remedy"> | undefined => {
  for (const parameter of parameters) {
    const encoded = encodeParameter(parameter)
    if (Result.isFailure(encoded)) {
      return {
        detail: `Rank ${rank} cannot state ${parameter.name}: ${encoded.failure.message}.`,
        remedy: "State shapes and ranks as natural numbers."
      }
    }
    if (parameter.ownerRank !== rank) {
      return {
        detail: `Rank ${rank} states ${parameter.name} as owned by rank ${parameter.ownerRank}.`,
        remedy: "State only what the rank itself holds."
      }
    }
  }
  return undefined
}

/** Interns what the rank holds. Parameters that cannot be stated give a payload that says why. */
export const encodeStatement = (
  rank: Rank,
  source: ReadonlyArray<ParameterMetadata>,
  destination: ReadonlyArray<ParameterMetadata>
): OwnStatement => {
  const bytes = (value: unknown) => new TextEncoder().encode(JSON.stringify(value))
  const wrong = ownFault(rank, source) ?? ownFault(rank, destination)
  if (wrong !== undefined) {
    const detail = wrong.detail.slice(0, longestFault)
    return { payload: bytes({ version: 2, detail, remedy: wrong.remedy }), contents: new Map() }
  }
  const contents = new Map<Digest, string>()
  const side = (parameters: ReadonlyArray<ParameterMetadata>): SideStatement | null => {
    if (parameters.length === 0) return null
    const part = rosterPart(parameters)
    const text = encodeContents(part.contents)
    const digest = digestOf(text)
    contents.set(digest, text)
    return {
      contents: digest,
      lists: part.rankLists.map(runsOf),
      groups: part.groupSets.map((set) => [
        set.tensorParallel,
        set.expertParallel,
        set.dataParallel,
        set.pipelineParallel
      ])
    }
  }
  return { payload: bytes({ version: 2, source: side(source), destination: side(destination) }), contents }
}

type Side = Omit<RosterPart, "contents"> & { readonly digest: Digest }

/** One rank's statement, its groups expanded. */
export type Statement = { readonly [side in (typeof sideNames)[number]]: Side | undefined }

/** Reads the first round, by rank. */
export const readStatements = (
  payloads: ReadonlyArray<Uint8Array>
): Result.Result<ReadonlyArray<Statement>, RosterFault> => {
  const known = new Map<string, ReadonlyArray<Rank>>()
  let room = mostGroupRanks + groupsPerRank * payloads.length

  const expand = (rank: Rank, runs: ReadonlyArray<StepRun>): Result.Result<ReadonlyArray<Rank>, RosterFault> => {
    const key = runs.join(";")
    const found = known.get(key)
    if (found !== undefined) return Result.succeed(found)
    const length = runsLength(runs)
    if (length > payloads.length) {
      return fault(
        rank,
        `Rank ${rank} states a group of ${length} ranks in a job of ${payloads.length}.`,
        "State each rank once, and only ranks of the job."
      )
    }
    room -= length
    const ranks = room < 0 ? undefined : expandRuns(runs)
    if (ranks === undefined) {
      return fault(rank, `The groups of rank ${rank} name too many ranks, or numbers that no rank has.`, sameVersion)
    }
    known.set(key, ranks)
    return Result.succeed(ranks)
  }

  const readSide = (rank: Rank, side: SideStatement | null): Result.Result<Side | undefined, RosterFault> => {
    if (side === null) return Result.succeed(undefined)
    const rankLists: Array<ReadonlyArray<Rank>> = []
    for (const runs of side.lists) {
      const ranks = expand(rank, runs)
      if (Result.isFailure(ranks)) return Result.fail(ranks.failure)
      rankLists.push(ranks.success)
    }
    if (side.groups.some((set) => set.some((index) => index !== null && index >= rankLists.length))) {
      return fault(rank, `Rank ${rank} refers to a group that it does not state.`, sameVersion)
    }
    const groupSets = side.groups.map(
      ([tensorParallel, expertParallel, dataParallel, pipelineParallel]): GroupSet => ({
        tensorParallel,
        expertParallel,
        dataParallel,
        pipelineParallel
      })
    )
    return Result.succeed({ digest: side.contents, rankLists, groupSets })
  }

  const statements: Array<Statement> = []
  for (const [rank, payload] of payloads.entries()) {
    const message = Schema.decodeResult(statementCodec)(new TextDecoder().decode(payload))
    if (Result.isFailure(message)) return fault(rank, `Rank ${rank} sent a roster that cannot be read.`, sameVersion)
    if ("detail" in message.success) return fault(rank, message.success.detail, message.success.remedy)
    const source = readSide(rank, message.success.source)
    if (Result.isFailure(source)) return Result.fail(source.failure)
    const destination = readSide(rank, message.success.destination)
    if (Result.isFailure(destination)) return Result.fail(destination.failure)
    statements.push({ source: source.success, destination: destination.success })
  }
  return Result.succeed(statements)
}

/** The digests that each rank sends in the second round: those that no lower rank holds. */
const contentsByRank = (statements: ReadonlyArray<Statement>): ReadonlyArray<ReadonlyArray<Digest>> => {
  const seen = new Set<Digest>()
  return statements.map((statement) =>
    sideNames.flatMap((name) => {
      const digest = statement[name]?.digest
      if (digest === undefined || seen.has(digest)) return []
      seen.add(digest)
      return [digest]
    })
  )
}

/** JSON as it is made here has no line break, so one separates texts. */
const separator = "\n"

/** What this rank sends in the second round; empty for most ranks. */
export const encodeContentsOf = (statements: ReadonlyArray<Statement>, rank: Rank, own: OwnStatement): Uint8Array =>
  new TextEncoder().encode(
    contentsByRank(statements)
      [rank]!.map((digest) => own.contents.get(digest) ?? "")
      .join(separator)
  )

const readContents = (text: string): ClassContents | undefined => {
  const message = Schema.decodeResult(contentsCodec)(text)
  if (Result.isFailure(message)) return undefined
  const { structures, parameters: rows } = message.success
  const parameters = rows.map(([name, resolved, globalExpertIndex, numExperts, aliasOf, structure, groupSlot]) => ({
    name,
    resolvedName: resolved ?? name,
    globalExpertIndex,
    numExperts,
    aliasOf,
    structure,
    groupSlot
  }))
  return parameters.every(({ structure }) => structure < structures.length) ? { structures, parameters } : undefined
}

/** Both sides of a job, as every rank knows them. */
export interface Rosters {
  readonly source: Roster
  readonly destination: Roster
}

/** Reads the second round and joins both into rosters. */
export const readRosters = (
  statements: ReadonlyArray<Statement>,
  payloads: ReadonlyArray<Uint8Array>
): Result.Result<Rosters, RosterFault> => {
  const contents = new Map<Digest, { readonly value: ClassContents; readonly slots: number }>()
  for (const [rank, digests] of contentsByRank(statements).entries()) {
    const text = new TextDecoder().decode(payloads[rank])
    const texts = text === "" ? [] : text.split(separator, digests.length + 1)
    if (texts.length !== digests.length || texts.some((each, at) => digestOf(each) !== digests[at])) {
      return fault(rank, `Rank ${rank} sent other parameters than it had stated.`, sameVersion)
    }
    for (const [at, each] of texts.entries()) {
      const value = readContents(each)
      if (value === undefined) return fault(rank, `Rank ${rank} sent a roster that cannot be read.`, sameVersion)
      const slots = value.parameters.reduce((most, { groupSlot }) => Math.max(most, groupSlot + 1), 0)
      contents.set(digests[at]!, { value, slots })
    }
  }
  const sides = { source: [] as Array<[Rank, RosterPart]>, destination: [] as Array<[Rank, RosterPart]> }
  for (const [rank, statement] of statements.entries()) {
    for (const name of sideNames) {
      const side = statement[name]
      if (side === undefined) continue
      const held = contents.get(side.digest)!
      if (held.slots !== side.groupSets.length) {
        return fault(rank, `Rank ${rank} states other groups than its parameters have.`, sameVersion)
      }
      sides[name].push([rank, { rankLists: side.rankLists, groupSets: side.groupSets, contents: held.value }])
    }
  }
  return Result.succeed({ source: rosterFromParts(sides.source), destination: rosterFromParts(sides.destination) })
}
