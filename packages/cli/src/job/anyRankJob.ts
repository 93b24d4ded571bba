/** This rank's part of a job of either kind. */
import * as Effect from "effect/Effect"
import type { ReportProgress } from "./HeldTensors.ts"
import { type AnyJobSpec, isMeshJob } from "./JobSpec.ts"
import { meshRankJob } from "./MeshJob.ts"
import { rankJob } from "./RankJob.ts"

export const anyRankJob = Effect.fnUntraced(function* (spec: AnyJobSpec, progress: ReportProgress) {
  return isMeshJob(spec) ? yield* meshRankJob(spec, progress) : yield* rankJob(spec, progress)
})
