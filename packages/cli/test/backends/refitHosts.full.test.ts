// SPDX-License-Identifier: Apache-2.0
/** Weights that trainers of one host update on engines of another, again and again, by auto. */
import { afterAll, assert, describe, it } from "@effect/vitest"
import { killRankProcesses, runRankProcesses } from "@tensorferry/testing/RankProcesses"
import type { RefitHostInput, RefitHostLine } from "../fixtures/refit-host-rank.ts"
import { twoHosts } from "../support/twoHosts.ts"

const { reason, hosts, close } = await twoHosts({ hasOwnProcesses: true })
const script = new URL("../fixtures/refit-host-rank.ts", import.meta.url)
const updates = 50

afterAll(async () => {
  killRankProcesses()
  await close()
})

describe.skipIf(reason !== undefined)(
  `refit on two hosts${reason === undefined ? "" : ` (skipped: ${reason})`}`,
  () => {
    it("every update is visible as a whole, and known ones are repeated", { timeout: 60_000 }, async () => {
      const input: RefitHostInput & { readonly host: string; readonly token: string } = {
        updates,
        host: hosts[0]!.addresses[0]!,
        token: "a secret"
      }
      const ranks = await runRankProcesses<RefitHostLine>(script, 4, input, (rank, command, values, options) =>
        hosts[rank >> 1]!.start(command, values, options)
      )
      const versions = Array.from({ length: updates }, (_, at) => [at + 1])
      for (const [rank, { lines, end }] of ranks.entries()) {
        const seen = lines.flatMap((line) => (line.event === "updated" ? [line.versions] : []))
        assert.deepStrictEqual(seen, rank < 2 ? [] : versions, `rank ${rank}: ${end}`)
        const paths = lines.flatMap((line) => (line.event === "paths" ? line.paths : []))
        assert.lengthOf(paths, rank < 2 ? 2 : 0, `rank ${rank}: ${end}`)
        for (const { path, reused } of paths) {
          assert.match(path, /^(ucx-message|ucx-put|tcp)$/)
          assert.isTrue(reused)
        }
      }
    })
  }
)
