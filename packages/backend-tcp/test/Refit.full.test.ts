// SPDX-License-Identifier: Apache-2.0
/**
 * A rank that dies at any moment of an update of weights by tcp: the other learns its name at once, and uses weights of one
 * version, old or new.
 */
import { afterAll, assert, describe, it } from "@effect/vitest"
import { makeRandom } from "@tensorferry/testing/mutate"
import { killRankProcesses, runRankProcesses } from "@tensorferry/testing/RankProcesses"
import { isSoak } from "@tensorferry/testing/testLevel"
import type { RefitInput, RefitLine } from "./fixtures/refit-rank.ts"

const script = new URL("./fixtures/refit-rank.ts", import.meta.url)
const kills = isSoak ? 100 : 15

afterAll(killRankProcesses)

describe("an update whose rank dies", () => {
  it(
    `leaves weights old or new, and its name with the other, at ${kills} random moments`,
    async () => {
      for (let kill = 0; kill < kills; kill++) {
        const random = makeRandom(kill)
        const victim = kill % 2
        const input: RefitInput = {
          victim,
          at: 1 + random.below(8),
          afterMillis: random.pick([0, 1, 3, 8, 20, 60]),
          byteLength: random.pick([4096, 3_000_000, 40_000_000])
        }
        const ranks = await runRankProcesses<RefitLine>(script, 2, input)
        const other = ranks[1 - victim]!
        const about = `kill ${kill}, ${JSON.stringify(input)}: ${JSON.stringify(other.lines)} ${other.end}`
        const left = ranks[victim]!.lines.find((line) => line.event === "left")
        const failed = other.lines.find((line) => line.event === "failed")
        if (left === undefined || failed?.event !== "failed") assert.fail(about)
        assert.match(failed.message, new RegExp(`[Rr]ank ${victim}\\b`), about)
        assert.isBelow(failed.at - left.at, 3000, about)
        assert.lengthOf(failed.versions, 1, about)
        // The sender fills its own weights; the receiver's are what was committed, or what was about to be.
        if (victim === 0) assert.include([failed.committed, failed.underWay], failed.versions[0], about)
      }
    },
    isSoak ? 3_600_000 : 300_000
  )
})
