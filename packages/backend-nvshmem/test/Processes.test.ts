/**
 * The driver between real processes, whose simulated heaps lie in memory that they share: the whole conformance kit, and
 * the death of one of them.
 */
import { assert, describe, it } from "@effect/vitest"
import { type CopyCase, type CopyDriverCase, combineOutcomes } from "@tensorferry/testing"
import { describeCopyDriver, describeCopyService } from "@tensorferry/testing/vitest"
import * as Effect from "effect/Effect"
import { afterAll } from "vitest"
import { paths } from "./cluster.ts"
import type { CaseLine } from "./fixtures/conformance-rank.ts"
import type { DeathLine } from "./fixtures/death-rank.ts"
import { type EndedRank, killJobs, runProcesses } from "./fixtures/job.ts"

afterAll(killJobs)

type Job = ReadonlyArray<EndedRank<CaseLine>>

/** Takes minutes on few processors; what differs between processes is in the last test too. */
const tested = process.env.TENSORFERRY_TEST_FULL === undefined ? [] : paths

for (const path of tested) {
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

describe("a PE that dies in the middle of a run", () => {
  it("fails the run of the others at once; they neither use nor finalise the library any more", {
    timeout: 120_000
  }, async () => {
    const ranks = await runProcesses<DeathLine>("death-rank.ts", 2, {})
    assert.include(ranks[1]!.end, "SIGKILL")
    const [before, first, second] = ranks[0]!.lines
    assert.deepStrictEqual(
      [before, ranks[1]!.lines[0]],
      [
        { event: "before", reason: "" },
        { event: "before", reason: "" }
      ]
    )
    assert.strictEqual(first?.event, "run", ranks[0]!.end)
    assert.strictEqual(first?.reason, "PeerGone")
    assert.strictEqual(first?.peer, 1)
    assert.strictEqual(second?.event, "later", ranks[0]!.end)
    assert.include(second?.warnings ?? "", "not finalised")
    assert.strictEqual(second?.finalised, 0)
    assert.include(["Broken", "PeerGone"], second?.reason)
  })
})
