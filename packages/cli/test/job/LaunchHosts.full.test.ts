// SPDX-License-Identifier: Apache-2.0
/**
 * Two hosts, as network namespaces joined by one cable: ranks meet over TCP with a token, and do not without.
 *
 * Needs root and `ip`; in full runs only.
 */
import { join } from "node:path"
import { afterAll, assert, describe, it } from "@effect/vitest"
import { failuresOf, scratch } from "../support/command.ts"
import { assertSameModel, mnist, mnistRules } from "../support/models.ts"
import { type OnHost, ranksOn, twoHosts } from "../support/twoHosts.ts"

const { reason, hosts, close } = await twoHosts({ isDirect: true })
afterAll(close)

type Tokens = readonly [string | undefined, string | undefined]

const launch = (tokens: Tokens, ...more: ReadonlyArray<string>): readonly [OnHost, OnHost] => {
  const args = ["reshard", mnist, "--to", "tp=2", "--rules", mnistRules, "--json", "--deadline", "5", ...more]
  const [first, second] = ranksOn(hosts, args, (rank) => {
    const token = tokens[rank]
    return token === undefined ? {} : { TENSORFERRY_TOKEN: token }
  })
  return [first!, second!]
}

describe.skipIf(reason !== undefined)(`two hosts${reason === undefined ? "" : ` (skipped: ${reason})`}`, () => {
  it("with a token work as one job", async () => {
    using folder = scratch()
    const out = join(folder.path, "out")
    const ranks = launch(["a secret", "a secret"], "--out", out)
    for (const { ended } of ranks) {
      const end = await ended
      assert.strictEqual(end.code, 0, end.stdout + end.stderr)
      assert.notInclude(end.stdout + end.stderr, "a secret")
    }
    await assertSameModel(out, mnist)
  })

  it("without a token do not: rank 0 says so at once", async () => {
    const [first, second] = launch([undefined, undefined])
    const end = await first.ended
    second.kill()
    assert.strictEqual(end.code, 1, end.stdout)
    assert.match(failuresOf(end)[0]!.message, /TENSORFERRY_TOKEN/)
    assert.notStrictEqual((await second.ended).code, 0)
  })

  it("with another token a rank is turned away, and rank 0 goes on waiting for the right one", async () => {
    const [first, second] = launch(["one secret", "other secret"])
    const turnedAway = await second.ended
    assert.strictEqual(turnedAway.code, 1, turnedAway.stdout)
    assert.match(failuresOf(turnedAway)[0]!.message, /token/i)
    first.kill()
    const waiting = await first.ended
    assert.strictEqual(waiting.signal, "SIGKILL")
    for (const { stdout, stderr } of [turnedAway, waiting]) assert.notMatch(stdout + stderr, /one secret|other secret/)
  })
})
