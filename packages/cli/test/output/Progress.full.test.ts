// SPDX-License-Identifier: Apache-2.0
/** Progress of whole commands: on a terminal one line that goes, elsewhere nothing, and lines of JSON for who asks. */
import { spawnSync } from "node:child_process"
import { fileURLToPath } from "node:url"
import { stripVTControlCharacters } from "node:util"
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { run, scratch } from "../support/command.ts"
import { writeSmallModel } from "../support/smallModels.ts"

const main = fileURLToPath(new URL("../../src/main.ts", import.meta.url))
const again = "\r\u001b[2K"

/** What a command writes to a terminal of 80 columns, both of its outputs together. */
const onTerminal = (args: ReadonlyArray<string>): string => {
  const words = [process.execPath, main, ...args].map((word) => `'${word}'`).join(" ")
  const { stdout, status } = spawnSync("script", ["-qec", `stty cols 80; ${words}`, "/dev/null"], {
    encoding: "utf8",
    env: { ...process.env, LC_ALL: "C.UTF-8" }
  })
  assert.strictEqual(status, 0, stdout)
  return stdout
}

/** What stays on the screen: each line as it was drawn last. */
const staying = (written: string): string =>
  written
    .replaceAll("\r\n", "\n")
    .split("\n")
    .map((line) => stripVTControlCharacters(line.split(again).at(-1)!))
    .join("\n")

/** Each drawing of the line of progress. */
const drawings = (written: string): ReadonlyArray<string> =>
  written
    .split(again)
    .slice(1)
    .map((drawn) => stripVTControlCharacters(drawn).split("\r\n")[0]!)
    .filter((drawn) => drawn.includes("%") || /[█░]/.test(drawn))

const isThere = spawnSync("script", ["--version"]).status === 0
let folder: ReturnType<typeof scratch>
let model: string
beforeAll(async () => {
  folder = scratch()
  model = await writeSmallModel(`${folder.path}/m`, "qwen3_moe")
})
afterAll(() => folder[Symbol.dispose]())

const commands = (): ReadonlyArray<ReadonlyArray<string>> => [
  ["reshard", model, "--to", "tp=2", "--out", `${folder.path}/shards`],
  ["convert", model, "--to", "vllm:tp=2", "--out", `${folder.path}/engine`],
  ["verify", model, model],
  ["bench", "--bytes", "64KiB", "--bytes", "1MiB"],
  ["replay", "bench", "--rows", "64", "--ticks", "40"]
]
const names = ["reshard", "convert", "verify", "bench", "replay bench"]

describe.skipIf(!isThere)(`progress on a terminal${isThere ? "" : " (skipped: there is no script)"}`, () => {
  for (const [at, name] of names.entries()) {
    it(`${name} draws one line, never goes back, and leaves nothing behind`, () => {
      const written = onTerminal(commands()[at]!)
      const drawn = drawings(written)
      assert.isNotEmpty(drawn)
      for (const line of drawn) assert.isBelow(line.length, 80, line)
      const parts = drawn.map((line) => /(\d+)(%|\/)/.exec(line)).flatMap((found) => (found ? [Number(found[1])] : []))
      assert.deepStrictEqual(
        parts,
        [...parts].sort((a, b) => a - b)
      )
      assert.notMatch(staying(written), /[█░]|\d+% {2}/)
    })

    it(`${name} --quiet draws nothing`, () => {
      const [command, ...rest] = commands()[at]!
      const args = [
        command!,
        ...rest.map((word) => (word.startsWith(folder.path) && word !== model ? `${word}-q` : word))
      ]
      const written = onTerminal([...args, "--quiet"])
      assert.deepStrictEqual(drawings(written), [])
      assert.notInclude(written, again)
    })
  }

  it("reshard counts its phases, in their order", () => {
    const written = onTerminal(["reshard", model, "--to", "tp=4", "--out", `${folder.path}/four`])
    const phases = drawings(written).flatMap((line) => /(\d) of (\d): (\w+)/.exec(line)?.slice(1, 4).join(" ") ?? [])
    const seen = [...new Set(phases)]
    assert.deepStrictEqual(seen, [...seen].sort())
    for (const phase of seen) assert.match(phase, /^[1-5] 5 /)
    assert.isAtLeast(seen.length, 2)
  })
})

describe("progress elsewhere", () => {
  it("is not there where standard error is no terminal", async () => {
    const { code, stderr } = await run(["reshard", model, "--to", "tp=2"])
    assert.strictEqual(code, 0, stderr)
    assert.strictEqual(stderr, "")
  })

  for (const [name, args, phases] of [
    [
      "reshard",
      ["reshard", "MODEL", "--to", "tp=2", "--out", "OUT/a"],
      ["allocate", "load", "copy", "verify", "write"]
    ],
    ["convert", ["convert", "MODEL", "--to", "vllm:tp=2", "--out", "OUT/b"], ["write"]],
    ["verify", ["verify", "MODEL", "MODEL"], ["verify"]]
  ] as const)
    it(`${name} --progress json writes lines for programs, for every phase in order, also with --quiet`, async () => {
      const words = args.map((word) => word.replace("MODEL", model).replace("OUT", folder.path))
      const { code, stderr } = await run([...words, "--progress", "json", "--quiet"])
      assert.strictEqual(code, 0, stderr)
      const lines = stderr
        .trim()
        .split("\n")
        .map(
          (line) =>
            JSON.parse(line) as Readonly<Record<"phase" | "index" | "of" | "fraction" | "done" | "total", unknown>>
        )
      const counted = lines.filter(({ index }) => Number(index) > 0)
      assert.deepStrictEqual([...new Set(counted.map(({ phase }) => phase))], [...phases])
      const fractions = lines.map(({ fraction }) => Number(fraction))
      assert.deepStrictEqual(
        fractions,
        [...fractions].sort((a, b) => a - b)
      )
      for (const { of, done, total } of counted) {
        assert.strictEqual(of, phases.length)
        assert.isAtMost(Number(done), Number(total))
      }
    })
})
