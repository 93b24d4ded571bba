// SPDX-License-Identifier: Apache-2.0
/** What a rank's program imports before it has a job: the start of a rank is mostly this. */
import { spawnSync } from "node:child_process"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"

const rankMain = fileURLToPath(new URL("../../src/job/rankMain.ts", import.meta.url))

/** Modules that are imported, in order; the program gets no job, and ends as it would without a parent. */
const loaded = (): ReadonlyArray<string> => {
  const script = `
    import { registerHooks } from "node:module"
    import { writeSync } from "node:fs"
    registerHooks({ load: (url, context, next) => { writeSync(1, url + "\\n"); return next(url, context) } })
    await import(process.argv[1])
    process.exit(0)`
  const { NODE_OPTIONS: _, ...env } = process.env
  const { status, stdout, stderr } = spawnSync(process.execPath, ["--input-type=module", "-e", script, rankMain], {
    env,
    encoding: "utf8",
    timeout: 60_000
  })
  assert.strictEqual(status, 0, stderr)
  return stdout.trim().split("\n")
}

/** Code of one kind of job, of one format, or of one backend, which a rank imports when it has such a job. */
const late = [
  /\/cli\/src\/job\/(MeshJob|ModelJob|NamedJob|loadBefore)\.ts$/,
  /\/cli\/src\/(commands|output|report|backends|fleet|watch)\//,
  /\/model\/src\/(torch\/(?!torchFiles)|pickle|delta|families|quantized\/(?!choice))/,
  /\/model\/src\/names\/(?!NamedSide|Mapping)/,
  /\/backend-(tcp|ucx|xpu)\/src\/(CopyDriver|Network|Fabric|TensorEngine|ReplayDevice|discover|Xpu)\.ts$/
]

describe("a rank's program", () => {
  it("imports no code of a kind of job, of a format or of a backend before it has a job for it", () => {
    const modules = loaded()
    assert.isTrue(modules.some((url) => url.endsWith("/RankJob.ts")))
    for (const kind of late)
      assert.deepStrictEqual(
        modules.filter((url) => kind.test(url)),
        [],
        String(kind)
      )
    // Each takes about a millisecond of processor time.
    const own = modules.filter((url) => url.includes("/packages/"))
    assert.isAtMost(own.length, 330, `${own.length} of ${modules.length}`)
  })
})
