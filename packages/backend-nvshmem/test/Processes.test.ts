// SPDX-License-Identifier: Apache-2.0
/**
 * The driver between real processes, whose simulated heaps lie in memory that they share: the
 * death of one of them.
 */

import { assert, describe, it } from "@effect/vitest"
import { killRankProcesses, runRankProcesses } from "@tensorferry/testing/RankProcesses"
import { afterAll } from "vitest"
import type { DeathLine } from "./fixtures/death-rank.ts"

afterAll(killRankProcesses)

describe("a PE that dies in the middle of a run", () => {
  it("fails the run of the others at once; they neither use nor finalise the library any more", {
    timeout: 120_000
  }, async () => {
    const ranks = await runRankProcesses<DeathLine>(new URL("./fixtures/death-rank.ts", import.meta.url), 2)
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
