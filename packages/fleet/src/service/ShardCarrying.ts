// SPDX-License-Identifier: Apache-2.0
/**
 * What the weights of a member are where its replica, or the source, is several processes.
 *
 * Each process sums what it answers for, and states the sums in the store: those of a source for each tensor, which add up to the
 * digests of the version; those of a replica in one number, which add up to that of the version. A process has proven a version
 * when the sum of its replica is right. Processes of its replica that are no members are not waited for, so a version can be
 * committed without them; they prove the sum when they join, and until then the replica does not serve.
 */
import type { KeyValueStoreShape } from "@tensorferry/bus/store/KeyValueStore"
import type { Digest } from "@tensorferry/core/base/Digest"
import type { Rank } from "@tensorferry/core/base/Ids"
import { formatShape } from "@tensorferry/core/base/Region"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { type ElementDigest, formatElementDigest, sumOfDigests } from "@tensorferry/core/tensor/ElementDigest"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { textOf } from "../edges/EdgeMessages.ts"
import type { Weights } from "../edges/Pieces.ts"
import { type FleetError, fleetError } from "../FleetError.ts"
import { type ShardLayout, shardBytes } from "../shards/ShardLayout.ts"
import { digestParts, digestUnderName, parseElementDigest } from "../shards/ShareDigests.ts"
import { isWhole, type TensorShare } from "../shards/Shares.ts"
import type { FleetMember, FleetState } from "../version/FleetLog.ts"
import { type Carrying, notProven } from "./Carrying.ts"
import { shardDemand } from "./stagePlan.ts"

/** What a process of a replica states of a version. */
const replicaSum = textOf(Schema.Struct({ id: Schema.String, sum: Schema.String }))
/** What a process of a source states, in texts that the store takes. */
const SourceSums = Schema.Struct({
  label: Schema.String,
  since: Schema.Int,
  pieces: Schema.Int,
  sums: Schema.Record(Schema.String, Schema.String)
})
const sourceSums = textOf(SourceSums)

const namesPerPiece = 4000
/** The digest of a tensor whose parts add up to this sum. */
const digestOfSum = ({ dtype, shape }: Pick<TensorShare, "dtype" | "shape">, sum: ElementDigest): Digest =>
  `${dtype}${formatShape(shape)} ${formatElementDigest(sum)}`

const sumOfDigest = (digest: Digest | undefined): ElementDigest | undefined =>
  parseElementDigest(digest?.split(" ").at(-1) ?? "")

/** What a rank has of each share, as one digest: of all that it holds, or of what it answers for. */
const digestShares = (weights: Weights, shares: ReadonlyArray<TensorShare>, which: "held" | "counted") =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const parts = shares.map((share) => digestParts(weights.get(share.name)!, share, share[which]))
    const digests = yield* engine.digest(parts.flat())
    let at = 0
    return parts.map(({ length }) => {
      at += length
      return sumOfDigests(digests.slice(at - length, at))
    })
  }).pipe(Effect.mapError(({ message }) => notProven(message, "See the failure that caused it.")))

/** Where the rest of the fleet is, for proofs. */
export interface ShardCarryingInput {
  readonly layout: ShardLayout
  readonly self: FleetMember
  readonly store: KeyValueStoreShape
  /** What all keys of the fleet begin with. */
  readonly root: string
  /** Content of the version in use. */
  readonly live: () => string | undefined
  /** The fleet as this member knows it, now and after each change. */
  readonly fleets: Stream.Stream<FleetState | undefined>
  /** How long processes of a source wait for each other. */
  readonly deadline: Duration.Duration
}

const storeFailed = (error: { readonly message: string }): FleetError =>
  fleetError("PeerFailed", [], {
    detail: `Sums could not be stated in the store: ${error.message}`,
    remedy: "See whether the store can be reached.",
    isRetryable: true
  })

/** Of a member that holds shards. */
export const shardCarrying = (input: ShardCarryingInput): Carrying => {
  const { layout, self, store, root, fleets, deadline } = input
  const { group, shares, names } = layout
  /** By content, what this member has stated; the latest last. */
  const stated = new Map<string, ElementDigest>()
  const keyOf = (content: string): string => `${root}sum/${content}/${self.rank}`
  const put = (content: string, sum: ElementDigest) =>
    store.put(keyOf(content), replicaSum.encode({ id: self.id, sum: formatElementDigest(sum) }), { isEphemeral: true })

  const stateSum = (content: string, sum: ElementDigest) =>
    Effect.gen(function* () {
      stated.delete(content)
      stated.set(content, sum)
      yield* put(content, sum)
      // Those of the version in use and of the last two are enough.
      for (const old of [...stated.keys()].slice(0, -2)) {
        if (old === input.live()) continue
        stated.delete(old)
        yield* store.remove(keyOf(old))
      }
    })

  /** Sums by rank, when all ranks of the group that are members have stated theirs. */
  const sumsOfGroup = (content: string) =>
    Effect.gen(function* () {
      const prefix = `${root}sum/${content}/`
      let found = new Map<Rank, ElementDigest>()
      let members: FleetState["members"] = []
      const seen = Stream.merge(
        Stream.map(store.watch(prefix), (entries) => {
          found = new Map()
          for (const [key, text] of entries) {
            const sum = Result.map(replicaSum.decode(text), ({ sum: written }) => parseElementDigest(written))
            if (Result.isSuccess(sum) && sum.success !== undefined)
              found.set(Number(key.slice(prefix.length)), sum.success)
          }
        }),
        Stream.map(fleets, (fleet) => {
          members = fleet?.members ?? []
        })
      )
      const isWaited = (rank: Rank): boolean => rank === self.rank || members.some((member) => member.rank === rank)
      yield* seen.pipe(
        Stream.filter(() => group.every((rank) => !isWaited(rank) || found.has(rank))),
        Stream.runHead
      )
      return found
    })

  const prove: Carrying["prove"] = (weights, manifest) =>
    Effect.gen(function* () {
      const { serial, content, tensors } = manifest
      const missing = [...names].find((name) => tensors[name] === undefined)
      const unknown = Object.keys(tensors).find((name) => !names.has(name))
      if (missing !== undefined || unknown !== undefined) {
        return yield* notProven(
          `Version ${serial} ${missing === undefined ? "has" : "lacks"} tensor ${missing ?? unknown}, which this replica ${missing === undefined ? "lacks" : "has"}.`,
          "Give all members the layouts of one model.",
          missing ?? unknown
        )
      }
      const wholes = shares.filter(isWhole)
      for (const [at, sum] of (yield* digestShares(weights, wholes, "held")).entries()) {
        const found = digestOfSum(wholes[at]!, sum)
        const name = wholes[at]!.resolvedName
        if (found === tensors[name]) continue
        return yield* notProven(
          `Tensor ${name} of version ${serial} has digest ${found} here, not ${tensors[name]}.`,
          "See that the source does not change what it publishes.",
          name
        )
      }
      const counted = yield* digestShares(weights, shares, "counted")
      const own = sumOfDigests(counted.map((sum, at) => digestUnderName(shares[at]!.resolvedName, sum)))
      yield* Effect.mapError(stateSum(content, own), storeFailed)
      const sums = yield* Effect.mapError(sumsOfGroup(content), storeFailed)
      // Who is missing proves the whole when it joins.
      if (group.some((rank) => !sums.has(rank))) return
      const found = sumOfDigests(group.map((rank) => sums.get(rank)!))
      const expected = sumOfDigests(
        Object.entries(tensors).map(([name, digest]) => digestUnderName(name, sumOfDigest(digest) ?? 0n))
      )
      if (found === expected) return
      return yield* notProven(
        `Ranks ${group.join(", ")} hold tensors of version ${serial} whose sums add up to ${formatElementDigest(found)}, not ${formatElementDigest(expected)}.`,
        "See that the source does not change what it publishes, and that all members have one layout."
      )
    })

  const digests: Carrying["digests"] = (weights, label, since) =>
    Effect.gen(function* () {
      const counted = yield* digestShares(weights, shares, "counted")
      const own = shares.map((share, at) => [share.resolvedName, digestOfSum(share, counted[at]!)] as const)
      const prefix = `${root}part/`
      const pieces = Math.max(1, Math.ceil(own.length / namesPerPiece))
      for (let piece = 0; piece < pieces; piece++) {
        const sums = Object.fromEntries(own.slice(piece * namesPerPiece, (piece + 1) * namesPerPiece))
        const text = sourceSums.encode({ label, since, pieces, sums })
        yield* Effect.mapError(store.put(`${prefix}${self.rank}/${piece}`, text, { isEphemeral: true }), storeFailed)
      }
      let late: ReadonlyArray<Rank> = group
      const all = store.watch(prefix).pipe(
        Stream.map((entries) => {
          const found = statedBy(prefix, entries, label, since)
          late = group.filter((rank) => !found.has(rank))
          return late.length === 0 ? [...found.values()].flat() : undefined
        }),
        Stream.filter((found) => found !== undefined),
        Stream.runHead,
        Effect.mapError(storeFailed),
        Effect.timeoutOrElse({
          duration: deadline,
          orElse: () =>
            Effect.fail(
              fleetError("DeadlineExceeded", [...late], {
                detail: `Ranks ${late.join(", ")} of the source did not publish ${label} within ${Duration.format(deadline)}.`,
                remedy: "Publish the same label on all ranks of the source; see whether these run.",
                isRetryable: true
              })
            )
        })
      )
      const found = yield* all
      const forms = new Map<string, string>()
      const sums = new Map<string, ElementDigest>()
      for (const [name, digest] of found._tag === "Some" ? found.value : []) {
        forms.set(name, digest.slice(0, digest.lastIndexOf(" ")))
        sums.set(name, sumOfDigests([sums.get(name) ?? 0n, sumOfDigest(digest) ?? 0n]))
      }
      return Object.fromEntries(
        [...sums].map(([name, sum]) => [name, `${forms.get(name)} ${formatElementDigest(sum)}`])
      )
    })

  return {
    part: self.part,
    leads: self.rank === Math.min(...group),
    demand: shardDemand(layout),
    bytesOf: (weights: Weights) => shardBytes(layout.regions, weights),
    prove,
    digests,
    restate: Effect.suspend(() => Effect.ignore(Effect.forEach(stated, ([content, sum]) => put(content, sum))))
  }
}

/** By rank, what was stated in full under this label. */
const statedBy = (prefix: string, entries: ReadonlyMap<string, string>, label: string, since: number) => {
  const byRank = new Map<Rank, Array<readonly [string, Digest]>>()
  const left = new Map<Rank, number>()
  for (const [key, text] of entries) {
    const statement = sourceSums.decode(text)
    if (Result.isFailure(statement)) continue
    const { pieces, sums, ...about } = statement.success
    if (about.label !== label || about.since !== since) continue
    const rank = Number(key.slice(prefix.length).split("/")[0])
    byRank.set(rank, [...(byRank.get(rank) ?? []), ...Object.entries(sums)])
    left.set(rank, (left.get(rank) ?? pieces) - 1)
  }
  return new Map([...byRank].filter(([rank]) => left.get(rank) === 0))
}
