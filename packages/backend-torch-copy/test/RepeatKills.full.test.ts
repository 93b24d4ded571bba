// SPDX-License-Identifier: Apache-2.0
/**
 * A rank that dies or is interrupted at any moment of a known update: every other rank learns its name within a second,
 * whatever it waits in, although no collective of the update tells it.
 */
import { afterAll, assert, describe, it } from "@effect/vitest"
import { makeRandom } from "@tensorferry/testing/mutate"
import { killRankProcesses, runRankProcesses } from "@tensorferry/testing/RankProcesses"
import { isSoak } from "@tensorferry/testing/testLevel"
import type { RepeatKillInput, RepeatKillLine } from "./fixtures/repeat-kill-rank.ts"

const script = new URL("./fixtures/repeat-kill-rank.ts", import.meta.url)
const size = 4
/** Of a known batch, which dies and is interrupted, and of a refit. */
const seeds = { batch: isSoak ? 200 : 5, refit: isSoak ? 50 : 5 }

/** A second, and what a busy machine of two processors with four ranks may add until a process gets its turn. */
const mostMillis = 1000 + 500

afterAll(killRankProcesses)

describe.each(["batch", "refit"] as const)("a rank that leaves a known update by %s", (what) => {
  for (const how of ["dies", "interrupts"] as const) {
    it(
      `and ${how}, at ${seeds[what]} random moments, is named to all others within a second`,
      async () => {
        for (let seed = 0; seed < seeds[what]; seed++) {
          const random = makeRandom(seed)
          const input: RepeatKillInput = {
            what,
            // Without rank 0 there is no group, which the second half tries too.
            culprit: how === "dies" && seed % 5 === 4 ? 0 : 1 + random.below(size - 1),
            how,
            at: random.below(what === "batch" ? 40 : 10),
            afterMillis: random.pick([0, 0, 1, 3, 10]),
            byteLength: random.pick([4096, 300_000, what === "batch" ? 30_000_000 : 3_000_000])
          }
          const ranks = await runRankProcesses<RepeatKillLine>(script, size, input)
          const about = `seed ${seed}, ${JSON.stringify(input)}`
          const left = ranks[input.culprit]!.lines.find((line) => line.event === "left")
          assert.isDefined(left, `${about}: ${ranks[input.culprit]!.end}`)
          let named = 0
          for (const [rank, { lines, end }] of ranks.entries()) {
            const text = `${about}: rank ${rank}: ${end}`
            if (how === "interrupts") assert.include(JSON.stringify(lines), "works", text)
            if (rank === input.culprit) continue
            for (const line of lines) {
              if (line.event !== "failed") continue
              named += 1
              assert.match(line.message, new RegExp(`[Rr]ank ${input.culprit}\\b`), text)
              assert.isBelow(line.at - left!.at, mostMillis, `${text}: ${line.message}`)
            }
          }
          // A rank that had an interrupted run behind it goes on; where a process is gone, all fail.
          if (how === "dies") assert.strictEqual(named, size - 1, about)
        }
      },
      isSoak ? 3_600_000 : 300_000
    )
  }
})
