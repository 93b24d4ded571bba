// SPDX-License-Identifier: Apache-2.0
/**
 * The drivers between real processes, which reach each other's simulated devices by exported handles and by messages: the
 * whole conformance kit.
 */

import { assert } from "@effect/vitest"
import { type CopyCase, type CopyDriverCase, combineOutcomes } from "@tensorferry/testing"
import { isSoak } from "@tensorferry/testing/testLevel"
import { describeCopyDriver, describeCopyService } from "@tensorferry/testing/vitest"
import * as Effect from "effect/Effect"
import { afterAll, it } from "vitest"
import { kinds } from "./cluster.ts"
import { type JobOutcomes, killJobs, runJob } from "./fixtures/conformance-job.ts"

afterAll(killJobs)

/** `cuda` takes the way of `cuda-ipc` here, and that of ranks in one process is the same for all. */
const tested = isSoak ? kinds : (["cuda-ipc", "nccl"] as const)

for (const kind of tested) {
  // One job per size runs all of its cases; the first case of a size waits for it.
  const jobs = new Map<number, Promise<JobOutcomes>>()
  const run = (oneCase: CopyCase | CopyDriverCase) =>
    Effect.promise(async () => {
      const job = jobs.get(oneCase.size) ?? runJob(kind, oneCase.size)
      jobs.set(oneCase.size, job)
      return combineOutcomes(oneCase.name, (await job).of(oneCase.name))
    })
  describeCopyService(`${kind} between processes`, run, { timeout: 180_000 })
  describeCopyDriver(`${kind} between processes`, run, { timeout: 180_000 })
  it(`${kind} between processes leaves the devices as they were`, { timeout: 180_000 }, async () => {
    for (const [size, job] of jobs) {
      for (const [rank, faults] of (await job).faults.entries()) {
        assert.deepStrictEqual(faults, [], `rank ${rank} of ${size}`)
      }
    }
  })
}
