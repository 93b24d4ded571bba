// SPDX-License-Identifier: Apache-2.0
/** Who is sent changes, and whose changes are taken: only where both ends know of the same version, by the same way. */
import { assert, describe, it } from "@effect/vitest"
import type { TransferOp } from "@tensorferry/core/ir/TransferOp"
import * as Result from "effect/Result"
import {
  baseFault,
  follow,
  needRows,
  needWords,
  readNeeds,
  readRows,
  versionFault
} from "../../src/delta/ChangeFence.ts"
import { rowWords } from "../../src/delta/ChangeMoves.ts"
import { decodeStatement, encodeStatement, type Statement } from "../../src/delta/ChangePosts.ts"

const op = (peerRank: number, taskId: number, isSend = true): TransferOp => ({
  paramName: `w${taskId}`,
  peerRank,
  isSend,
  mySlice: [[0, 4]],
  peerSlice: [[0, 4]],
  taskId,
  wireDtype: "float32"
})

const stated = (
  head: { readonly version?: string; readonly holds: string | null; readonly proof: string | null },
  words: number,
  rows: ReadonlyArray<number> = []
): Statement => decodeStatement(encodeStatement({ version: "b", words, ...head }, rows))!

describe("what receivers need", () => {
  it("is their changes only where version and proof are those of the copies", () => {
    const proofs = new Map([
      [1, "p1"],
      [2, "p2"],
      [4, "p4"]
    ])
    const heard = new Map([
      [1, stated({ holds: "a", proof: "p1" }, needWords)],
      [2, stated({ holds: "a", proof: "other" }, needWords)],
      [3, stated({ holds: "a", proof: null }, needWords)],
      [4, stated({ holds: "z", proof: "p4" }, needWords)],
      [5, stated({ holds: null, proof: null }, needWords)],
      [6, stated({ holds: "a", proof: "p6" }, needWords)]
    ])
    const { known, needOf } = readNeeds(heard, "a", proofs)
    assert.deepStrictEqual([...known], [1, 3])
    assert.deepStrictEqual(
      [1, 2, 3, 4, 5, 6].map((peer) => needOf(op(peer, 0), 0)),
      ["changes", "whole", "changes", "whole", "whole", "whole"]
    )
    assert.deepStrictEqual([...readNeeds(heard, undefined, proofs).known], [])
  })

  it("is stated by region and part", () => {
    const into = { into: undefined!, wire: "float32" } as const
    const arrivals = new Map([
      [op(0, 7, false), { parts: [{ ...into, need: "changes" as const }], finalize: undefined }],
      [
        op(0, 8, false),
        {
          parts: [
            { ...into, need: "changes" as const },
            { ...into, need: "always" as const }
          ],
          finalize: undefined
        }
      ],
      [op(1, 9, false), { parts: [{ ...into, need: "wholeIfChanged" as const }], finalize: undefined }]
    ])
    const rows = needRows(arrivals, new Set(["w8"]))
    const heard = new Map([[3, stated({ holds: "a", proof: null }, needWords, rows.get(0)!)]])
    const { needOf } = readNeeds(heard, "a", new Map())
    assert.strictEqual(needOf(op(3, 7), 0), "changes")
    assert.deepStrictEqual(
      [0, 1].map((part) => needOf(op(3, 8), part)),
      ["whole", "always"]
    )
    const other = new Map([[3, stated({ holds: "a", proof: null }, needWords, rows.get(1)!)]])
    assert.strictEqual(readNeeds(other, "a", new Map()).needOf(op(3, 9), 0), "wholeIfChanged")
  })
})

describe("what senders state", () => {
  it("is refused where it is of another version, another base or another history", () => {
    const taken = (holds: string | null, proof: string, own: string | null, known: string | undefined) =>
      baseFault(0, new Map([[1, stated({ holds, proof }, rowWords)]]), own, new Map(known ? [[1, known]] : []))
    assert.isUndefined(taken("a", "p", "a", "p"))
    assert.isUndefined(taken("a", "p", "a", undefined))
    assert.isUndefined(taken(null, "new", "a", "p"))
    assert.include(taken("a", "q", "a", "p")!.message, "Rank 1 sends changes of version a, this rank holds a")
    assert.include(taken("a", "p", "z", "p")!.message, "this rank holds z")
    assert.include(taken("a", "p", null, undefined)!.message, "this rank holds none")
    assert.isUndefined(versionFault(0, new Map([[1, stated({ holds: null, proof: "p" }, rowWords)]]), "b"))
    const other = versionFault(0, new Map([[1, stated({ holds: null, proof: "p", version: "c" }, rowWords)]]), "b")
    assert.include(other!.message, "Rank 1 updates to version c, this one to b")
  })

  it("is read by region and part, and refused where the plan has no such region", () => {
    const ops = [op(1, 7, false), op(2, 7, false)]
    const read = (peer: number, words: number, rows: ReadonlyArray<number>) =>
      readRows(0, new Map([[peer, stated({ holds: "a", proof: "p" }, words, rows)]]), ops)
    const rows = Result.getOrThrow(read(2, rowWords, [7, 0, 3, 2, 11, 12, 7, 1, 4, 4, 13, 14]))
    assert.deepStrictEqual([...rows.keys()], [ops[1]])
    assert.deepStrictEqual(rows.get(ops[1]!)!.get(1), [7, 1, 4, 4, 13, 14])
    for (const faulty of [read(2, rowWords, [8, 0, 1, 2, 1, 1]), read(1, needWords, [7, 0, 1])]) {
      assert.isTrue(Result.isFailure(faulty))
    }
  })

  it("makes another history of every statement", () => {
    const bytes = encodeStatement({ version: "b", holds: "a", proof: "p", words: rowWords }, [7, 0, 1, 2, 3, 4])
    const same = follow("p", bytes)
    assert.strictEqual(follow("p", bytes.slice()), same)
    assert.notStrictEqual(follow("q", bytes), same)
    for (const [at] of bytes.entries()) {
      const other = bytes.slice()
      other[at]! ^= 1
      assert.notStrictEqual(follow("p", other), same)
    }
  })
})
