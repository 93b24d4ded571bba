// SPDX-License-Identifier: Apache-2.0
/** A job whose tensors do not fit into memory is refused before anything is loaded, with what is needed and what is free. */
import { writeFileSync } from "node:fs"
import { join } from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import { shortage } from "../../src/job/checkMemory.ts"
import { endAll, failuresOf, run, scratch } from "../support/command.ts"

afterEach(endAll)

const gib = 2 ** 30

describe("memory for a job", () => {
  it("is enough where each host has what its ranks need together", () => {
    const shares = [
      { host: "a", needed: 3 * gib, free: 6 * gib },
      { host: "a", needed: 3 * gib, free: 6.5 * gib },
      { host: "b", needed: 9 * gib, free: 9 * gib }
    ]
    assert.isUndefined(shortage(shares))
    assert.strictEqual(
      shortage([...shares, { host: "a", needed: gib, free: 7 * gib }]),
      "Ranks 0, 1, 3 need 7.0 GiB of memory for tensors on one host, and 6.0 GiB are free there."
    )
    assert.strictEqual(
      shortage([shares[0]!, { host: "b", needed: 2 * gib, free: gib }]),
      "Rank 1 needs 2.0 GiB of memory for tensors on one host, and 1.0 GiB are free there."
    )
  })

  it("of a device is what its ranks need together, beside what they take of the host", () => {
    const device = { id: "a1", name: "cuda:0 (one)", needed: 5 * gib, free: 9 * gib }
    const share = { host: "a", needed: gib, free: 8 * gib, device }
    assert.isUndefined(shortage([share]))
    assert.isUndefined(shortage([share, { ...share, host: "b" }]))
    assert.strictEqual(
      shortage([share, share]),
      "Ranks 0, 1 need 10.0 GiB of memory for tensors on device cuda:0 (one), and 9.0 GiB are free there."
    )
    assert.strictEqual(
      shortage([{ ...share, free: gib / 2 }]),
      "Rank 0 needs 1.0 GiB of memory for buffers on one host, and 512 MiB are free there."
    )
  })

  it("may be limited, on devices where tensors lie there, else on hosts", () => {
    const device = { id: "a1", name: "cuda:0 (one)", needed: 5 * gib, free: 9 * gib }
    const share = { host: "a", needed: 6 * gib, free: 8 * gib }
    assert.isUndefined(shortage([{ ...share, device }], 5 * gib))
    assert.strictEqual(
      shortage([{ ...share, device }], 4 * gib),
      "Rank 0 needs 5.0 GiB of memory for tensors on device cuda:0 (one), and the limit is 4.0 GiB."
    )
    assert.strictEqual(
      shortage([share], 4 * gib),
      "Rank 0 needs 6.0 GiB of memory for tensors on one host, and the limit is 4.0 GiB."
    )
  })

  it("is asked before anything is loaded", async () => {
    using folder = scratch()
    const shapes = join(folder.path, "huge.json")
    // 64 TiB on each side: more than any machine that runs this has.
    writeFileSync(shapes, JSON.stringify({ dtype: "BF16", tensors: { huge: [2 ** 25, 2 ** 20] } }))
    const ended = await run(["reshard", `synthetic:${shapes}`, "--to", "tp=1", "--default", "replicate", "--json"])
    assert.strictEqual(ended.code, 1, ended.stdout)
    const [failure] = failuresOf(ended)
    assert.strictEqual(failure!.reason, "NotEnoughMemory")
    assert.match(failure!.message, /Rank 0 needs 128 TiB of memory .* [\d.]+ [MGT]iB are free/)
  })
})
