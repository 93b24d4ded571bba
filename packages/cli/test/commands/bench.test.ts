// SPDX-License-Identifier: Apache-2.0
/** `tensorferry bench delta`: its document holds together, and sizes that cannot be are refused. */
import { assert, describe, it } from "@effect/vitest"
import { expectedListBytes } from "@tensorferry/model/delta/DeltaSize"
import { failuresOf, run } from "../support/command.ts"
import { runHere } from "../support/here.ts"
import { simulated } from "../support/simulatedDevice.ts"

describe("bench delta", () => {
  it("states bytes and times of each share, as a document and as a table", async () => {
    const ended = await runHere(["bench", "delta", "--bytes", "8MiB", "--json"])
    assert.strictEqual(ended.code, 0, ended.stdout + ended.stderr)
    const { cases, ok } = JSON.parse(ended.stdout)
    assert.isTrue(ok)
    assert.deepStrictEqual(
      cases.map((one: { share: number }) => one.share),
      [0.0005, 0.01, 0.03, 0.1]
    )
    for (const one of cases) {
      assert.strictEqual(one.wholeBytes, 2 ** 23)
      const stated = expectedListBytes(2 ** 22, 2, one.share)
      assert.isBelow(Math.abs(one.listBytes / stated - 1), 0.05)
      assert.isBelow(one.fileBytes, one.listBytes)
      const seconds = [one.findSeconds, one.checksumSeconds, one.writeSeconds, one.copySeconds, one.digestSeconds]
      for (const each of seconds) assert.isAbove(each, 0)
      const more = one.findSeconds + 2 * (one.packSeconds + one.checksumSeconds) + one.writeSeconds
      assert.closeTo(one.worthBelow * more, one.wholeBytes - one.listBytes, 1)
    }
    const text = await runHere(["bench", "delta", "--bytes", "1MiB"])
    assert.match(text.stdout, /Changes of 1\.?0* MiB of bfloat16/)
    assert.match(text.stdout, /^ *10% /m)
  })

  it("refuses sizes that are none", async () => {
    for (const bytes of ["0", "-1", "many", "9GiB"]) {
      const ended = await runHere(["bench", "delta", "--bytes", bytes])
      assert.notStrictEqual(ended.code, 0, bytes)
      assert.include(ended.stderr + ended.stdout, "bytes from 1 to 8")
    }
  })
})

describe("bench --device", () => {
  it("moves memory of a device between processes that share it", async () => {
    const args = ["bench", "--device", "cuda:0", "--bytes", "64KiB", "--json"]
    const ended = await run(args, { env: simulated(), limit: 120_000 })
    assert.strictEqual(ended.code, 0, ended.stdout + ended.stderr)
    const { backend, cases } = JSON.parse(ended.stdout)
    assert.strictEqual(backend, "cuda")
    assert.strictEqual(cases[0].path, "ipc")
  })

  it("is refused for a backend of the host, and without a device", async () => {
    const args = ["bench", "--device", "cuda", "--json"]
    const host = await run([...args, "--backend", "tcp"], { env: simulated() })
    assert.notStrictEqual(host.code, 0)
    assert.include(failuresOf(host)[0]!.message, "tcp")
    const [failure] = failuresOf(await run(args, { env: simulated("devices=0") }))
    assert.include(failure!.message, "tensorferry doctor")
  })
})
