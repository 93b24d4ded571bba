// SPDX-License-Identifier: Apache-2.0
/**
 * The conformance kit between processes of one host.
 */
import { type CopyCase, type CopyDriverCase, combineOutcomes } from "@tensorferry/testing"
import { describeCopyDriver, describeCopyService } from "@tensorferry/testing/vitest"
import * as Effect from "effect/Effect"
import { afterAll } from "vitest"
import type { PathName } from "../src/memoryPath.ts"
import { type JobOutcomes, killJobs, runJob } from "./fixtures/conformance-job.ts"

afterAll(killJobs)

/** Every case of the copy service and the driver, in processes that may not take the forbidden paths. */
export const describeProcesses = (name: string, forbid: ReadonlyArray<PathName>): void => {
  // One job per size runs all of its cases; the first case of a size waits for it.
  const jobs = new Map<number, Promise<JobOutcomes>>()
  const run = (oneCase: CopyCase | CopyDriverCase) =>
    Effect.promise(async () => {
      const job = jobs.get(oneCase.size) ?? runJob(oneCase.size, forbid)
      jobs.set(oneCase.size, job)
      return combineOutcomes(oneCase.name, (await job)(oneCase.name))
    })
  describeCopyService(name, run, { timeout: 120_000 })
  describeCopyDriver(name, run, { timeout: 120_000 })
}
