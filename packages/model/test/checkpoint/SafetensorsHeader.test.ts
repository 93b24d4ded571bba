// SPDX-License-Identifier: Apache-2.0
/** The header parser refuses everything that does not describe its file completely, and never does more than that. */
import { readFileSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { CheckpointError } from "../../src/checkpoint/CheckpointError.ts"
import { encodeHeader, parseHeader, parseHeaderLength } from "../../src/checkpoint/SafetensorsHeader.ts"
import { parseJson } from "../../src/checkpoint/StrictJson.ts"
import { expectReason, image } from "./checkpointSupport.ts"

const parse = (bytes: Uint8Array) => parseHeader(bytes, bytes.length, "sample.safetensors")

const refused = (bytes: Uint8Array, tag: CheckpointError["reason"]["_tag"], parameter?: string): CheckpointError => {
  const parsed = parse(bytes)
  if (Result.isSuccess(parsed)) return assert.fail("the header was accepted")
  expectReason(parsed.failure, tag, parameter)
  assert.strictEqual(parsed.failure.reason.file, "sample.safetensors")
  return parsed.failure
}

const accepted = (bytes: Uint8Array) => {
  const parsed = parse(bytes)
  return Result.isSuccess(parsed) ? parsed.success : assert.fail(parsed.failure.message)
}

const entry = (fields: { dtype?: string; shape?: string; offsets?: string }): string =>
  `{"dtype":"${fields.dtype ?? "U8"}","shape":${fields.shape ?? "[1]"},"data_offsets":${fields.offsets ?? "[0,1]"}}`

describe("length field", () => {
  it("refuses lengths near 2^64 and everything beyond the file or the format's limit", () => {
    refused(Uint8Array.of(0xfb, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7b, 0x7d), "InvalidHeader")
    refused(image("{}", 0, 2n ** 53n), "InvalidHeader")
    refused(image("{}", 0, 2n ** 63n), "InvalidHeader")
    refused(image("{}", 0, 100_000_001n), "InvalidHeader")
    refused(image("{}", 0, 100_000_000n), "Truncated")
    refused(image("{}", 0, 3n), "Truncated")
    refused(image("", 0, 1n), "Truncated")
  })

  it("refuses an empty header", () => {
    refused(image("", 0, 0n), "InvalidHeader")
  })

  it("refuses files shorter than the field", () => {
    for (let size = 0; size < 8; size++) refused(new Uint8Array(size), "Truncated")
  })

  it("refuses a prefix that is shorter than the header it announces", () => {
    const parsed = parseHeader(image("{}").subarray(0, 9), 10)
    assert.isTrue(Result.isFailure(parsed))
  })

  it("accepts a header as long as the file", () => {
    assert.deepStrictEqual(parseHeaderLength(image("{}"), 10, "a"), Result.succeed(2))
    assert.strictEqual(accepted(image("{}")).tensors.size, 0)
  })
})

describe("ranges", () => {
  it("refuses a range smaller than the shape", () => {
    const header = '{"t":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}}'
    assert.strictEqual(header.length, 0x3e)
    assert.include(refused(image(header, 4), "TensorInvalid", "t").message, "4000000")
  })

  it.each([
    ["[1,0]", "[1]", 1],
    ["[0,2]", "[1]", 2],
    ["[1,2]", "[1]", 2],
    ["[0,4]", "[4294967296,4294967296]", 4],
    ["[0,0]", "[1]", 0],
    ["[0,1]", "[0]", 1],
    ["[0,9007199254740992]", "[1]", 1]
  ])("refuses data_offsets %s for shape %s", (offsets, shape, size) => {
    refused(image(`{"t":${entry({ shape, offsets })}}`, size), "TensorInvalid", "t")
  })

  it("refuses overlap and gap, naming the later tensor", () => {
    const a = entry({ shape: "[4]", offsets: "[0,4]" })
    refused(image(`{"a":${a},"b":${entry({ shape: "[4]", offsets: "[2,6]" })}}`, 6), "TensorInvalid", "b")
    refused(image(`{"a":${a},"b":${a}}`, 4), "TensorInvalid", "b")
    refused(image(`{"a":${a},"b":${entry({ shape: "[4]", offsets: "[5,9]" })}}`, 9), "TensorInvalid", "b")
    refused(image(`{"a":${a},"b":${entry({ shape: "[0]", offsets: "[2,2]" })}}`, 4), "TensorInvalid", "b")
  })

  it("refuses trailing bytes and files that end early", () => {
    const header = `{"a":${entry({ shape: "[4]", offsets: "[0,4]" })}}`
    refused(image(header, 5), "InvalidHeader")
    refused(image(header, 3), "Truncated")
    assert.strictEqual(accepted(image(header, 4)).tensors.get("a")?.byteOffset, 8 + header.length)
  })

  it("accepts tensors in any order of the header and gives them in the order of their data", () => {
    const header = `{"b":${entry({ shape: "[3]", offsets: "[2,5]" })},"a":${entry({ shape: "[2]", offsets: "[0,2]" })}}`
    assert.deepStrictEqual([...accepted(image(header, 5)).tensors.keys()], ["a", "b"])
  })

  it("accepts sizes around 2^32 exactly and refuses what exceeds 2^53 bits", () => {
    for (const size of [2 ** 32 - 1, 2 ** 32, 2 ** 32 + 1, 2 ** 50 - 1]) {
      const bytes = image(`{"a":${entry({ shape: `[${size}]`, offsets: `[0,${size}]` })}}`)
      const parsed = parseHeader(bytes, bytes.length + size)
      if (Result.isFailure(parsed)) return assert.fail(parsed.failure.message)
      assert.strictEqual(parsed.success.tensors.get("a")?.byteLength, size)
    }
    const size = 2 ** 51
    refused(image(`{"a":${entry({ shape: `[${size}]`, offsets: `[0,${size}]` })}}`), "TensorInvalid", "a")
  })

  it("accepts an empty tensor at any seam", () => {
    const header =
      '{"z":{"dtype":"F8_E4M3","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    assert.strictEqual(header.length, 0x6e)
    assert.deepStrictEqual([...accepted(image(header, 1)).tensors.keys()], ["z", "b"])
    refused(image(header.replace("[0],", "[1],"), 1), "TensorInvalid", "z")
    const seams = `{"a":${entry({})},"m":${entry({ shape: "[1,0,2]", offsets: "[1,1]" })},"b":${entry({ offsets: "[1,2]" })},"e":${entry({ shape: "[0]", offsets: "[2,2]" })}}`
    assert.deepStrictEqual([...accepted(image(seams, 2)).tensors.keys()], ["a", "m", "b", "e"])
  })

  it("counts sub-byte elements in bits and refuses totals that end inside a byte", () => {
    const six = (shape: string, bytes: number, dtype = "F6_E2M3") =>
      image(`{"a":${entry({ dtype, shape, offsets: `[0,${bytes}]` })}}`, bytes)
    assert.strictEqual(accepted(six("[4]", 3)).tensors.get("a")?.byteLength, 3)
    assert.strictEqual(accepted(six("[2,3]", 3, "F4")).tensors.get("a")?.byteLength, 3)
    refused(six("[3]", 3), "TensorInvalid", "a")
    refused(six("[3]", 2, "F4"), "TensorInvalid", "a")
  })
})

describe("form", () => {
  it.each(["[]", '"x"', " {}", "\n{}", "\ufeff{}", "nul"])("refuses the header %j", (header) => {
    refused(image(header, 1), "InvalidHeader")
  })

  it.each([
    '{"a":[]}',
    '{"a":null}',
    '{"a":{}}',
    '{"a":{"dtype":"U8","shape":[1]}}',
    '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"extra":0}}',
    '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"dtype":"U8"}}',
    `{"a":${entry({ offsets: "[1,0]" })}}`,
    `{"a":${entry({ offsets: "[-1,0]" })}}`,
    `{"a":${entry({ offsets: "[0]" })}}`,
    `{"a":${entry({ offsets: "[0,1,2]" })}}`,
    `{"a":${entry({ offsets: "[0.5,1]" })}}`,
    `{"a":${entry({ offsets: "[0,1.0]" })}}`,
    `{"a":${entry({ offsets: "[0,1e0]" })}}`,
    `{"a":${entry({ offsets: '["0","1"]' })}}`,
    `{"a":${entry({ offsets: "[0,01]" })}}`,
    `{"a":${entry({ shape: "[-1]" })}}`,
    `{"a":${entry({ shape: "1" })}}`,
    `{"a":${entry({ dtype: "F99" })}}`,
    `{"a":${entry({ dtype: "u8" })}}`,
    '{"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}}',
    `{"a":${entry({})},"a":${entry({})}}`,
    `{"a":${entry({})},"\\u0061":${entry({})}}`,
    `{"a":${entry({}).slice(0, -1)},}}`,
    '{"a":tru',
    '{"a"',
    '{"a":"x'
  ])("refuses %s, naming the tensor", (header) => {
    refused(image(header, 1), "TensorInvalid", "a")
  })

  it("refuses NUL padding, naming the byte, and accepts spaces", () => {
    const exact = '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    assert.strictEqual(exact.length, 53)
    const padded = (byte: string) => image(exact.padEnd(56, byte), 1)
    assert.include(refused(padded("\0"), "InvalidHeader").message, "0x00")
    assert.include(refused(padded("\n"), "InvalidHeader").message, "0x0a")
    assert.include(refused(padded("}"), "InvalidHeader").message, "0x7d")
    assert.strictEqual(accepted(padded(" ")).dataOffset, 64)
  })

  it("refuses bytes that are not UTF-8", () => {
    refused(image(Uint8Array.of(0x7b, 0x22, 0xff, 0x22, 0x7d)), "InvalidHeader")
  })

  it("takes metadata of strings only", () => {
    assert.deepStrictEqual(
      [...accepted(image('{"__metadata__":{"a":"b","":"é"}}')).metadata],
      [
        ["a", "b"],
        ["", "é"]
      ]
    )
    for (const metadata of ["[]", "null", '"x"', '{"a":1}', '{"a":null}', '{"a":"b","a":"c"}']) {
      refused(image(`{"__metadata__":${metadata}}`), "InvalidHeader")
    }
  })

  it("treats names of JavaScript's objects like any other", () => {
    const header = `{"__proto__":${entry({})},"constructor":${entry({ offsets: "[1,2]" })}}`
    assert.deepStrictEqual([...accepted(image(header, 2)).tensors.keys()], ["__proto__", "constructor"])
  })
})

describe("hostile bytes", () => {
  const sample = readFileSync(new URL("../data/safetensors/overall.safetensors", import.meta.url))
  const position = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: sample.length - 1 }))
  const byte = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 255 }))

  it.prop(
    "changed bytes are refused or give tensors that lie inside the file",
    [Schema.Array(Schema.Tuple([position, byte])).check(Schema.isMinLength(1), Schema.isMaxLength(4))],
    ([changes]) => {
      const bytes = Uint8Array.from(sample)
      for (const [at, value] of changes) bytes[at] = value
      const parsed = parse(bytes)
      if (Result.isFailure(parsed)) return
      let end = parsed.success.dataOffset
      for (const tensor of parsed.success.tensors.values()) {
        assert.strictEqual(tensor.byteOffset, end)
        end += tensor.byteLength
      }
      assert.strictEqual(end, bytes.length)
    },
    { arbitrary: { runs: 2000, seed: "flips" } }
  )

  it("refuses every truncation", () => {
    for (let size = 0; size < sample.length; size++)
      assert.isTrue(Result.isFailure(parse(sample.subarray(0, size))), `${size}`)
  })

  it("refuses nesting that would exhaust the stack, long numbers and lone surrogates", () => {
    for (const text of [
      "[".repeat(1_000_000),
      `{"a":`.repeat(100_000),
      "1".repeat(1_000_000),
      '"\\ud800"',
      '"\u0001"',
      '"\\',
      "-",
      "+1",
      ".5",
      "1.",
      "tru"
    ]) {
      assert.isTrue(Result.isFailure(parseJson(text)), text.slice(0, 10))
    }
  })

  it.prop(
    "the JSON parser agrees with JSON.parse on what it accepts",
    [Schema.String, Schema.Array(Schema.String)],
    ([key, values]) => {
      const text = JSON.stringify({ [key]: values })
      const parsed = parseJson(text)
      if (!text.isWellFormed() || /\\ud[89a-f]/.test(text)) return
      if (Result.isFailure(parsed)) return assert.fail(parsed.failure.detail)
      assert.strictEqual(parsed.success.end, text.length)
      assert.deepStrictEqual(parsed.success.value, new Map([[key, values]]))
    }
  )
})

describe("encoding", () => {
  it("begins the data at a multiple of 8 for names of every length, with tensors at multiples of their width", () => {
    for (let length = 1; length <= 16; length++) {
      const tensors = [
        { name: "u".repeat(length), dtype: "uint8", shape: [3] },
        { name: "f", dtype: "float32", shape: [2] }
      ] as const
      const encoded = encodeHeader(tensors, new Map(), "sample")
      if (Result.isFailure(encoded)) return assert.fail(encoded.failure.message)
      const { bytes, fileSize } = encoded.success
      assert.strictEqual(bytes.length % 8, 0)
      const parsed = parseHeader(bytes, fileSize)
      if (Result.isFailure(parsed)) return assert.fail(parsed.failure.message)
      assert.deepStrictEqual([...parsed.success.tensors.keys()], ["f", "u".repeat(length)])
      assert.strictEqual(parsed.success.tensors.get("f")!.byteOffset % 4, 0)
      assert.notInclude([...bytes.subarray(8)], 0)
    }
  })

  it.each([
    [
      [
        { name: "a", dtype: "uint8", shape: [1] },
        { name: "a", dtype: "int8", shape: [1] }
      ],
      "a"
    ],
    [[{ name: "__metadata__", dtype: "uint8", shape: [1] }], "__metadata__"],
    [[{ name: "\ud800", dtype: "uint8", shape: [1] }], "\ud800"],
    [[{ name: "a", dtype: "uint8", shape: [-1] }], "a"],
    [[{ name: "a", dtype: "uint8", shape: [0.5] }], "a"],
    [[{ name: "a", dtype: "uint8", shape: [2 ** 32, 2 ** 32] }], "a"],
    [[{ name: "a", dtype: "float4_e2m1fn", shape: [3] }], "a"]
  ] as const)("refuses %j", (tensors, name) => {
    const encoded = encodeHeader([...tensors], new Map(), "sample")
    if (Result.isSuccess(encoded)) return assert.fail("accepted")
    expectReason(encoded.failure, "TensorInvalid", name)
  })
})
