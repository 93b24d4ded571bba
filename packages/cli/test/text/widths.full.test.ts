// SPDX-License-Identifier: Apache-2.0
/** What commands print on terminals of several widths. */
import { spawnSync } from "node:child_process"
import { fileURLToPath } from "node:url"
import { stripVTControlCharacters } from "node:util"
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { scratch } from "../support/command.ts"
import { writeSmallModel } from "../support/smallModels.ts"

const main = fileURLToPath(new URL("../../src/main.ts", import.meta.url))

/** Lines that the command prints on a terminal so wide, both of its outputs together. */
const linesAt = (columns: number, args: string, code = 0): ReadonlyArray<string> => {
  const command = `stty cols ${columns}; '${process.execPath}' '${main}' ${args}`
  const { stdout, status } = spawnSync("script", ["-qec", command, "/dev/null"], { encoding: "utf8" })
  assert.strictEqual(status, code, stdout)
  const clear = "\r\u001b[2K"
  return stdout
    .replaceAll("\r\n", "\n")
    .split("\n")
    .map((line) => stripVTControlCharacters(line.split(clear).at(-1)!))
}

const isThere = spawnSync("script", ["--version"]).status === 0
let folder: ReturnType<typeof scratch>
let model: string
beforeAll(async () => {
  folder = scratch()
  model = await writeSmallModel(`${folder.path}/m`, "qwen3_moe")
})
afterAll(() => folder[Symbol.dispose]())

describe.skipIf(!isThere)("on a terminal", () => {
  for (const columns of [60, 80, 200]) {
    for (const args of [
      "doctor",
      "backends",
      "backends options torch-copy",
      "--help",
      "reshard --help",
      "plan --help",
      "agent --help",
      "backends conformance --help"
    ])
      it(`${columns} columns wide: ${args}`, () => {
        for (const line of linesAt(columns, args)) assert.isAtMost(line.length, columns, line)
      })
    for (const args of ["plan MODEL --to tp=4", "describe MODEL", "reshard MODEL --to tp=2"])
      it(`${columns} columns wide: ${args}`, () => {
        for (const line of linesAt(columns, args.replace("MODEL", model))) {
          // A path is one word, and stays whole.
          if (!line.includes(folder.path)) assert.isAtMost(line.length, columns, line)
        }
      })
    for (const args of ["reshard model --to tq=2", "reshard no-such-model --to tp=2 --backend none", "plann"])
      it(`${columns} columns wide, the error of ${args}`, () => {
        const lines = linesAt(columns, args, args.includes("none") ? 1 : 2)
        for (const line of lines) if (!line.includes(process.cwd())) assert.isAtMost(line.length, columns, line)
      })
  }
})
