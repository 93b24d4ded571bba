// SPDX-License-Identifier: Apache-2.0
/** Blocks that peers may have mapped go back only after every rank has let go of them. */
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import type { Block, Sharing } from "../src/Block.ts"
import { makeSharing } from "../src/Sharing.ts"

const makeBlock = (number: number) => {
  const state = { isEmpty: false, isSpare: false, isRetired: false, reclaimed: 0 }
  const block: Block = {
    number,
    address: 0,
    byteLength: 1,
    isEmpty: () => state.isEmpty,
    isSpare: () => state.isSpare,
    exported: () => Result.fail("none"),
    sharings: new Set<Sharing>(),
    retire: () => {
      state.isRetired = true
    },
    reclaim: () => {
      state.reclaimed += 1
    }
  }
  return { block, state }
}

describe("Sharing", () => {
  it("revokes empty blocks until all ranks have carried it out", () => {
    const sharing = makeSharing()
    const { block, state } = makeBlock(5)
    sharing.share(block)
    sharing.share(block)
    assert.deepStrictEqual(sharing.revoked(1), [])
    state.isEmpty = true
    assert.deepStrictEqual(sharing.revoked(2), [5])
    assert.isTrue(state.isRetired)
    sharing.settle(1)
    assert.deepStrictEqual(sharing.revoked(3), [5])
    assert.strictEqual(state.reclaimed, 0)
    sharing.settle(2)
    assert.strictEqual(state.reclaimed, 1)
    assert.strictEqual(block.sharings.size, 0)
    assert.deepStrictEqual(sharing.revoked(4), [])
  })

  it("keeps spare blocks, and blocks that are not shared", () => {
    const sharing = makeSharing()
    const [spare, other] = [makeBlock(1), makeBlock(2)]
    spare.state.isEmpty = spare.state.isSpare = other.state.isEmpty = true
    sharing.share(spare.block)
    assert.deepStrictEqual(sharing.revoked(1), [])
  })

  it("publishes again after the drivers were built again", () => {
    const sharing = makeSharing()
    const { block, state } = makeBlock(5)
    sharing.share(block)
    state.isEmpty = true
    assert.deepStrictEqual(sharing.revoked(8), [5])
    sharing.restart()
    sharing.settle(8)
    assert.strictEqual(state.reclaimed, 0)
    assert.deepStrictEqual(sharing.revoked(1), [5])
    sharing.settle(1)
    assert.strictEqual(state.reclaimed, 1)
  })

  it("releases everything when all drivers are closed, unless one has started since", () => {
    const sharing = makeSharing()
    const { block, state } = makeBlock(5)
    const first = sharing.restart()
    sharing.share(block)
    const second = sharing.restart()
    first()
    assert.isFalse(sharing.isEmpty())
    second()
    assert.isTrue(sharing.isEmpty())
    assert.strictEqual(state.reclaimed, 1)
    assert.strictEqual(block.sharings.size, 0)
  })

  it("releases a block for one job only", () => {
    const [one, two] = [makeSharing(), makeSharing()]
    const { block, state } = makeBlock(5)
    one.share(block)
    two.share(block)
    state.isEmpty = true
    one.revoked(1)
    one.settle(1)
    assert.strictEqual(block.sharings.size, 1)
    assert.deepStrictEqual(two.revoked(1), [5])
  })
})
