// SPDX-License-Identifier: Apache-2.0
/** Recorded commands and payloads of other clients: read as they were meant, written byte for byte, refused alike. */
import { readFileSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import { InitPair } from "@tensorferry/bus/command/Command"
import { decodeCommand, encodeCommand } from "@tensorferry/bus/command/CommandCodec"
import { readPickle } from "@tensorferry/bus/payload/Pickle"
import { decodeTensorPayload, encodeSharedTensor } from "@tensorferry/bus/payload/TensorCodec"
import * as Result from "effect/Result"
import { checkCommands, checkPayloads, type RecordedCommands, type RecordedPayloads } from "../src/busMessages.ts"
import { goldenPath, readGolden } from "../src/readGolden.ts"

const commands = readGolden("wire_commands") as RecordedCommands
const payloads = JSON.parse(readFileSync(goldenPath("bus_payloads/payloads.json"), "utf8")) as RecordedPayloads

const faultsOf = (verdicts: ReadonlyArray<{ readonly name: string; readonly fault: string | undefined }>) =>
  verdicts.flatMap(({ name, fault }) => (fault === undefined ? [] : [`${name} ${fault}`]))

describe("commands", () => {
  it("recorded ones", () => {
    const verdicts = checkCommands(commands)
    assert.strictEqual(verdicts.length, 171)
    assert.deepStrictEqual(faultsOf(verdicts), [])
  })

  it("the check finds what differs", () => {
    const [first, ...rest] = commands.encode
    const changed = {
      ...first!,
      command: { ...first!.command, fields: { ...first!.command.fields, batch_id: "other" } }
    }
    const bytes = { ...rest[0]!, encoded_hex: `${rest[0]!.encoded_hex}c0` }
    const faults = faultsOf(checkCommands({ encode: [changed, bytes], decode: [] }))
    assert.match(faults[0]!, /another batch_id/)
    assert.match(faults[1]!, /1 bytes follow/)
  })

  it("made here", () => {
    const command = new InitPair({ pairName: "p", localName: "a", expectedWorldSize: 2, remoteName: "b" })
    const decoded = Result.getOrThrow(decodeCommand(encodeCommand(command)))
    assert.instanceOf(decoded, InitPair)
    assert.deepStrictEqual(decoded, command)
  })

  it("every shortening of every recorded command is refused", () => {
    for (const { encoded_hex } of commands.encode.filter((_, at) => at % 7 === 0)) {
      const bytes = Buffer.from(encoded_hex, "hex")
      for (let length = 0; length < Math.min(bytes.length, 300); length++) {
        assert.isTrue(Result.isFailure(decodeCommand(bytes.subarray(0, length))))
      }
    }
  })
})

describe("payloads", () => {
  it("recorded ones, hostile ones among them", () => {
    const verdicts = checkPayloads(payloads)
    assert.isAbove(verdicts.length, 40)
    assert.deepStrictEqual(faultsOf(verdicts), [])
  })

  it("handles of another version, expandable memory, foreign names", () => {
    const bytes = Buffer.from(payloads.tensors.find(({ name }) => name === "cuda f32 contiguous")!.pickle, "hex")
    const at = bytes.indexOf(Buffer.from("4342", "hex"), 170)
    const reasonFor = (change: (copy: Buffer) => void) => {
      const copy = Buffer.from(bytes)
      change(copy)
      const read = decodeTensorPayload(copy)
      return Result.isFailure(read) ? read.failure.reason._tag : "read"
    }
    assert.strictEqual(bytes[at + 2], 2)
    // PyTorch 2.13 writes 3, of the same form.
    assert.strictEqual(
      reasonFor((copy) => copy.writeUInt8(3, at + 2)),
      "read"
    )
    for (const version of [0, 1, 4, 255]) {
      assert.strictEqual(
        reasonFor((copy) => copy.writeUInt8(version, at + 2)),
        "UnknownVersion"
      )
    }
    assert.strictEqual(
      reasonFor((copy) => copy.writeUInt8("e".charCodeAt(0), at + 3)),
      "Unsupported"
    )
    assert.strictEqual(
      reasonFor((copy) => copy.write("/etc_", copy.indexOf("/torch_"))),
      "Forbidden"
    )
  })

  it("our own payloads: another version, fields in another place, fields that are unknown", () => {
    const memory = {
      version: 1,
      pid: 7,
      processStart: "123",
      descriptor: 3,
      inode: "99",
      byteOffset: 64,
      byteLength: 24,
      generation: 5
    } as const
    const tensor = { dtype: "float32", shape: [2, 3], strides: [3, 1], byteOffset: 0, memory } as const
    const tagOf = (bytes: Uint8Array) => {
      const read = decodeTensorPayload(bytes)
      return Result.isFailure(read) ? read.failure.reason._tag : read.success.payload._tag
    }
    const bytes = encodeSharedTensor(tensor)
    assert.strictEqual(tagOf(bytes), "SharedTensor")
    for (const version of [0, 2, 255]) {
      const other = bytes.slice()
      other[4] = version
      assert.strictEqual(tagOf(other), "UnknownVersion")
    }
    const swapped = { ...tensor, memory: { ...memory, inode: 99, descriptor: "3" } }
    assert.strictEqual(tagOf(encodeSharedTensor(swapped as never)), "Malformed")
    assert.strictEqual(tagOf(encodeSharedTensor({ ...tensor, shape: "float32", dtype: [2, 3] } as never)), "Malformed")
    assert.strictEqual(tagOf(encodeSharedTensor({ ...tensor, device: 1 } as never)), "Malformed")
    for (let length = 0; length < bytes.length; length++) {
      assert.notStrictEqual(tagOf(bytes.subarray(0, length)), "SharedTensor")
    }
  })

  it("tensors shared by descriptor are refused with what to do", () => {
    const host = payloads.tensors[0]!.pickle
    const changed = host.replace(
      `8c18${Buffer.from("rebuild_storage_filename").toString("hex")}`,
      `8c12${Buffer.from("rebuild_storage_fd").toString("hex")}`
    )
    // The frame is six bytes shorter.
    const bytes = Buffer.from(changed, "hex")
    bytes.writeBigUInt64LE(bytes.readBigUInt64LE(3) - 6n, 3)
    const read = decodeTensorPayload(bytes)
    assert.isTrue(Result.isFailure(read) && /set_sharing_strategy/.test(read.failure.message))
  })

  it("values that contain each other many times over stay small", () => {
    // A tuple of two of the one before, 60 times: 2^60 leaves for whoever walks it.
    const body = [0x80, 4, 0x29, 0x94]
    for (let at = 0; at < 60; at++) body.push(0x68, at, 0x68, at, 0x86, 0x94)
    body.push(0x68, 60, 0x2e)
    const bytes = Uint8Array.from(body)
    assert.isTrue(Result.isFailure(readPickle(bytes)))
    const alone = Uint8Array.from(body.filter((_, at) => at !== 2 && at !== 3).slice(0, -3))
    assert.isTrue(Result.isFailure(decodeTensorPayload(alone)))
  })
})
