/** Pages say what is: docs/backends.md what the reports say, and blocks of all pages what really works. */
import { spawnSync } from "node:child_process"
import { readdirSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import {
  ConformanceReport,
  copyCases,
  copyDriverCases,
  replayConformanceCases,
  tensorEngineCases
} from "@tensorferry/core/testing"
import * as Schema from "effect/Schema"
import { isFull, scratch } from "./support/command.ts"

const root = fileURLToPath(new URL("../../../", import.meta.url))

const script = (name: string, ...args: ReadonlyArray<string>) =>
  spawnSync(process.execPath, [join(root, "scripts", name), ...args], {
    encoding: "utf8",
    cwd: root,
    timeout: 1_200_000
  })

const reports = join(root, "docs/backends")
const decode = Schema.decodeUnknownSync(Schema.fromJsonString(Schema.toCodecJson(ConformanceReport)))

describe("docs/backends.md", () => {
  it("is what the reports say", () => {
    const { status, stderr } = script("backends-doc.ts", "--check")
    assert.strictEqual(status, 0, stderr)
  })

  it("tells of every backend that is shipped, where its devices are simulated, and of no failure", () => {
    const all = readdirSync(reports).map((file) => decode(readFileSync(join(reports, file), "utf8")))
    assert.sameMembers(
      all.map(({ backend }) => backend),
      ["torch-copy", "cuda", "cuda-ipc", "nccl", "nvshmem", "xpu"]
    )
    const page = readFileSync(join(root, "docs/backends.md"), "utf8")
    for (const { backend, note, services, isFiltered } of all) {
      assert.isFalse(isFiltered)
      assert.isNotEmpty(note)
      assert.deepStrictEqual(
        services.flatMap(({ cases }) => cases.filter(({ status }) => status === "failed")),
        []
      )
      if (note.startsWith("Simulated")) assert.include(page, `| ${backend} (simulated) |`)
    }
  })

  it.skipIf(!isFull)("leaves out no case that the kit has", () => {
    const known = {
      tensorEngine: tensorEngineCases,
      copyService: copyCases,
      copyDriver: copyDriverCases,
      replayTransfer: replayConformanceCases
    }
    for (const file of readdirSync(reports)) {
      const { services } = decode(readFileSync(join(reports, file), "utf8"))
      for (const { service, isOffered, cases } of services) {
        assert.sameMembers(
          cases.map(({ name }) => name),
          isOffered ? known[service].map(({ name }) => name) : [],
          `${file} is of another kit; run: node scripts/backends-reports.ts && node scripts/backends-doc.ts`
        )
      }
    }
  })
})

describe("blocks of pages", () => {
  it("can be read", () => {
    const { status, stdout } = script("doc-test.ts", "--parse")
    assert.strictEqual(status, 0, stdout)
  })

  it.each([
    ["```sh\nif true\n```", "syntax error"],
    ["```ts parse\nconst = 3\n```", "Error"],
    ["```ts file=a.ts\nconst a: number = 'text'\n```", "not assignable"],
    ["```sh run\nfalse\n```", "ended with 1 instead of 0"],
    ["```sh run exit=1\ntrue\n```", "ended with 0 instead of 1"]
  ])("a fault is found: %j", (text, fault) => {
    using folder = scratch()
    const page = join(folder.path, "page.md")
    writeFileSync(page, `# Page\n\n${text}\n`)
    const { status, stdout } = script("doc-test.ts", page)
    assert.strictEqual(status, 1)
    assert.include(stdout, fault)
  })

  it.skipIf(!isFull)("that can run here do what they say", { timeout: 1_200_000 }, () => {
    const { status, stdout } = script("doc-test.ts")
    assert.strictEqual(status, 0, stdout)
  })
})
