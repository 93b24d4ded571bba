// SPDX-License-Identifier: Apache-2.0
/** This rank's part of a job of either kind, watched where the job says so. */
import type { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import type { ReportProgress } from "@tensorferry/model/HeldTensors"
import * as Effect from "effect/Effect"
import { type AnyJobSpec, isMeshJob, type RankReport } from "./JobSpec.ts"
import { meshRankJob } from "./MeshJob.ts"
import { withTrace } from "./Observed.ts"
import { rankJob } from "./RankJob.ts"

export const anyRankJob = Effect.fnUntraced(function* (spec: AnyJobSpec, progress: ReportProgress) {
  const watched = <E, R>(job: Effect.Effect<RankReport, E, R>): Effect.Effect<RankReport, E, R | ProcessGroup> =>
    spec.observe === true ? withTrace(job) : job
  return isMeshJob(spec) ? yield* watched(meshRankJob(spec, progress)) : yield* watched(rankJob(spec, progress))
})
