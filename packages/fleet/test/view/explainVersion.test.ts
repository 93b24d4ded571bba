// SPDX-License-Identifier: Apache-2.0
/** The life of one version, in words for people and as series for Prometheus. */
import { assert, describe, it } from "@effect/vitest"
import { KeyValueStore, KeyValueStoreMemory } from "@tensorferry/bus"
import * as Effect from "effect/Effect"
import { makeFleetStore } from "../../src/service/FleetStore.ts"
import type { LogEntry } from "../../src/version/FleetLog.ts"
import { explainVersion } from "../../src/view/explainVersion.ts"
import { makeFleetView } from "../../src/view/FleetView.ts"
import { fleetMetrics } from "../../src/view/fleetMetrics.ts"
import { chooseFleet, readFleet } from "../../src/view/readFleet.ts"
import { committed, memberOf, progressOf, reportOf, seenOf, versionOf } from "./looks.ts"

const members = [0, 1, 2, 3].map((rank) => memberOf(rank))
const reports = members.map((member) => reportOf(member))
const taken = (rank: number, seconds: number) =>
  progressOf(members[rank]!, [
    { serial: 2, begunAt: 10_000, stagedAt: 10_000 + seconds * 1000, liveAt: 13_000 + rank, tries: 1 }
  ])

describe("an explained version", () => {
  it("tells what happened in order, and who was slow", () => {
    const found = explainVersion(seenOf(members, committed, reports, [taken(1, 0.2), taken(2, 0.3), taken(3, 1.9)]), 2)!
    assert.deepStrictEqual(
      found.steps.map(({ what, member }) => [what, member?.rank ?? null]),
      [
        ["proposed", 0],
        ["staged", 1],
        ["staged", 2],
        ["staged", 3],
        ["prepared", null],
        ["committed", null],
        ["live", 1],
        ["live", 2],
        ["live", 3]
      ]
    )
    assert.deepStrictEqual(
      found.slow.map(({ rank }) => rank),
      [3]
    )
    assert.strictEqual(found.medianSeconds, 0.3)
    assert.include(found.advice.join(" "), "rank 3 on host-3 was the slowest")
  })

  it("says who kept it from being committed, who was removed meanwhile, and what to do", () => {
    const entries: ReadonlyArray<LogEntry> = [
      committed[0]!,
      { _tag: "Remove", id: members[3]!.id, reason: "No sign of life for 4 s.", at: 11_000 },
      { _tag: "Abort", serial: 2, culprits: [members[2]!.id], reason: "They had not staged it after 9 s.", at: 19_000 },
      { _tag: "Remove", id: members[1]!.id, reason: "Later.", at: 20_000 }
    ]
    const failed = reportOf(members[2]!, { failure: "The disk is full." })
    const found = explainVersion(seenOf(members, entries, [reports[0]!, failed], [taken(1, 1)]), 2)!
    assert.deepInclude(found.update, { outcome: "aborted", seconds: 9 })
    assert.deepStrictEqual(
      found.steps.filter(({ what }) => what === "removed").map(({ member, reason }) => [member?.rank, reason]),
      [[3, "No sign of life for 4 s."]]
    )
    assert.include(found.advice[0], "rank 2 failed last with: The disk is full.")
    assert.include(found.advice.join(" "), "rank 3 was removed meanwhile")
    assert.include(found.advice.join(" "), "publish again")
  })

  it("names programs that hold the version where members had not stopped serving in time", () => {
    const entries: ReadonlyArray<LogEntry> = [
      ...committed.slice(0, 2),
      { _tag: "Abort", serial: 2, culprits: [members[1]!.id], reason: "They had not stopped.", at: 22_000 }
    ]
    const { advice, update } = explainVersion(seenOf(members, entries, reports, [taken(1, 1)]), 2)!
    assert.strictEqual(update.pauseSeconds, 10)
    assert.include(advice[0], "rank 1 on host-1 had not stopped serving in time")
  })

  it("is undefined where nobody knows the version", () => {
    assert.isUndefined(explainVersion(seenOf(members, committed, reports), 7))
  })
})

describe("series of a fleet", () => {
  const facts = { isStoreUp: true, lookSeconds: 0.01, ended: { committed: 3, aborted: 1 } }

  it("have one TYPE and HELP for each family, before its samples, and no two samples of the same labels", () => {
    const text = fleetMetrics("prod", makeFleetView(seenOf(members, committed, reports, [taken(1, 1)])), facts)
    const seen = new Set<string>()
    let family = ""
    for (const line of text.trimEnd().split("\n")) {
      const named = /^# (HELP|TYPE) (\S+) (.+)$/.exec(line)
      if (named?.[1] === "HELP") family = named[2]!
      if (named !== null) assert.strictEqual(named[2], family)
      else {
        const sample = /^([a-z_]+)(\{.*\}) ([0-9.e+-]+)$/.exec(line)
        assert.isNotNull(sample, line)
        assert.strictEqual(sample![1], family)
      }
      assert.isFalse(seen.has(line.replace(/ \S+$/, "")), line)
      seen.add(line.replace(/ \S+$/, ""))
    }
    assert.include(text, 'tensorferry_fleet_updates_total{fleet="prod",outcome="aborted"} 1\n')
    assert.include(text, 'tensorferry_fleet_last_update_seconds{fleet="prod"} 3\n')
  })

  it("escape what others named", () => {
    const progress = { ...taken(1, 1), host: 'a"b\\c\nd' }
    const text = fleetMetrics("x", makeFleetView(seenOf(members, committed, reports, [progress])), facts)
    assert.include(text, 'host="a\\"b\\\\c\\nd"')
  })

  it("say that the store is away where it was never reached", () => {
    const text = fleetMetrics("x", undefined, { ...facts, isStoreUp: false })
    assert.include(text, 'tensorferry_fleet_store_up{fleet="x"} 0')
    assert.notInclude(text, "tensorferry_fleet_members")
  })
})

describe("a look at a store", () => {
  it.live("finds the only fleet, names the others where there are more, and writes nothing", () =>
    Effect.gen(function* () {
      const store = yield* KeyValueStore
      assert.include((yield* Effect.flip(chooseFleet(store, undefined))).message, "The store has no fleet.")
      yield* makeFleetStore(store, "a b").lookAtLog
      assert.strictEqual(yield* chooseFleet(store, undefined), "a b")
      const before = yield* store.list("")
      const { view } = yield* readFleet(store, "a b")
      assert.deepInclude(view, { name: "a b", members: [], current: null })
      assert.include((yield* Effect.flip(readFleet(store, "c"))).message, 'It has "a b".')
      assert.deepStrictEqual(yield* store.list(""), before)
      yield* makeFleetStore(store, "b").lookAtLog
      assert.include((yield* Effect.flip(chooseFleet(store, undefined))).message, "2 fleets: a b, b")
      assert.include((yield* Effect.flip(chooseFleet(store, "c"))).message, '"a b", "b"')
    }).pipe(Effect.provide(KeyValueStoreMemory.layerMemory))
  )

  it.live("shows silent members after little more than a second, and waits for no others", () =>
    Effect.gen(function* () {
      const store = yield* KeyValueStore
      const fleet = makeFleetStore(store, "f")
      const { incarnation } = yield* fleet.lookAtLog
      const { entries } = seenOf(members, [], []).look
      for (const [position, entry] of entries) yield* fleet.append(incarnation, position, entry)
      yield* fleet.report(reportOf(members[1]!, { live: versionOf(1) }))
      const { view } = yield* readFleet(store, "f")
      assert.isAtLeast(view.members[1]!.silentSeconds!, 1)
      assert.deepStrictEqual(
        view.members.map(({ state }) => state),
        ["silent", "serving", "silent", "silent"]
      )
    }).pipe(Effect.provide(KeyValueStoreMemory.layerMemory))
  )
})
