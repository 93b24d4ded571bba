// SPDX-License-Identifier: Apache-2.0
/** The backend ucx in the command: named where there is UCX, and what to install where there is none. */
import { afterEach, assert, describe, it } from "@effect/vitest"
import { endAll, failuresOf, run, runAll } from "../support/command.ts"
import { mnist, mnistRules } from "../support/models.ts"

afterEach(endAll)

const env = { TENSORFERRY_UCX_LIBRARY: "/nowhere/libucp.so.0" }
const reshard = ["reshard", mnist, "--to", "tp=2", "--rules", mnistRules, "--backend", "ucx", "--json"]

describe("--backend ucx", () => {
  it("without UCX says what was tried and what to install", async () => {
    const [probe, moved] = await Promise.all([
      run(["backends", "probe", "ucx", "--json"], { env }),
      run(reshard, { env })
    ])
    assert.strictEqual(probe.code, 1, probe.stdout)
    const { backends } = JSON.parse(probe.stdout)
    assert.deepStrictEqual(backends[0].probe.tried, [env.TENSORFERRY_UCX_LIBRARY])
    assert.strictEqual(moved.code, 1)
    const [failure] = failuresOf(moved)
    assert.strictEqual(failure!.reason, "Unavailable")
    for (const remedy of [backends[0].probe.remedy, failure!.fields!.remedy]) assert.include(remedy, "libucx0")
  })

  it("with UCX moves a model's bytes, bit by bit", async (test) => {
    const [probe, moved] = await runAll([["backends", "probe", "ucx", "--json"], reshard])
    const { ok, backends } = JSON.parse(probe!.stdout)
    if (!ok) return test.skip(backends[0].probe.cause)
    assert.strictEqual(moved!.code, 0, moved!.stdout + moved!.stderr)
    const { verified, reports } = JSON.parse(moved!.stdout)
    assert.isTrue(verified)
    const paths = reports.flatMap(({ copy }: { copy: { peers: ReadonlyArray<{ path: string }> } }) =>
      copy.peers.map(({ path }) => path)
    )
    assert.isNotEmpty(paths)
    for (const path of paths) assert.match(path, /^ucx-(put|message)$/)
  })
})
