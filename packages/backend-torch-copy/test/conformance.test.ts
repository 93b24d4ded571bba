/**
 * This backend against the whole conformance kit: its engine in this process, its copy service and driver between real
 * processes, over every path of its ladder.
 */
import { type CopyCase, type CopyDriverCase, combineOutcomes } from "@tensorferry/testing"
import { describeCopyDriver, describeCopyService, describeTensorEngine } from "@tensorferry/testing/vitest"
import * as Effect from "effect/Effect"
import { afterAll } from "vitest"
import type { PathName } from "../src/memoryPath.ts"
import * as TensorEngine from "../src/TensorEngine.ts"
import { type JobOutcomes, killJobs, runJob } from "./fixtures/conformance-job.ts"

afterAll(killJobs)

describeTensorEngine("torch-copy", TensorEngine.layer())

/** The best path by default; the ones below it where time allows. */
const ladders: ReadonlyArray<readonly [name: string, forbid: ReadonlyArray<PathName>]> = [
  ["torch-copy", []],
  ...(process.env.TENSORFERRY_TEST_FULL === undefined
    ? []
    : [["torch-copy without shared maps", ["shared-map"]] as const])
]

for (const [name, forbid] of ladders) {
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
