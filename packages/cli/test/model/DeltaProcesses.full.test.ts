// SPDX-License-Identifier: Apache-2.0
/**
 * Updates of changes between processes: the weights of whole updates in sessions, by the stated bytes; and a rank that dies in
 * the middle of one leaves the others with one version, and its name.
 */
import { afterAll, assert, describe, it } from "@effect/vitest"
import { expectedListBytes } from "@tensorferry/model/delta/DeltaSize"
import { makeRandom } from "@tensorferry/testing/mutate"
import { killRankProcesses, runRankProcesses } from "@tensorferry/testing/RankProcesses"
import { isSoak } from "@tensorferry/testing/testLevel"
import type { DeltaInput, DeltaLine } from "../fixtures/delta-rank.ts"

const script = new URL("../fixtures/delta-rank.ts", import.meta.url)
const kills = isSoak ? 100 : 4

afterAll(killRankProcesses)

const run = (input: DeltaInput) => runRankProcesses<DeltaLine>(script, 4, input)

describe("updates of changes between processes", () => {
  for (const driver of ["torch-copy", "tcp"] as const) {
    it(`send the stated bytes within 5%, and give the bytes of whole updates, by ${driver}`, async () => {
      const shares = [1, 0.0005, 0.01, 0.03, 0.1]
      const [rows, columns] = [2048, 4096]
      const ranks = await run({ driver, rows, columns, shares })
      const updates = ranks.map(({ end, lines }) => {
        assert.lengthOf(lines, shares.length, end)
        return lines.map((line) => (line.event === "update" ? line : assert.fail(end)))
      })
      for (const [at, share] of shares.entries()) {
        const all = updates.map((own) => own[at]!)
        const sum = (of: (line: (typeof all)[number]) => number) => all.reduce((total, line) => total + of(line), 0)
        for (const { isRight } of all) assert.isTrue(isRight, `update ${at}`)
        const sent = sum(({ sentBytes }) => sentBytes)
        if (at === 0) {
          assert.strictEqual(sent, 2 * rows * columns)
          continue
        }
        assert.strictEqual(
          sum(({ whole }) => whole),
          0
        )
        assert.strictEqual(sent, 4 * sum(({ changed }) => changed))
        const stated = expectedListBytes(rows * columns, 2, share)
        assert.isBelow(Math.abs(sent / stated - 1), 0.05, `${sent} bytes of ${share}, ${stated} stated`)
      }
    }, 120_000)
  }

  it(
    `leave weights old, and the name of who died, at ${kills} random moments`,
    async () => {
      for (let kill = 0; kill < kills; kill++) {
        const random = makeRandom(kill)
        const death = { rank: kill % 4, update: 1 + random.below(3), afterMillis: random.pick([0, 1, 3, 8, 20, 60]) }
        const driver = random.pick(["torch-copy", "tcp"])
        const input = { driver, rows: 1024, columns: 2048, shares: [1, 0.1, 0.05, 0.2, 0.1, 0.1], death }
        const ranks = await run(input)
        const about = `kill ${kill}, ${JSON.stringify(input)}: ${JSON.stringify(ranks)}`
        const left = ranks[death.rank]!.lines.find((line) => line.event === "left")
        if (left === undefined) assert.fail(about)
        for (const [rank, { lines }] of ranks.entries()) {
          for (const line of lines) if (line.event === "update") assert.isTrue(line.isRight, about)
          if (rank === death.rank) continue
          const failed = lines.find((line) => line.event === "failed")
          if (failed?.event !== "failed") assert.fail(about)
          assert.isTrue(failed.isOld, about)
          assert.match(failed.message, new RegExp(`[Rr]ank ${death.rank}\\b`), about)
          assert.isBelow(failed.at - left.at, 5000, about)
        }
      }
    },
    isSoak ? 3_600_000 : 240_000
  )
})
