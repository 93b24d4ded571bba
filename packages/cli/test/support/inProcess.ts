// SPDX-License-Identifier: Apache-2.0
/**
 * The ranks of a job as fibers of this process, over the real torch-copy backend: what the command's processes do,
 * without the time that processes take.
 */
import { randomBytes } from "node:crypto"
import { readdirSync, readlinkSync } from "node:fs"
import { descriptor } from "@tensorferry/backend-torch-copy"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import type { Cutting } from "@tensorferry/model/Cutting"
import { modelLayout, parseParallelConfig } from "@tensorferry/model/layout/ModelLayout"
import { jobSize } from "@tensorferry/model/layouts"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import type { JobSpec, RankReport } from "../../src/job/JobSpec.ts"
import { rankJob } from "../../src/job/RankJob.ts"

export const engine = descriptor.tensorEngine!({})
export const driver = () => descriptor.copyDriver!({})

export const config = (text: string) => Result.getOrThrow(parseParallelConfig(text))

export const layoutOf = (input: Parameters<typeof modelLayout>[0]) => Result.getOrThrow(modelLayout(input))

export interface InProcessJob {
  readonly checkpoint: string
  readonly from: string
  readonly to: string
  readonly rules: Cutting
  readonly out?: string
  readonly ranks?: "collocated" | "disjoint"
  readonly verify?: boolean
  /** Processes of the job; by default as many as the layouts need. */
  readonly size?: number
  /** What one rank is told instead. */
  readonly specOf?: (rank: number, spec: JobSpec) => JobSpec
}

/** Each rank's exit, by rank. */
export const runJob = (job: InProcessJob): Effect.Effect<ReadonlyArray<Exit.Exit<RankReport, unknown>>> => {
  const spec: JobSpec = {
    checkpoint: job.checkpoint,
    from: config(job.from),
    to: config(job.to),
    ranks: job.ranks ?? "collocated",
    rules: job.rules,
    backend: "torch-copy",
    backendPackages: [],
    packagesFrom: import.meta.url,
    out:
      job.out === undefined ? null : { folder: job.out, temporary: `${job.out}.tmp-${randomBytes(8).toString("hex")}` },
    verify: job.verify ?? true,
    deadlineMillis: 20_000
  }
  return Effect.scoped(
    Effect.gen(function* () {
      const groups = yield* makeInProcessGroups(job.size ?? jobSize(spec))
      return yield* Effect.forEach(
        groups,
        (group) => {
          const own = job.specOf?.(group.rank, spec) ?? spec
          const rank = rankJob(own, () => Effect.void).pipe(Effect.provideService(ProcessGroup, group))
          // A rank that fails leaves its group, as its process would.
          return Effect.exit(rank).pipe(Effect.tap((exit) => (Exit.isFailure(exit) ? group.leave : Effect.void)))
        },
        { concurrency: "unbounded" }
      )
    })
  )
}

/** The memory files that this process holds open. */
export const memoryFiles = (): number =>
  readdirSync("/proc/self/fd").filter((descriptorName) => {
    try {
      return readlinkSync(`/proc/self/fd/${descriptorName}`).startsWith("/memfd:")
    } catch {
      return false
    }
  }).length
