/**
 * How ranks that a launcher started tell each other their reports. What arrives is decoded like any other foreign data.
 */
import {
  type ProcessGroupError,
  type ProcessGroupShape,
  processGroupError
} from "@tensorferry/core/service/ProcessGroup"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { RankReport } from "./JobSpec.ts"

const codec = Schema.fromJsonString(Schema.toCodecJson(RankReport))

/** All ranks' reports, by rank. Collective; fails where a rank's report is not one, naming the rank. */
export const exchangeReports = Effect.fnUntraced(function* (
  group: ProcessGroupShape,
  report: RankReport
): Effect.fn.Return<ReadonlyArray<RankReport>, ProcessGroupError> {
  // An empty payload is no report: a rank that cannot state its own takes part all the same.
  const text = yield* Effect.orElseSucceed(Schema.encodeEffect(codec)(report), () => "")
  const payloads = yield* group.allGather("reports", new TextEncoder().encode(text))
  return yield* Effect.forEach(payloads, (payload, rank) =>
    Effect.mapError(Schema.decodeEffect(codec)(new TextDecoder().decode(payload)), (error) =>
      processGroupError("ProtocolViolation", [rank], {
        rank: group.rank,
        peer: rank,
        op: "reports",
        scope: "peer",
        detail: `Rank ${rank} sent a report that cannot be read: ${error.message.replaceAll("\n", " ")}.`,
        remedy: "Run the same version on all ranks."
      })
    )
  )
})
