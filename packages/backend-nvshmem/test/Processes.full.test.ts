// SPDX-License-Identifier: Apache-2.0
/**
 * The driver between real processes, whose simulated heaps lie in memory that they share: the whole conformance kit.
 */

import { assert, it } from "@effect/vitest"
import { type CopyCase, type CopyDriverCase, combineOutcomes } from "@tensorferry/testing"
import { describeCopyDriver, describeCopyService } from "@tensorferry/testing/vitest"
import * as Effect from "effect/Effect"
import { afterAll } from "vitest"
import { paths } from "./cluster.ts"
import type { CaseLine } from "./fixtures/conformance-rank.ts"
import { type EndedRank, killJobs, runProcesses } from "./fixtures/job.ts"

afterAll(killJobs)

type Job = ReadonlyArray<EndedRank<CaseLine>>

for (const path of paths) {
  // One job per size runs all of its cases; the first case of a size waits for it.
  const jobs = new Map<number, Promise<Job>>()
  const run = (oneCase: CopyCase | CopyDriverCase) =>
    Effect.promise(async () => {
      const job = jobs.get(oneCase.size) ?? runProcesses<CaseLine>("conformance-rank.ts", oneCase.size, { path })
      jobs.set(oneCase.size, job)
      const outcomes = (await job).map(({ lines, end }, rank) => {
        const line = lines.find((each) => each.event === "case" && each.name === oneCase.name)
        return line?.event === "case"
          ? line.outcome
          : ({ rank, status: "failed", detail: `no outcome; ${end}` } as const)
      })
      return combineOutcomes(oneCase.name, outcomes)
    })
  describeCopyService(`${path} between processes`, run, { timeout: 180_000 })
  describeCopyDriver(`${path} between processes`, run, { timeout: 180_000 })
  it(`${path} between processes leaves the devices as they were`, { timeout: 180_000 }, async () => {
    for (const [size, job] of jobs) {
      for (const [rank, { lines, end }] of (await job).entries()) {
        const last = lines.at(-1)
        assert.strictEqual(last?.event, "end", `rank ${rank} of ${size}: ${end}`)
        assert.deepStrictEqual(last?.event === "end" ? last.faults : [], [], `rank ${rank} of ${size}`)
      }
    }
  })
}
