// SPDX-License-Identifier: Apache-2.0
/** What travels to a page: the whole once, then only what has changed. */
import { assert, describe, it } from "@effect/vitest"
import type { FleetView, MemberView } from "@tensorferry/fleet/view/FleetView"
import type { LinkView, TreeNode } from "@tensorferry/fleet/view/flow"
import { changeBetween, type PageView, pageViewOf } from "../../src/watch/pageView.ts"
import { Rates } from "../../src/watch/Rates.ts"

const member = (rank: number, more: Partial<MemberView> = {}): MemberView => ({
  id: `${rank}-x`,
  rank,
  role: rank === 0 ? "source" : "replica",
  isAdmitted: true,
  host: `host-${rank}`,
  process: 1,
  state: "serving",
  isServing: true,
  version: { serial: 1, label: "one" },
  taking: null,
  silentSeconds: 0.3,
  failure: "",
  receivedBytes: 0,
  ...more
})

const node = (rank: number, parent: number, done: number): TreeNode => ({
  id: `${rank}-x`,
  rank,
  parent,
  depth: parent + 1,
  start: 0,
  end: 1,
  bytes: rank === 0 ? 0 : 100,
  done
})

const link = (from: number, to: number, done: number): LinkView => ({
  from: `${from}-x`,
  to: `${to}-x`,
  bytes: 100,
  done
})

const viewOf = (more: Partial<FleetView> = {}): FleetView => ({
  name: "prod",
  generation: 1,
  position: 5,
  current: { serial: 1, label: "one" },
  members: [member(0), member(1), member(2)],
  removals: [],
  updates: [],
  flow: {
    serial: 1,
    trees: [{ stripe: 0, depth: 3, nodes: [node(0, -1, 0), node(1, 0, 50), node(2, 1, 10)] }],
    links: [link(0, 1, 50), link(1, 2, 10)]
  },
  ...more
})

const pageOf = (view: FleetView, trouble = ""): PageView => pageViewOf(view, new Map(), trouble)

describe("what a page lacks", () => {
  it("is nothing where nothing changed but heartbeats of members that live", () => {
    const after = viewOf({ members: [member(0, { silentSeconds: 0.9 }), member(1, { silentSeconds: 1.9 }), member(2)] })
    assert.isUndefined(changeBetween(pageOf(viewOf()), pageOf(after)))
  })

  it("is the rows of members that changed, came or are gone", () => {
    const after = viewOf({ members: [member(0), member(1, { state: "silent", silentSeconds: 7.4 }), member(3)] })
    const change = changeBetween(pageOf(viewOf()), pageOf(after))!
    assert.deepStrictEqual(
      change.members!.map(({ rank, silent }) => [rank, silent]),
      [
        [1, 7],
        [3, 0]
      ]
    )
    assert.deepStrictEqual(change.gone, ["2-x"])
    assert.notProperty(change, "updates")
    assert.notProperty(change, "shape")
  })

  it("is how far a tree is filled and the links that moved, where the tree is the same", () => {
    const { flow } = viewOf()
    const nodes = [node(0, -1, 0), node(1, 0, 80), node(2, 1, 10)]
    const moved = viewOf({
      flow: { ...flow!, trees: [{ stripe: 0, depth: 3, nodes }], links: [link(0, 1, 80), link(1, 2, 10)] }
    })
    const change = changeBetween(pageOf(viewOf()), pageOf(moved))!
    assert.deepStrictEqual(Object.keys(change).sort(), ["fill", "head", "links"])
    assert.deepStrictEqual(change.fill, [[1000, 800, 100]])
    assert.deepStrictEqual(
      change.links!.map(({ to, done }) => [to, done]),
      [["rank 1 on host-1", 80]]
    )
  })

  it("is all links with a new tree, so that those of the old one can go", () => {
    const { flow } = viewOf()
    const turned = viewOf({ flow: { ...flow!, serial: 2 } })
    const change = changeBetween(pageOf(viewOf()), pageOf(turned))!
    assert.lengthOf(change.links!, 2)
    assert.strictEqual(change.shape!.serial, 2)
    const none = changeBetween(pageOf(viewOf()), pageOf(viewOf({ flow: null })))!
    assert.deepStrictEqual([none.shape, none.links, none.fill], [null, [], []])
  })

  it("is why the store is away, at the top", () => {
    const change = changeBetween(pageOf(viewOf()), pageOf(viewOf(), "The store is gone."))!
    assert.deepStrictEqual(Object.keys(change), ["head"])
    assert.strictEqual(change.head!.trouble, "The store is gone.")
  })
})

describe("speeds of links", () => {
  it("are counted over the last seconds, and begin anew with another version", () => {
    const rates = new Rates()
    const flowOf = (serial: number, done: number) => ({ serial, trees: [], links: [link(0, 1, done)] })
    rates.look(flowOf(1, 0), 10)
    assert.strictEqual(rates.now.size, 0)
    rates.look(flowOf(1, 40), 12)
    assert.strictEqual(rates.now.get("0-x 1-x"), 20)
    rates.look(flowOf(1, 100), 15)
    assert.strictEqual(rates.now.get("0-x 1-x"), 20)
    rates.look(flowOf(1, 100), 20)
    rates.look(flowOf(1, 100), 21)
    assert.strictEqual(rates.now.get("0-x 1-x"), 0)
    rates.look(flowOf(2, 5), 22)
    assert.strictEqual(rates.now.size, 0)
    rates.look(null, 23)
    assert.strictEqual(rates.now.size, 0)
  })
})
