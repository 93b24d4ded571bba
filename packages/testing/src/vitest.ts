// SPDX-License-Identifier: Apache-2.0
/**
 * The conformance kit as vitest tests: one test per case, skips with their reasons. The only file of the kit that knows a
 * test runner; vitest is the application's own.
 */

import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import { afterAll, describe, expect, it, type TestContext } from "vitest"
import {
  type CaseResult,
  type CopyCase,
  type CopyDriverCase,
  checkQuirks,
  combineOutcomes,
  copyCases,
  copyDriverCases,
  defaultTestLimit,
  type Quirks,
  runTensorEngineCase,
  type Stated,
  StatedCapabilities,
  tensorEngineCases,
  withQuirks
} from "./Conformance.ts"
import type { ReplaySubject } from "./conformance/ReplaySubject.ts"
import { fuzz } from "./fuzz.ts"
import { type ConformanceJob, killRankProcesses, type LaunchRank, runConformanceJob } from "./RankProcesses.ts"
import { replayConformanceCases, runReplayCase } from "./ReplayConformance.ts"
import { ringConformanceCases, runRingCase } from "./ring/RingConformance.ts"
import type { RingSubject } from "./ring/RingSubject.ts"
import { isSoak } from "./testLevel.ts"

/** How cases become tests of the runner. */
export interface DescribeOptions {
  /** Case name to the reason why the subject differs; such cases are reported as skipped. */
  readonly quirks?: Quirks
  /** What the backend's descriptor states; without it, the cases that hold it against the service are skipped. */
  readonly stated?: Stated
  /** Of `describeProcesses`: starts ranks elsewhere than beside the test. */
  readonly launch?: LaunchRank
  /** Milliseconds per test; 90 seconds by default, which the deadline of a case does not reach. */
  readonly timeout?: number
}

const settle = (context: TestContext, result: CaseResult): void => {
  if (result.status === "skipped") context.skip(result.detail)
  if (result.status === "failed") expect.fail(`${result.name}: ${result.detail}`)
}

const describeCases = <Case extends { readonly name: string }>(
  name: string,
  cases: ReadonlyArray<Case>,
  run: (oneCase: Case) => Effect.Effect<CaseResult>,
  options: DescribeOptions
): void => {
  const { quirks = {}, stated = {} } = options
  describe(name, () => {
    for (const wrong of checkQuirks(cases, quirks))
      it(`states quirks: ${wrong.name}`, (context) => settle(context, wrong))
    const judged = (oneCase: Case) =>
      Effect.provideService(withQuirks(oneCase, quirks, run), StatedCapabilities, stated)
    for (const oneCase of cases) {
      it(oneCase.name, limitOf(options), async (context) => {
        settle(context, await Effect.runPromise(judged(oneCase)))
      })
    }
  })
}

/** Every engine case against a fresh engine. */
export const describeTensorEngine = <E>(
  name: string,
  layer: Layer.Layer<TensorEngine, E>,
  options: DescribeOptions = {}
): void =>
  describeCases(
    `${name}: TensorEngine`,
    tensorEngineCases,
    (oneCase) => Effect.orDie(Effect.provide(runTensorEngineCase(oneCase), layer, { local: true })),
    options
  )

/** Every copy case, by `run`: ranks as fibers (`runCopyCase` of the virtual cluster) or as whatever the author starts. */
export const describeCopyService = (
  name: string,
  run: (copyCase: CopyCase) => Effect.Effect<CaseResult>,
  options: DescribeOptions = {}
): void => describeCases(`${name}: CopyService`, copyCases, run, options)

/** Every driver case, by `run`. */
export const describeCopyDriver = (
  name: string,
  run: (driverCase: CopyDriverCase) => Effect.Effect<CaseResult>,
  options: DescribeOptions = {}
): void => describeCases(`${name}: CopyDriver`, copyDriverCases, run, options)

/** Every replay case against a fresh subject. */
export const describeReplayTransfer = <E>(
  name: string,
  layer: Layer.Layer<ReplaySubject | TensorEngine, E>,
  options: DescribeOptions = {}
): void =>
  describeCases(
    `${name}: ReplayTransferBackend`,
    replayConformanceCases,
    (oneCase) => Effect.orDie(Effect.provide(runReplayCase(oneCase), layer, { local: true })),
    options
  )

/** Every case of replay rings against a fresh subject. */
export const describeReplayRing = <E>(
  name: string,
  layer: Layer.Layer<RingSubject, E>,
  options: DescribeOptions = {}
): void =>
  describeCases(
    `${name}: replay ring`,
    ringConformanceCases,
    (oneCase) => Effect.orDie(Effect.provide(runRingCase(oneCase), layer, { local: true })),
    options
  )

const limitOf = ({ timeout = defaultTestLimit }: DescribeOptions) => ({ timeout })

/**
 * Every case of the copy service and the driver between processes, each of which runs `script` (see RankProcesses) with its
 * place and what is `shared`, and at the end that no rank has faults to report.
 */
export const describeProcesses = (name: string, script: URL, shared: object, options: DescribeOptions = {}): void => {
  afterAll(killRankProcesses)
  // One job per size runs all of its cases; the first case of a size waits for it.
  const jobs = new Map<number, Promise<ConformanceJob>>()
  const run = (oneCase: CopyCase | CopyDriverCase) =>
    Effect.promise(async () => {
      const job = jobs.get(oneCase.size) ?? runConformanceJob(script, oneCase.size, shared, options.launch)
      jobs.set(oneCase.size, job)
      return combineOutcomes(oneCase.name, (await job).outcomesOf(oneCase.name))
    })
  describeCopyService(name, run, options)
  describeCopyDriver(name, run, options)
  it(`${name} leaves the devices as they were`, limitOf(options), async () => {
    for (const [size, job] of jobs)
      for (const [rank, faults] of (await job).faults.entries())
        expect(faults, `rank ${rank} of ${size}`).toStrictEqual([])
  })
}

/**
 * Fuzzing of a script's targets: each keeps its rules within this memory, and takes some mutants but not all. `seconds` per
 * target, or a minute from a seed of its own with TENSORFERRY_TESTS=soak. TENSORFERRY_FUZZ_SEED=N runs the one case N again.
 */
export const describeFuzz = (
  script: URL,
  targets: ReadonlyArray<string>,
  limits: { readonly seconds: number; readonly megabytes: number }
): void => {
  const replayed = process.env.TENSORFERRY_FUZZ_SEED
  const millis = replayed !== undefined ? 0 : 1000 * (isSoak ? 55 : limits.seconds)
  const seed = replayed !== undefined ? Number(replayed) : isSoak ? Date.now() % 2 ** 40 : 1
  describe("fuzzing", () => {
    it.each(targets)("%s", { timeout: 180_000 }, async (target) => {
      const report = await Effect.runPromise(
        Effect.mapError(
          fuzz({ script, target, seed, millis }),
          (detail) => `${detail}\nRun it again with TENSORFERRY_FUZZ_SEED.`
        )
      )
      expect(report.peakMegabytes).toBeLessThan(limits.megabytes)
      if (replayed !== undefined) return
      // Mutants that are all refused, or all accepted, would test little.
      expect(report.accepted).toBeGreaterThan(0)
      expect(report.accepted).toBeLessThan(report.cases)
    })
  })
}
