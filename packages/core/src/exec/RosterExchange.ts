/**
 * Ranks tell each other what they hold, so that each can plan alone. One collective; what arrives is decoded and checked
 * like any other foreign data.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { ParameterMetadata } from "../layout/ParameterMetadata.ts"
import { type Roster, rosterFromParameters } from "../layout/Roster.ts"
import type { ProcessGroupShape } from "../service/ProcessGroup.ts"
import { type ReshardError, reshardError } from "./ReshardError.ts"

const Holdings = Schema.Struct({
  version: Schema.Literal(1),
  source: Schema.Array(ParameterMetadata),
  destination: Schema.Array(ParameterMetadata)
})
const codec = Schema.fromJsonString(Schema.toCodecJson(Holdings))

export interface Rosters {
  readonly source: Roster
  readonly destination: Roster
}

/** All ranks' parameters, by rank; ranks that hold nothing on a side are left out of its roster. */
export const exchangeRosters = Effect.fn("exchangeRosters")(function* (
  group: ProcessGroupShape,
  source: ReadonlyArray<ParameterMetadata>,
  destination: ReadonlyArray<ParameterMetadata>
): Effect.fn.Return<Rosters, ReshardError> {
  const failed = (rank: number, detail: string, remedy: string) =>
    reshardError("ExchangeFailed", {
      rank: group.rank,
      peer: rank,
      op: "exchangeRosters",
      scope: "peer",
      detail,
      remedy
    })
  const own = yield* Effect.result(Schema.encodeEffect(codec)({ version: 1, source, destination }))
  // A rank that cannot state what it holds takes part all the same, so that no other waits for it.
  const payload = new TextEncoder().encode(Result.getOrElse(own, () => ""))
  const payloads = yield* Effect.mapError(group.allGather("roster exchange", payload), (error) =>
    failed(error.ranks[0] ?? group.rank, error.message, error.reason.remedy)
  )
  if (Result.isFailure(own)) {
    return yield* failed(group.rank, own.failure.message, "State shapes and ranks as natural numbers.")
  }
  const sides = {
    source: [] as (readonly [number, ReadonlyArray<ParameterMetadata>])[],
    destination: [] as (readonly [number, ReadonlyArray<ParameterMetadata>])[]
  }
  for (const [rank, payload] of payloads.entries()) {
    const holdings = Schema.decodeResult(codec)(new TextDecoder().decode(payload))
    if (Result.isFailure(holdings)) {
      return yield* failed(
        rank,
        `Rank ${rank} sent a roster that cannot be read.`,
        "See the error of that rank, and run the same version on all ranks."
      )
    }
    for (const side of ["source", "destination"] as const) {
      const parameters = holdings.success[side]
      const foreign = parameters.find((parameter) => parameter.ownerRank !== rank)
      if (foreign !== undefined) {
        return yield* failed(
          rank,
          `Rank ${rank} states ${foreign.name} as owned by rank ${foreign.ownerRank}.`,
          "State only what the rank itself holds."
        )
      }
      if (parameters.length > 0) sides[side].push([rank, parameters])
    }
  }
  return { source: rosterFromParameters(sides.source), destination: rosterFromParameters(sides.destination) }
})
