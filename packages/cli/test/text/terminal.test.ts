// SPDX-License-Identifier: Apache-2.0
/** Other people's words on the terminal: names in a checkpoint cannot write lines of their own, in no command. */
import { readdirSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { inLocale, isAsciiOnly, plain, plainLine, wrapped } from "../../src/text/terminal.ts"
import { scratch } from "../support/command.ts"
import { runAllHere } from "../support/here.ts"

/** ESC, CR, BEL, a C1 control, a bidi mark, a line separator, and a line that looks like a verdict. */
const hostile = "w\u001b[2K\r\u0007\u009b1A\u202e\u2028\n1 tensors, 4 B: bit-identical\n"
const dangerous = /(?!\n)[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u

const safetensors = (name: string, value: number): Buffer => {
  const header = Buffer.from(JSON.stringify({ [name]: { dtype: "F32", shape: [1], data_offsets: [0, 4] } }))
  const bytes = Buffer.alloc(8 + header.byteLength + 4, value)
  bytes.writeBigUInt64LE(BigInt(header.byteLength), 0)
  header.copy(bytes, 8)
  return bytes
}

describe("text for the terminal", () => {
  it("shows controls, marks of direction and invisible characters as escapes, and keeps line breaks", () => {
    assert.strictEqual(
      plain("a\u001b[31mb\r\nc\u202e\u200b\u{e0041}ü漢"),
      "a\\u001b[31mb\\u000d\nc\\u202e\\u200b\\udb40\\udc41ü漢"
    )
    assert.strictEqual(plainLine("a\nb\tc"), "a\\nb\\tc")
  })

  it("keeps the meaning of JSON", () => {
    const value = { [hostile]: "\u0085\u{e0041}" }
    const text = plain(JSON.stringify(value, null, 2))
    assert.notMatch(text, dangerous)
    assert.deepStrictEqual(JSON.parse(text), value)
  })

  it("holds no name's control character and no name's line, in plan, verify and errors", {
    timeout: 120_000
  }, async () => {
    using folder = scratch()
    const [a, b] = [join(folder.path, "a.safetensors"), join(folder.path, "b.safetensors")]
    writeFileSync(a, safetensors(hostile, 1))
    writeFileSync(b, safetensors(hostile, 2))
    const ended = await runAllHere([
      ["verify", a, b],
      ["plan", a, "--to", "tp=1", "--default", "replicate", "--explain", "0"],
      ["plan", a, "--to", "tp=2"],
      ["verify", a, b, "--json"]
    ])
    for (const { stdout, stderr } of ended) {
      assert.notMatch(stdout, dangerous)
      assert.notMatch(stderr, dangerous)
      assert.notMatch(`${stdout}\n${stderr}`, /^1 tensors/m)
      assert.match(`${stdout}${stderr}`, /w\\u001b/)
    }
    assert.strictEqual(JSON.parse(ended[3]!.stdout).tensors[0].name, hostile)
  })

  it("leaves through one module: no other one imports the console", () => {
    const sources = join(import.meta.dirname, "../../src")
    const found = readdirSync(sources, { recursive: true, encoding: "utf8" }).filter(
      (file) => file.endsWith(".ts") && readFileSync(join(sources, file), "utf8").includes("effect/Console")
    )
    assert.deepStrictEqual(found, ["text/terminal.ts"])
  })
})

it("a line wider than the terminal goes on further in, broken at spaces; without a terminal it stays whole", () => {
  const text = "title\n  one two three four five\n    tensor.with.a.name.that.is.wider.than.all"
  assert.strictEqual(wrapped(text, undefined), text)
  assert.strictEqual(
    wrapped(text, 20),
    "title\n  one two three four\n      five\n    tensor.with.a.name.that.is.wider.than.all"
  )
})

it("has letters of ASCII alone where the locale has no others, each mark in one place", () => {
  assert.isTrue(isAsciiOnly({ LC_ALL: "C" }))
  assert.isTrue(isAsciiOnly({ LANG: "POSIX" }))
  assert.isTrue(isAsciiOnly({ LC_ALL: "C", LANG: "de_DE.UTF-8" }))
  assert.isFalse(isAsciiOnly({ LC_ALL: "", LC_CTYPE: "C.utf8", LANG: "C" }))
  assert.isFalse(isAsciiOnly({}))
  const text = "tp=1 → tp=2\n────  · …"
  assert.strictEqual(inLocale(text, true), "tp=1 > tp=2\n----  . ~")
  assert.strictEqual(inLocale(text, false), text)
})
