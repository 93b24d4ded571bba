// SPDX-License-Identifier: Apache-2.0
/**
 * What the ranks of a pair state about themselves, and what follows when all have. Pure.
 *
 * Invariant: every rank of a pair derives the same order of members and the same layouts, or the same error.
 */

import { digestOf } from "@tensorferry/core/base/Digest"
import { Natural } from "@tensorferry/core/base/Numbers"
import { deviceMesh } from "@tensorferry/core/layout/DeviceMesh"
import { type MeshLayout, meshLayout, Placement } from "@tensorferry/core/layout/Placement"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { type BusError, busError } from "../BusError.ts"
import type { Entries } from "../store/KeyValueStore.ts"

export const Registration = Schema.Struct({
  version: Schema.Literal(2),
  /** The machine that the agent runs on: equal ids are the same machine. */
  host: Schema.Struct({ id: Schema.String, name: Schema.String }),
  /** The agent moves tensors to other hosts too, where the other agent does. */
  leavesHost: Schema.optionalKey(Schema.Boolean),
  /** Names one run of one agent, so that a restarted one differs from the one before. */
  instance: Schema.String,
  /** Names this attempt to make the pair; no other attempt, of whatever pair or agent, has this name. */
  attempt: Schema.String,
  /** Of the agent. */
  rank: Natural,
  side: Schema.String,
  remote: Schema.String,
  size: Natural,
  mesh: Schema.Array(Natural),
  placements: Schema.Array(Placement)
})
export type Registration = typeof Registration.Type

/** Stands in place of a registration that failed, for those whose attempts were part of the failure. */
export const Refusal = Schema.Struct({
  version: Schema.Literal(2),
  tag: Schema.Literals(["PairMismatch", "HostsDiffer"]),
  detail: Schema.String,
  attempts: Schema.Array(Schema.String)
})
export type Refusal = typeof Refusal.Type

const Entry = Schema.fromJsonString(Schema.Union([Registration, Refusal]))

export const encodeRegistration = Schema.encodeSync(Entry)

export interface Side {
  readonly name: string
  /** Ranks of the agents, in the order of the mesh. */
  readonly agents: ReadonlyArray<number>
  /** In ranks of the pair's group. */
  readonly layout: MeshLayout
}

export interface PairMembers {
  /** Ranks of the agents, by rank of the pair's group. */
  readonly agents: ReadonlyArray<number>
  /** Side 0 has the first ranks of the group. */
  readonly sides: readonly [Side, Side]
  /**
   * Names this very pair: it covers the attempts of all members. Two pairs of the same agents, and a pair that was made
   * again, have distinct digests, so keys under them never meet.
   */
  readonly digest: string
  /** What each member called its attempt, by rank of the pair's group. */
  readonly attempts: ReadonlyArray<string>
}

const remedies = {
  PairMismatch: "State the same names, sizes, meshes and placements on all ranks of a side.",
  HostsDiffer:
    "Run all agents of a pair on one host, or start all with TENSORFERRY_TOKEN and a backend that leaves its host, as auto does."
}

const mismatch = (pair: string, detail: string, peer?: number): BusError =>
  busError("PairMismatch", {
    op: "InitPair",
    ...(peer === undefined ? {} : { peer }),
    detail: `Pair ${pair}: ${detail}`,
    remedy: remedies.PairMismatch
  })

const statementOf = ({ size, mesh, placements, remote }: Registration): string =>
  JSON.stringify([remote, size, mesh, placements])

/** Registrations among the entries; what is none is an error that names the key. */
const readRegistrations = (
  pair: string,
  own: Registration,
  entries: Entries
): Result.Result<ReadonlyArray<Registration>, BusError> => {
  const found: Array<Registration> = []
  for (const [key, text] of entries) {
    const decoded = Schema.decodeResult(Entry)(text)
    if (Result.isFailure(decoded)) return Result.fail(mismatch(pair, `${key} is not of this version.`))
    const entry = decoded.success
    if (!("detail" in entry)) found.push(entry)
    // Refusals of attempts before this one are history.
    else if (entry.attempts.includes(own.attempt)) {
      return Result.fail(busError(entry.tag, { op: "InitPair", detail: entry.detail, remedy: remedies[entry.tag] }))
    }
  }
  return Result.succeed(found.sort((a, b) => a.rank - b.rank))
}

/** Ranks of one side, as far as they are there. */
const agreedSide = (
  pair: string,
  name: string,
  registrations: ReadonlyArray<Registration>
): Result.Result<ReadonlyArray<Registration>, BusError> => {
  const members = registrations.filter(({ side }) => side === name)
  const [first] = members
  if (first === undefined) return Result.succeed(members)
  const odd = members.find((member) => statementOf(member) !== statementOf(first))
  if (odd !== undefined) {
    return Result.fail(
      mismatch(
        pair,
        `on side ${name}, agent ${odd.rank} states ${statementOf(odd)} and agent ${first.rank} ${statementOf(first)}.`,
        odd.rank
      )
    )
  }
  return members.length <= first.size
    ? Result.succeed(members)
    : Result.fail(mismatch(pair, `side ${name} has ${members.length} agents and expects ${first.size}.`))
}

const layoutOf = (
  pair: string,
  { mesh, placements, side }: Registration,
  first: number
): Result.Result<MeshLayout, BusError> => {
  const made = Result.flatMap(deviceMesh({ shape: mesh, firstRank: first }), (device) => meshLayout(device, placements))
  return Result.mapError(made, (error) => mismatch(pair, `the layout of side ${side} is not valid: ${error.message}`))
}

/** Everything about a pair once all of its ranks are there; undefined as long as some are missing. */
export const membersOf = (
  pair: string,
  own: Registration,
  entries: Entries
): Result.Result<PairMembers | undefined, BusError> => {
  const read = readRegistrations(pair, own, entries)
  if (Result.isFailure(read)) return Result.fail(read.failure)
  const registrations = read.success
  const names = [own.side, own.remote].sort()
  const stranger = registrations.find(
    ({ side, remote }) => ![side, remote].every((name) => names.includes(name)) || side === remote
  )
  if (stranger !== undefined) {
    return Result.fail(
      mismatch(
        pair,
        `agent ${stranger.rank} joins ${stranger.side} to ${stranger.remote}, agent ${own.rank} ${own.side} to ${own.remote}.`,
        stranger.rank
      )
    )
  }
  const away = registrations.find(
    ({ host, leavesHost }) => host.id !== own.host.id && !(own.leavesHost === true && leavesHost === true)
  )
  if (away !== undefined) {
    return Result.fail(
      busError("HostsDiffer", {
        op: "InitPair",
        peer: away.rank,
        detail: `Pair ${pair}: agent ${own.rank} runs on host ${own.host.name}, agent ${away.rank} on host ${away.host.name}.`,
        remedy: remedies.HostsDiffer
      })
    )
  }
  const [nameA, nameB] = names as [string, string]
  const [a, b] = [agreedSide(pair, nameA, registrations), agreedSide(pair, nameB, registrations)]
  if (Result.isFailure(a)) return Result.fail(a.failure)
  if (Result.isFailure(b)) return Result.fail(b.failure)
  const [membersA, membersB] = [a.success, b.success]
  const [firstA, firstB] = [membersA[0], membersB[0]]
  if (firstA === undefined || firstB === undefined) return Result.succeed(undefined)
  if (membersA.length < firstA.size || membersB.length < firstB.size) return Result.succeed(undefined)
  const layoutA = layoutOf(pair, firstA, 0)
  if (Result.isFailure(layoutA)) return Result.fail(layoutA.failure)
  const layoutB = layoutOf(pair, firstB, firstA.size)
  if (Result.isFailure(layoutB)) return Result.fail(layoutB.failure)
  const members = [...membersA, ...membersB]
  return Result.succeed({
    agents: members.map(({ rank }) => rank),
    sides: [
      { name: nameA, agents: membersA.map(({ rank }) => rank), layout: layoutA.success },
      { name: nameB, agents: membersB.map(({ rank }) => rank), layout: layoutB.success }
    ],
    digest: digestOf(members.map(({ attempt }) => attempt)),
    attempts: members.map(({ attempt }) => attempt)
  })
}

/** Whether the entries still are the very attempts that these members were derived from. */
export const areStill = (pair: string, own: Registration, members: PairMembers, entries: Entries): boolean => {
  const now = membersOf(pair, own, entries)
  return Result.isSuccess(now) && now.success?.digest === members.digest
}

/** The attempt that an entry registers; undefined for what is no registration. */
export const attemptOf = (text: string | undefined): string | undefined => {
  const decoded = text === undefined ? undefined : Schema.decodeResult(Entry)(text)
  return decoded !== undefined && Result.isSuccess(decoded) && "attempt" in decoded.success
    ? decoded.success.attempt
    : undefined
}

/** What other ranks get where this rank finds that the registrations do not match. */
export const refusalOf = (
  pair: string,
  own: Registration,
  entries: Entries,
  { reason: { _tag, detail } }: BusError
): Refusal => {
  const read = readRegistrations(pair, own, entries)
  const others = Result.isSuccess(read) ? read.success : []
  const tag = _tag === "HostsDiffer" ? _tag : "PairMismatch"
  return { version: 2, tag, detail, attempts: [own, ...others].map(({ attempt }) => attempt) }
}

/** Stands in place of a registration whose agent waits no more; it stops nobody. */
export const gaveUp = (rank: number): Refusal => ({
  version: 2,
  tag: "PairMismatch",
  detail: `Agent ${rank} waited before, and gave up.`,
  attempts: []
})

/** Who is missing, in words. */
export const describeMissing = (pair: string, own: Registration, entries: Entries): string => {
  const read = readRegistrations(pair, own, entries)
  const registrations = Result.isSuccess(read) ? read.success : []
  const parts = [own.side, own.remote].map((name) => {
    const members = registrations.filter(({ side }) => side === name)
    const size = members[0]?.size
    return `${members.length} of ${size ?? "an unknown number of"} agents of side ${name} came (${members.map(({ rank }) => rank).join(", ") || "none"})`
  })
  return [`Pair ${pair}: ${parts.join("; ")}`, ...refusalsAmong(entries)].join("; ")
}

/** What others refused before this rank came. */
const refusalsAmong = (entries: Entries): ReadonlyArray<string> => [
  ...new Set(
    [...entries.values()].flatMap((text) => {
      const decoded = Schema.decodeResult(Entry)(text)
      return Result.isSuccess(decoded) && "detail" in decoded.success ? [decoded.success.detail] : []
    })
  )
]
