// SPDX-License-Identifier: Apache-2.0
/**
 * Ranks state to each other what they hold, so that each can plan alone. Two collectives: every rank's groups and the digest
 * of its parameters, then each distinct list of parameters once. So a job of thousands of ranks exchanges what a few
 * hold, and not the same list thousands of times.
 *
 * Invariant: what arrives decides alone whether a round failed, so all ranks stop after the same one.
 */
import * as Effect from "effect/Effect"
import { exchangePayloads, type Payloads } from "../group/Exchange.ts"
import type { ParameterMetadata } from "../layout/ParameterMetadata.ts"
import type { ProcessGroupShape } from "../service/ProcessGroup.ts"
import { type ReshardError, reshardError } from "./ReshardError.ts"
import {
  encodeContentsOf,
  encodeStatement,
  type OwnStatement,
  type RosterFault,
  type Rosters,
  readRosters,
  readStatements
} from "./RosterMessages.ts"

export type { Rosters } from "./RosterMessages.ts"

/** All ranks' parameters, by rank; ranks that hold nothing on a side are left out of its roster. */
export const exchangeRosters = Effect.fn("exchangeRosters")(function* (
  group: ProcessGroupShape,
  source: ReadonlyArray<ParameterMetadata>,
  destination: ReadonlyArray<ParameterMetadata>
): Effect.fn.Return<Rosters, ReshardError> {
  const failed = ({ rank, detail, remedy }: RosterFault) =>
    reshardError("ExchangeFailed", {
      rank: group.rank,
      peer: rank,
      op: "exchangeRosters",
      scope: "peer",
      detail,
      remedy
    })
  const gather = <Own, All>(label: string, payloads: Payloads<Own, All, RosterFault>, own: Own) =>
    Effect.mapError(exchangePayloads(group, label, payloads, own), (error) =>
      failed(
        "reason" in error
          ? { rank: error.ranks[0] ?? group.rank, detail: error.message, remedy: error.reason.remedy }
          : error
      )
    )
  const own = encodeStatement(group.rank, source, destination)
  const statements = yield* gather(
    "roster exchange",
    { encode: ({ payload }) => payload, decodeAll: readStatements },
    own
  )
  const contents = {
    encode: (held: OwnStatement) => encodeContentsOf(statements, group.rank, held),
    decodeAll: (payloads: ReadonlyArray<Uint8Array>) => readRosters(statements, payloads)
  }
  return yield* gather("roster contents", contents, own)
})
