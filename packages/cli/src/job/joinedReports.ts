// SPDX-License-Identifier: Apache-2.0
/**
 * How ranks that a launcher started exchange their reports. What arrives is decoded like any other foreign data.
 */
import { exchange } from "@tensorferry/core/group/Exchange"
import {
  type ProcessGroupError,
  type ProcessGroupShape,
  processGroupError
} from "@tensorferry/core/service/ProcessGroup"
import * as Effect from "effect/Effect"
import { RankReport } from "./JobSpec.ts"

/** All ranks' reports, by rank. Collective; fails where a rank's report is not one, naming the rank. */
export const exchangeReports = (
  group: ProcessGroupShape,
  report: RankReport
): Effect.Effect<ReadonlyArray<RankReport>, ProcessGroupError> =>
  exchange(group, "reports", RankReport, report).pipe(
    Effect.catchTag("UnreadableAnswer", ({ rank, detail }) =>
      Effect.fail(
        processGroupError("ProtocolViolation", [rank], {
          rank: group.rank,
          peer: rank,
          op: "reports",
          scope: "peer",
          detail: `Rank ${rank} sent a report that cannot be read: ${detail.replaceAll("\n", " ")}.`,
          remedy: "Run the same version on all ranks."
        })
      )
    )
  )
