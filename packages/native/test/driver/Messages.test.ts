// SPDX-License-Identifier: Apache-2.0
/** Messages as drivers check, list and pair them. */
import { assert, describe, it } from "@effect/vitest"
import type { Message } from "@tensorferry/core/ir/Message"
import * as Result from "effect/Result"
import { driverErrors } from "../../src/driver/DriverErrors.ts"
import { flowsOf } from "../../src/driver/Flows.ts"
import { checkMessages } from "../../src/driver/MessageChecks.ts"
import type { PeerList } from "../../src/driver/PeerList.ts"
import { listByPeer } from "../../src/driver/PeerListing.ts"
import { mergePaths, onePath } from "../../src/driver/PeerPaths.ts"
import { bytesAt, messageOf, storageOf } from "./support.ts"

const errors = driverErrors("some", 0)
const refusalOf = (message: Message, partFault: () => string | undefined = () => undefined) => {
  const checked = checkMessages([message], { errors, worldSize: 3, partFault })
  return Result.isFailure(checked) ? checked.failure.reason : undefined
}

/** What peer 1 would list of messages that mirror these. */
const listsOf = (messages: ReadonlyArray<Message>) =>
  listByPeer(messages, () => ({
    describe: ({ byteLength }) => ({ address: 0, byteLength, ordinal: 0, block: 0 }),
    finish: (listed): PeerList => ({ blocks: [], ...listed })
  }))

describe("checkMessages", () => {
  it("takes messages for other ranks of memory that is there", () => {
    assert.isUndefined(refusalOf(messageOf(2, "send", 0, bytesAt(storageOf(4), 0, 4))))
  })

  it("refuses ranks outside the group and this rank itself", () => {
    for (const peer of [-1, 0, 3, 0.5]) {
      const detail = refusalOf(messageOf(peer, "send", 0))?.detail
      assert.strictEqual(detail, `Rank ${peer} is not another rank of a group of 3.`)
    }
  })

  it("refuses freed memory before it asks the driver, and names the task", () => {
    const storage = storageOf(4)
    const message = messageOf(1, "recv", 3, bytesAt(storage, 0, 4))
    assert.deepInclude(
      refusalOf(message, () => "Not mine."),
      { detail: "Not mine.", taskId: 30 }
    )
    storage.free()
    const refusal = refusalOf(message, () => "Not mine.")
    assert.deepInclude(refusal, { detail: "The storage of a part was freed.", taskId: 30, peer: 1, scope: "op" })
  })
})

describe("listByPeer", () => {
  it("lists every storage once per peer, and each part where it begins", () => {
    const [a, b] = [storageOf(16), storageOf(32)]
    const lists = listsOf([
      messageOf(1, "send", 0, bytesAt(b, 8, 4), bytesAt(a, 0, 4)),
      messageOf(2, "recv", 0, bytesAt(a, 4, 4)),
      messageOf(1, "recv", 1, bytesAt(b, 0, 8))
    ])
    const memoriesOf = (peer: number) => lists.get(peer)?.memories.map(({ byteLength }) => byteLength)
    const partsOf = (peer: number) =>
      lists.get(peer)?.messages.map(({ parts }) => parts.map(({ memory, byteOffset }) => [memory, byteOffset]))
    assert.deepStrictEqual([...lists.keys()], [1, 2])
    assert.deepStrictEqual(memoriesOf(1), [32, 16])
    assert.deepStrictEqual(memoriesOf(2), [16])
    assert.deepStrictEqual(partsOf(1), [
      [
        [0, 8],
        [1, 0]
      ],
      [[0, 0]]
    ])
  })
})

describe("flowsOf", () => {
  const devices = { here: 0, there: () => 0 }
  const tensor = bytesAt(storageOf(8), 0, 8)
  /** The peer's list for rank 0, of messages as the peer has them. */
  const theirs = (messages: ReadonlyArray<Message>) => new Map([[1, listsOf(messages).get(0)!]])

  it("pairs every part with the peer's, in the order that both know", () => {
    const mine = [messageOf(1, "send", 4, tensor), messageOf(1, "send", 2, tensor), messageOf(1, "recv", 1, tensor)]
    const mirrored = [messageOf(0, "recv", 2, tensor), messageOf(0, "send", 1, tensor), messageOf(0, "recv", 4, tensor)]
    const flows = Result.getOrThrow(flowsOf(errors, mine, theirs(mirrored), devices))
    assert.deepStrictEqual(
      flows.map(({ peer, isReceiving, pairs, byteLength }) => [
        peer,
        isReceiving,
        pairs.map((pair) => pair.taskId),
        byteLength
      ]),
      [
        [1, false, [20, 40], 16],
        [1, true, [10], 8]
      ]
    )
  })

  it("says where both ends differ", () => {
    const short = bytesAt(storageOf(8), 0, 7)
    for (const [other, detail] of [
      [[], "The peer has no message 2."],
      [[messageOf(0, "recv", 2, tensor, tensor)], "Message 2 has 1 parts here and 2 there."],
      [[messageOf(0, "recv", 2, short)], "Task 20 part 0 uint8[8] meets task 20 part 0 uint8[7]."],
      [[messageOf(0, "recv", 2, tensor), messageOf(0, "recv", 5, tensor)], "Only the peer has message 5."]
    ] as const) {
      // Message 9, which both have, makes a list also where the peer has nothing else.
      const mine = [messageOf(1, "send", 2, tensor), messageOf(1, "recv", 9)]
      const flows = flowsOf(errors, mine, theirs([...other, messageOf(0, "send", 9)]), devices)
      assert.strictEqual(Result.isFailure(flows) ? flows.failure.reason.detail : "", detail)
    }
  })
})

describe("paths", () => {
  it("of one driver with one path name every peer once", () => {
    const messages = [messageOf(2, "send", 0), messageOf(1, "recv", 0), messageOf(2, "recv", 1)]
    assert.deepStrictEqual(onePath(messages, "file", "a folder"), [
      { peer: 2, path: "file", reason: "a folder" },
      { peer: 1, path: "file", reason: "a folder" }
    ])
  })

  it("that differ by direction are one entry for the peer", () => {
    const merged = mergePaths([
      { peer: 2, path: "map", reason: "near" },
      { peer: 1, path: "map", reason: "near" },
      { peer: 2, path: "tcp", reason: "far" },
      { peer: 1, path: "map", reason: "again" }
    ])
    assert.deepStrictEqual(merged, [
      { peer: 1, path: "map", reason: "near" },
      { peer: 2, path: "map+tcp", reason: "near; far" }
    ])
  })
})
