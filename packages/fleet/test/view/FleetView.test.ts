// SPDX-License-Identifier: Apache-2.0
/** What people see of a fleet: states of members, updates, and how a version comes to them. */
import { assert, describe, it } from "@effect/vitest"
import type { MemberProgress } from "../../src/progress/MemberProgress.ts"
import type { FleetMember, LogEntry } from "../../src/version/FleetLog.ts"
import { makeFleetView } from "../../src/view/FleetView.ts"
import { flowOf } from "../../src/view/flow.ts"
import { Heartbeats } from "../../src/view/Heartbeats.ts"
import { shortId } from "../../src/view/updates.ts"
import { committed, memberOf, progressOf, reportOf, seenOf, versionOf } from "./looks.ts"

const open: LogEntry = {
  _tag: "Propose",
  manifest: versionOf(2),
  policy: { _tag: "All" },
  by: memberOf(0).id,
  at: 10_000
}
const [v1, v2] = [versionOf(1), versionOf(2)]

describe("a view of a fleet", () => {
  it("says of every member what it does", () => {
    const members = [0, 1, 2, 3, 4, 5, 6, 7].map((rank) => memberOf(rank))
    const [source, ...replicas] = members
    const joining = memberOf(9)
    const receiving = { serial: 2, parts: [{ from: source!.id, stripe: 0, bytes: 100, done: 25 }] }
    const view = makeFleetView(
      seenOf(
        members,
        [open],
        [
          reportOf(source!),
          reportOf(replicas[0]!, { live: v1 }),
          reportOf(replicas[1]!, { live: v1 }),
          reportOf(replicas[2]!, { live: v1, staged: v2 }),
          reportOf(replicas[3]!, { live: v1, staged: v2, paused: v2 }),
          reportOf(replicas[4]!, { highest: 1, failure: "The device failed." }),
          reportOf(replicas[5]!),
          reportOf(joining)
        ],
        [progressOf(replicas[1]!, [receiving])],
        new Map([[replicas[0]!.id, 7]])
      )
    )
    assert.deepStrictEqual(
      view.members.map(({ rank, state }) => [rank, state]),
      [
        [0, "source"],
        [1, "silent"],
        [2, "receiving"],
        [3, "staged"],
        [4, "paused"],
        [5, "switching"],
        [6, "empty"],
        [7, "silent"],
        [9, "joining"]
      ]
    )
    assert.deepInclude(view.members[2], {
      host: "host-2",
      process: 102,
      version: { serial: 1, label: "step 1" },
      taking: { serial: 2, label: "step 2", fraction: 0.25 }
    })
    assert.strictEqual(view.members[5]!.failure, "The device failed.")
    assert.isNull(view.members[7]!.silentSeconds)
    assert.isFalse(view.members[8]!.isAdmitted)
  })

  it("says how long updates took, who was slow and who kept them from being committed", () => {
    const members = [0, 1, 2, 3].map((rank) => memberOf(rank))
    const abort: LogEntry = {
      _tag: "Abort",
      serial: 3,
      culprits: [members[3]!.id, "gone"],
      reason: "Late.",
      at: 25_000
    }
    const third: LogEntry = { ...open, manifest: versionOf(3), policy: { _tag: "Quorum", count: 2 }, at: 15_000 }
    const taken = (seconds: number) => ({ serial: 2, begunAt: 10_000, stagedAt: 10_000 + seconds * 1000 })
    const view = makeFleetView(
      seenOf(
        members,
        [...committed, third, abort],
        members.map((member) => reportOf(member, { live: v2 })),
        [
          progressOf(members[1]!, [taken(1)]),
          progressOf(members[2]!, [taken(1.5)]),
          progressOf(members[3]!, [{ serial: 3 }])
        ]
      )
    )
    const [aborted, done] = view.updates
    assert.deepInclude(aborted, { serial: 3, outcome: "aborted", seconds: 10, pauseSeconds: null, reason: "Late." })
    assert.deepStrictEqual(
      aborted!.culprits.map(({ rank }) => rank),
      [3, null]
    )
    assert.deepInclude(done, { label: "step 2", outcome: "committed", seconds: 3, pauseSeconds: 1 })
    assert.deepStrictEqual(
      done!.taken.map(({ rank, seconds }) => [rank, seconds]),
      [
        [2, 1.5],
        [1, 1]
      ]
    )
    // What was given up is not on its way any more.
    assert.isNull(view.members[3]!.taking)
    assert.strictEqual(view.members[3]!.state, "serving")
  })

  it("names those who were left out lately, the last one first", () => {
    const members = [0, 1, 2].map((rank) => memberOf(rank))
    const reason = "No sign of life for 4 s."
    const removed = [2, 1].map((rank): LogEntry => ({ _tag: "Remove", id: memberOf(rank).id, reason, at: 50 - rank }))
    const { removals } = makeFleetView(seenOf(members, [...committed, ...removed], []))
    assert.deepStrictEqual(
      removals.map(({ at, member, reason: why }) => [at, member.rank, why]),
      [
        [49, 1, reason],
        [48, 2, reason]
      ]
    )
  })

  it("is of nobody where the store has no entry", () => {
    const view = makeFleetView({ ...seenOf([], [], []), look: { incarnation: "m", entries: new Map(), reports: [] } })
    assert.deepStrictEqual(view, {
      name: "prod",
      generation: 0,
      position: 0,
      current: null,
      members: [],
      removals: [],
      updates: [],
      flow: null
    })
  })
})

const flow = (parts: ReadonlyArray<readonly [rank: number, from: number, stripe?: number]>) => {
  const ranks = [...new Set(parts.flatMap(([rank, from]) => [from, rank]))]
  const members = new Map<string, FleetMember>(ranks.map((rank) => [memberOf(rank).id, memberOf(rank)]))
  const stated = new Map<string, MemberProgress>()
  for (const rank of ranks) {
    const own = parts.filter(([to]) => to === rank)
    if (own.length === 0) continue
    const version = {
      serial: 2,
      parts: own.map(([, from, stripe = 0]) => ({ from: memberOf(from).id, stripe, bytes: 100, done: 50 }))
    }
    stated.set(memberOf(rank).id, progressOf(memberOf(rank), [version]))
  }
  return flowOf(2, members, stated)!
}

describe("how a version comes to members", () => {
  it("is a tree in which each lies within the width of whom it gets it from", () => {
    const { trees, links } = flow([
      [1, 0],
      [2, 1],
      [3, 1],
      [4, 0]
    ])
    assert.deepStrictEqual(
      trees[0]!.nodes.map(({ rank, parent, depth, start, end }) => [rank, parent, depth, start, end]),
      [
        [0, -1, 0, 0, 1],
        [1, 0, 1, 0, 2 / 3],
        [2, 1, 2, 0, 1 / 3],
        [3, 1, 2, 1 / 3, 2 / 3],
        [4, 0, 1, 2 / 3, 1]
      ]
    )
    assert.strictEqual(trees[0]!.depth, 3)
    assert.lengthOf(links, 4)
  })

  it("is one tree for each stripe, and shows who took the rest from another below that one", () => {
    const { trees, links } = flow([
      [1, 0],
      [1, 0, 100],
      [2, 0],
      [2, 1],
      [2, 0, 100]
    ])
    assert.deepStrictEqual(
      trees.map(({ stripe, nodes }) => [
        stripe,
        nodes.map(({ rank, parent, bytes, done }) => [rank, parent, bytes, done])
      ]),
      [
        [
          0,
          [
            [0, -1, 0, 0],
            [1, 0, 100, 50],
            [2, 1, 200, 100]
          ]
        ],
        [
          100,
          [
            [0, -1, 0, 0],
            [1, 0, 100, 50],
            [2, 0, 100, 50]
          ]
        ]
      ]
    )
    assert.deepStrictEqual(
      links.map(({ bytes }) => bytes),
      [200, 200, 100]
    )
  })

  it("ends where statements of several moments lead in a circle", () => {
    const { trees } = flow([
      [1, 2],
      [2, 1],
      [3, 2]
    ])
    assert.deepStrictEqual(trees[0]!.nodes.map(({ rank }) => rank).sort(), [1, 2, 3])
  })

  it("may be a chain of five thousand", () => {
    const { trees } = flow(Array.from({ length: 5000 }, (_, at) => [at + 1, at] as const))
    assert.strictEqual(trees[0]!.depth, 5001)
    assert.deepInclude(trees[0]!.nodes.at(-1), { rank: 5000, start: 0, end: 1 })
  })
})

describe("ages of heartbeats", () => {
  const at = (beat: number, wall: number) => [reportOf(memberOf(1), { beat, at: wall })]
  const { id } = memberOf(1)

  it("count from the last beat that was seen, whatever the member's clock says", () => {
    const beats = new Heartbeats()
    beats.look(at(1, 0), 100, 3_600_000)
    assert.strictEqual(beats.silent(100.5).get(id), 0.5)
    beats.look(at(2, 500), 100.6, 3_600_600)
    assert.closeTo(beats.silent(103.6).get(id)!, 3, 1e-9)
  })

  it("count the time before the first look too, where it has not beaten since", () => {
    const beats = new Heartbeats()
    beats.look(at(1, 1000), 100, 21_000)
    beats.look(at(1, 1000), 102, 23_000)
    assert.strictEqual(beats.silent(102).get(id), 22)
  })
})

describe("a member's short name", () => {
  it("has its rank and enough of its id to be told apart", () => {
    assert.strictEqual(shortId("12-0b5c1a2e-9c1d-4b7a-8f00-112233445566"), "12-0b5c1a2e")
    assert.strictEqual(shortId("controller-3"), "controller-3")
  })
})
