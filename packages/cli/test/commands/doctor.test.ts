// SPDX-License-Identifier: Apache-2.0
/** `tensorferry doctor` as a user runs it: what it says of this machine, and that a library which is there is found. */
import { symlinkSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import { endAll, run, scratch } from "../support/command.ts"

afterEach(endAll)

interface FactJson {
  readonly summary: string
  readonly data: Readonly<Record<string, unknown>>
  readonly ok: boolean
  readonly remedy?: string
}
interface DoctorJson {
  readonly ok: boolean
  readonly machine: Readonly<Record<string, FactJson>>
  readonly sharing: Readonly<Record<string, FactJson>>
  readonly devices: ReadonlyArray<{ readonly address: string; readonly summary: string }>
  readonly libraries: ReadonlyArray<{
    readonly library: string
    readonly found?: string
    readonly version?: string
    readonly backends: ReadonlyArray<string>
    readonly tried: ReadonlyArray<string>
  }>
  readonly automatic: string | null
  readonly paths: ReadonlyArray<{
    readonly between: string
    readonly backend: string
    readonly ok: boolean
    readonly remedy?: string
  }>
  readonly backends: ReadonlyArray<{ readonly name: string; readonly probe: { readonly _tag: string } }>
}

describe("the paths of auto", () => {
  const noUcx = { TENSORFERRY_UCX_LIBRARY: "/nowhere/libucp.so.0" }

  it("are those within the host and between hosts, with what is missing", async () => {
    const env = { ...noUcx, TENSORFERRY_TOKEN: "a secret" }
    const [asJson, text, doctor] = await Promise.all([
      run(["backends", "probe", "auto", "--json"], { env }),
      run(["backends", "probe", "auto"], { env }),
      run(["doctor"], { env })
    ])
    const { paths } = JSON.parse(asJson.stdout) as Pick<DoctorJson, "paths">
    assert.deepStrictEqual(
      paths.map(({ backend, ok }) => [backend, ok]),
      [
        ["torch-copy", true],
        ["ucx", false],
        ["tcp", true]
      ]
    )
    assert.include(paths[1]!.remedy, "libucx0")
    assert.match(text.stdout, /hosts +tcp +available/)
    assert.match(doctor.stdout, /between hosts the first of tcp that both have/)
    for (const { stdout } of [asJson, text, doctor]) assert.notInclude(stdout, "a secret")
  })
})

describe("doctor", () => {
  it("for machines: facts by name with data, libraries, and what auto would choose", async () => {
    using folder = scratch()
    writeFileSync(join(folder.path, "libcuda.so.535.129.03"), "")
    symlinkSync("libcuda.so.535.129.03", join(folder.path, "libcuda.so.1"))
    const ended = await run(["doctor", "--json"], { env: { LD_LIBRARY_PATH: folder.path } })
    assert.strictEqual(ended.code, 0, ended.stdout)
    assert.strictEqual(ended.stderr, "")
    const found = JSON.parse(ended.stdout) as DoctorJson
    assert.isTrue(found.ok)
    for (const name of ["node", "platform", "processors", "memory nodes", "memory", "memory limit"]) {
      assert.isNotEmpty(found.machine[name]?.summary, name)
    }
    for (const name of ["open files", "address space", "locked memory"]) {
      assert.property(found.machine[name]?.data, "soft", name)
    }
    assert.strictEqual(found.machine.node!.data.version, process.version)
    for (const fact of [...Object.values(found.machine), ...Object.values(found.sharing)]) {
      assert.strictEqual(fact.ok, fact.remedy === undefined, fact.summary)
      assert.notInclude(fact.summary, "\n")
    }
    assert.isTrue(found.sharing["memory files"]?.data.works)
    assert.isTrue(found.sharing["shared map"]?.data.works, found.sharing["shared map"]?.summary)
    const cuda = found.libraries.find(({ library }) => library === "libcuda.so.1")
    assert.strictEqual(cuda?.found, join(folder.path, "libcuda.so.1"))
    assert.strictEqual(cuda?.version, "535.129.03")
    assert.include(cuda!.backends, "cuda-ipc")
    assert.strictEqual(found.automatic, "torch-copy")
    // Without a token no wire leaves the host.
    const [within, ...between] = found.paths
    assert.deepInclude(within, { between: "ranks of one host", backend: "torch-copy", ok: true })
    assert.deepStrictEqual(
      between.map(({ backend }) => backend),
      ["ucx", "tcp"]
    )
    for (const path of between) {
      assert.isFalse(path.ok)
      assert.isNotEmpty(path.remedy)
    }
    assert.include(between[1]!.remedy, "TENSORFERRY_TOKEN")
  })

  it("for people: short lines, one remedy for all that share it", async () => {
    const ended = await run(["doctor"])
    assert.strictEqual(ended.code, 0, ended.stderr)
    for (const part of ["machine", "memory limit", "between processes", "shared map", "device", "libcuda.so.1"]) {
      assert.include(ended.stdout, part)
    }
    assert.match(ended.stdout, /--backend auto uses torch-copy .*, and nothing between hosts/)
    const remedies = ended.stdout.split("\nremedies\n")[1]!.trim().split("\n")
    for (const remedy of remedies) assert.match(remedy, /^- [^:]+: .+\.$/)
    assert.strictEqual(new Set(remedies).size, remedies.length)
    // What a backend would give that is not there.
    if (/^cuda +unavailable|^cuda-ipc +unavailable/m.test(ended.stdout))
      assert.match(ended.stdout, /^- [^:]*cuda.*Without: no GPU memory moves/m)
    for (const line of ended.stdout.split("\n")) assert.isBelow(line.length, 240, line)
  })
})
