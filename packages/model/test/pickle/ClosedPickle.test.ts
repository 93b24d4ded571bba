// SPDX-License-Identifier: Apache-2.0
/** The closed reader gives data for what its rules allow, and a fault for everything else, within bounds. */
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import { type PickleRules, readClosedPickle, textEntries } from "../../src/pickle/ClosedPickle.ts"

const rules: PickleRules<string> = {
  protocols: [2, 4],
  mostBytes: 4096,
  mostValues: 100,
  nameOf: (module, name) => (module === "collections" && name === "OrderedDict" ? "OrderedDict" : undefined),
  users: "tests",
  dicts: new Set(["OrderedDict"]),
  allowsReferences: true
}

const bytes = (...parts: ReadonlyArray<string | number>): Uint8Array =>
  Buffer.concat(parts.map((part) => (typeof part === "string" ? Buffer.from(part, "latin1") : Buffer.from([part]))))

const faultOf = (input: Uint8Array, more: Partial<PickleRules<string>> = {}) => {
  const read = readClosedPickle(input, { ...rules, ...more })
  return Result.isFailure(read) ? `${read.failure.kind}: ${read.failure.detail}` : undefined
}

describe("the closed reader of pickles", () => {
  it("fills a dict that a call makes, with references, and leaves its attributes out", () => {
    // OrderedDict({"a": <reference 7>}) with an attribute, protocol 2.
    const input = bytes(
      0x80,
      2,
      "ccollections\nOrderedDict\n",
      "q\x00",
      ")R",
      "X\x01\0\0\0a",
      "K\x07Q",
      "s",
      "}X\x01\0\0\0bK\x01sb",
      "."
    )
    const read = Result.getOrThrow(readClosedPickle(input, rules))
    const entries = textEntries(read)!
    assert.deepStrictEqual(entries.get("a"), { type: "reference", id: { type: "int", value: 7 } })
    assert.strictEqual(entries.size, 1)
    assert.include(faultOf(input, { allowsReferences: false }), "Forbidden")
  })

  it("refuses names, operations and protocols that are not on the list, and calls nothing", () => {
    assert.strictEqual(
      faultOf(bytes(0x80, 2, "cos\nsystem\n", "X\x02\0\0\0ls\x85R.")),
      'Forbidden: The pickle names "os.system", which tests do not use.'
    )
    // INST calls a class by name in one operation.
    assert.include(faultOf(bytes(0x80, 2, "(ios\nsystem\n."))!, "Operation 0x69 at byte 3 is not allowed")
    assert.include(faultOf(bytes(0x80, 5, "N."))!, "protocol 2 or 4")
    assert.include(faultOf(bytes("N."))!, "not a pickle")
  })

  it("ends where a pickle ends early, nests too deep, or makes too many values", () => {
    assert.include(faultOf(bytes(0x80, 2, "X\xff\xff\xff\x7fa"))!, "ends early")
    assert.include(faultOf(bytes(0x80, 2, "(".repeat(2000), "N."))!, "nests too deep")
    assert.include(faultOf(bytes(0x80, 2, "N0".repeat(10)))!, "not allowed")
    assert.include(faultOf(bytes(0x80, 2, "(", "N".repeat(200), "t."))!, "more than 100 values")
    assert.include(faultOf(new Uint8Array(5000))!, "5000 bytes")
    assert.include(faultOf(bytes(0x80, 2, "r\xff\xff\xff\x7f."))!, "nothing to remember")
  })

  it("keeps what a pickle puts into itself as one value, without following it", () => {
    const read = Result.getOrThrow(readClosedPickle(bytes(0x80, 2, "]q\x00h\x00a."), rules))
    assert.isTrue(read.type === "list" && read.items[0] === read)
  })
})
