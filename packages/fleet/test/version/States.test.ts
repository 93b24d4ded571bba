// SPDX-License-Identifier: Apache-2.0
/** What members and controllers do in situations that random lives seldom reach, step by step. */
import { assert, describe, it } from "@effect/vitest"
import {
  type ControllerEvent,
  type ControllerState,
  controllerStep,
  newController
} from "../../src/version/ControllerState.ts"
import {
  applyEntry,
  emptyFleet,
  type FleetMember,
  type FleetState,
  type LogEntry,
  readLog
} from "../../src/version/FleetLog.ts"
import type { FleetTimes } from "../../src/version/FleetTimes.ts"
import { differingTensors, manifestOf } from "../../src/version/Manifest.ts"
import {
  canServe,
  type MemberEvent,
  type MemberReport,
  memberStep,
  newMember,
  reportOf
} from "../../src/version/MemberState.ts"

const times: FleetTimes = { beat: 1, fence: 4, grace: 1, dead: 3, stage: 20, prepare: 5 }
const source: FleetMember = { id: "s", rank: 0, role: "source" }
const a: FleetMember = { id: "a", rank: 1, role: "replica" }
const b: FleetMember = { id: "b", rank: 2, role: "replica" }
const v1 = manifestOf(1, "one", { w: "1" })
const v2 = manifestOf(2, "two", { w: "2" })

const fleetOf = (...entries: ReadonlyArray<LogEntry>): FleetState =>
  entries.reduce(applyEntry, { ...emptyFleet, members: [source, a, b], current: v1, nextSerial: 2 })
const propose: LogEntry = { _tag: "Propose", manifest: v2, policy: { _tag: "All" }, by: "c" }

const report = (member: FleetMember, more: Partial<MemberReport> = {}): MemberReport => ({
  member,
  beat: 1,
  incarnation: "i",
  live: v1,
  staged: null,
  paused: null,
  highest: 1,
  failure: "",
  knows: null,
  ...more
})

/** Appends of a controller that sees these looks, with a beat of `step` seconds before each. */
const appends = (looks: ReadonlyArray<Omit<ControllerEvent & { readonly _tag: "Read" }, "_tag">>, step = 1) => {
  let state: ControllerState = newController("c", times)
  return looks.map((look, at) => {
    ;[state] = controllerStep(state, { _tag: "Beat", now: (at + 1) * step })
    const [next, effects] = controllerStep(state, { _tag: "Read", ...look })
    state = next
    return effects.flatMap((effect) => (effect._tag === "Append" ? [effect.entry] : []))
  })
}

describe("an update that somebody can get from nobody", () => {
  const entriesOf = (policy: LogEntry & { readonly _tag: "Propose" }): ReadonlyMap<number, LogEntry> =>
    new Map<number, LogEntry>([
      [1, { _tag: "Genesis", state: { ...fleetOf(), position: 1 } }],
      [2, policy]
    ])
  const proposal = propose as LogEntry & { readonly _tag: "Propose" }
  const lost = report(b, { lost: v2, failure: "Rank 0 is gone." })
  const reports = [report(source), report(a, { staged: v2 }), lost]

  it("is given up at once under policy all, with who lacks it and why", () => {
    const [[entry]] = appends([{ incarnation: "i", entries: entriesOf(proposal), reports }]) as [[LogEntry]]
    assert.deepInclude(entry, {
      _tag: "Abort",
      culprits: ["b"],
      reason: "Nobody is left who has it all. Rank 0 is gone."
    })
  })

  it("is committed where others are enough, and given up where they are not", () => {
    const quorum = (count: number) => entriesOf({ ...proposal, policy: { _tag: "Quorum", count } })
    const [[first]] = appends([{ incarnation: "i", entries: quorum(1), reports }]) as [[LogEntry]]
    assert.strictEqual(first._tag, "Commit")
    const [[second]] = appends([{ incarnation: "i", entries: quorum(2), reports }]) as [[LogEntry]]
    assert.deepInclude(second, { _tag: "Abort", culprits: ["b"] })
  })

  it("is stated by the member until others are there or something else is to be taken", () => {
    const read = (now: number, ...more: ReadonlyArray<readonly [number, LogEntry]>): MemberEvent => ({
      _tag: "Read",
      now,
      askedAt: now,
      incarnation: "i",
      entries: new Map([...entriesOf(proposal), ...more])
    })
    const [staging] = memberStep(newMember(b, times, v1), read(0))
    const failed: MemberEvent = { _tag: "StageFailed", now: 1, manifest: v2, reason: "gone", isLost: true }
    const [state] = memberStep(staging, failed)
    assert.deepStrictEqual(reportOf(state).lost, { serial: 2, content: v2.content })
    const [next] = memberStep(state, read(2, [3, { _tag: "Abort", serial: 2, culprits: [], reason: "" }]))
    assert.isUndefined(reportOf(next).lost)
  })
})

describe("a replica of several processes", () => {
  const part = { replica: "1+2", of: 2 }
  const [first, second] = [
    { ...a, part },
    { ...b, part }
  ]
  const alone: FleetMember = { id: "c", rank: 3, role: "replica" }
  const fleetWith = (...members: ReadonlyArray<FleetMember>): FleetState => ({
    ...emptyFleet,
    position: 1,
    members,
    current: v1,
    nextSerial: 2
  })

  it("counts where all of its processes have proven the version", () => {
    const wanted: LogEntry = { ...propose, policy: { _tag: "Quorum", count: 1 } } as LogEntry
    const entries = new Map<number, LogEntry>([
      [1, { _tag: "Genesis", state: fleetWith(source, first, second, alone) }],
      [2, wanted]
    ])
    const look = (...having: ReadonlyArray<FleetMember>) => ({
      incarnation: "i",
      entries,
      reports: [source, first, second, alone].map((member) =>
        report(member, having.includes(member) ? { staged: v2 } : {})
      )
    })
    const commit = { _tag: "Commit", serial: 2 }
    assert.deepStrictEqual(appends([look(first), look(first, second)]), [[], [commit]] as never)
    assert.deepStrictEqual(appends([look(second), look(alone)]), [[], [commit]] as never)
  })

  it("serves where all of its processes are members", () => {
    const states = [fleetWith(source, first), fleetWith(source, first, second), fleetWith(source, first, alone)]
    const serves = states.map((fleet) => {
      const [state] = memberStep(newMember(first, times, v1), {
        _tag: "Read",
        now: 1,
        askedAt: 1,
        incarnation: "i",
        entries: new Map([[1, { _tag: "Genesis", state: fleet }]])
      })
      return canServe(state, 1)
    })
    assert.deepStrictEqual(serves, [false, true, false])
  })
})

describe("a controller", () => {
  const known = { ...fleetOf(), generation: 3, position: 40 }
  const empty = { incarnation: "i", entries: new Map<number, LogEntry>() }

  it("begins an empty history at once where all members of it have said what they know, and from who knows most", () => {
    const reports = [
      report(source, { knows: { ...known, position: 39, current: null } }),
      report(a, { knows: known }),
      report(b)
    ]
    const [[first]] = appends([{ ...empty, reports }]) as [[LogEntry & { readonly _tag: "Genesis" }]]
    assert.deepInclude(first.state, { generation: 4, current: v1, members: [source, a, b] })
  })

  it("waits for members that have not seen that the store is empty, and leaves them out when they can serve no longer", () => {
    const reports = [report(source), report(a, { knows: known }), report(b, { incarnation: "before" })]
    const found = appends(Array.from({ length: 7 }, () => ({ ...empty, reports })))
    assert.deepStrictEqual(
      found.map(({ length }) => length),
      [0, 0, 0, 0, 0, 1, 1]
    )
    assert.deepInclude((found[5]![0] as LogEntry & { readonly _tag: "Genesis" }).state, {
      members: [source, a],
      current: v1
    })
  })

  const log = (...entries: ReadonlyArray<LogEntry>) =>
    new Map<number, LogEntry>([
      [1, { _tag: "Genesis", state: fleetOf() }],
      ...entries.map((entry, at) => [at + 2, entry] as const)
    ])

  it("lets nobody stop for a version before those who were removed have stopped", () => {
    const reports = [report(source), report(a, { staged: v2 })]
    const entries = log(propose, { _tag: "Remove", id: "b", reason: "" })
    const found = appends(
      Array.from({ length: 7 }, (_, beat) => ({
        incarnation: "i",
        entries,
        reports: reports.map((each) => ({ ...each, beat }))
      }))
    )
    assert.deepStrictEqual(
      found.map(([entry]) => entry?._tag),
      [undefined, undefined, undefined, undefined, undefined, "Prepare", "Prepare"]
    )
  })

  it("removes who is silent, and sooner whose connection to another member has ended, but nobody who gives signs of life", () => {
    const look = (beat: number, missed: ReadonlyArray<string>) => ({
      incarnation: "i",
      entries: new Map([[1, { _tag: "Genesis", state: { ...fleetOf(), position: 1 } } as const]]),
      reports: [report(source, { beat }), report(a, { beat, ...(missed.length > 0 ? { missed } : {}) }), report(b)]
    })
    const removed = (missed: ReadonlyArray<string>) =>
      appends([1, 2, 3, 4].map((beat) => look(beat, missed))).map((entries) =>
        entries.flatMap((entry) => (entry._tag === "Remove" ? [entry] : []))
      )
    assert.deepStrictEqual(removed([]), [[], [], [], [{ _tag: "Remove", id: "b", reason: "No sign of life for 3 s." }]])
    const reason = "No sign of life for 2 s, and its connection to a has ended."
    assert.deepStrictEqual(removed(["b", "s"])[2], [{ _tag: "Remove", id: "b", reason }])
    assert.deepStrictEqual(removed(["b", "s"])[1], [])
  })

  it("counts two beats at most where it was stopped for long", () => {
    const look = (beat: number) => ({
      incarnation: "i",
      entries: log(),
      reports: [source, a, b].map((each) => report(each, { beat }))
    })
    // Two looks with the same beats, a hundred seconds apart.
    assert.deepStrictEqual(appends([look(1), look(1)], 100).flat(), [])
    const [removed] = appends([look(1), look(1), look(1)], 100).flat()
    assert.deepInclude(removed, { _tag: "Remove", id: "s" })
  })

  it("names who did not stage, and why, and who did not stop", () => {
    const late = [report(source), report(a, { staged: v2 }), report(b, { failure: "The disk is full." })]
    const looks = (entries: ReadonlyMap<number, LogEntry>, reports: ReadonlyArray<MemberReport>, count: number) =>
      appends(
        Array.from({ length: count }, (_, beat) => ({
          incarnation: "i",
          entries,
          reports: reports.map((each) => ({ ...each, beat }))
        }))
      ).at(-1)![0]
    const unstaged = looks(log(propose), late, 22) as LogEntry & { readonly _tag: "Abort" }
    assert.deepStrictEqual(unstaged.culprits, ["b"])
    assert.include(unstaged.reason, "The disk is full.")
    const unpaused = [report(source), report(a, { staged: v2, paused: v2 }), report(b, { staged: v2 })]
    const prepared = log(propose, { _tag: "Prepare", serial: 2 })
    assert.deepInclude(looks(prepared, unpaused, 7), { _tag: "Abort", culprits: ["b"] })
    const gone = log(propose, { _tag: "Remove", id: "s", reason: "" })
    assert.deepInclude(looks(gone, [report(a), report(b)], 1), {
      _tag: "Abort",
      reason: "No source is left that has the version."
    })
  })

  it("goes on after the death of the source where a replica has the version", () => {
    const entries = log(propose, { _tag: "Remove", id: "s", reason: "" })
    assert.deepStrictEqual(
      appends([{ incarnation: "i", entries, reports: [report(a, { staged: v2 }), report(b)] }]).flat(),
      []
    )
  })

  it("states a long history whole, and lets what came before go", () => {
    const entries = log(...Array.from({ length: 70 }, (): LogEntry => ({ _tag: "Remove", id: "nobody", reason: "" })))
    const reports = [source, a, b].map((each) => report(each))
    const [snapshot] = appends([{ incarnation: "i", entries, reports }]).flat()
    assert.strictEqual(snapshot!._tag, "Snapshot")
    const whole = new Map([...entries, [72, snapshot!] as const])
    assert.deepStrictEqual(readLog(undefined, new Map([[72, snapshot!]])), readLog(undefined, whole))
    const [, effects] = controllerStep(newController("c", times), {
      _tag: "Read",
      incarnation: "i",
      entries: whole,
      reports
    })
    assert.deepStrictEqual(effects, [{ _tag: "Forget", before: 72 }])
  })

  it("gives what is in use a new number where somebody has used a greater one", () => {
    const reports = [
      report(source),
      report(a),
      report(b),
      report({ id: "late", rank: 9, role: "replica" }, { highest: 7 })
    ]
    const [lifted] = appends([{ incarnation: "i", entries: log(), reports }]).flat()
    assert.deepInclude(lifted, { _tag: "Propose", manifest: { ...v1, serial: 8 } })
  })

  it("proposes nothing before a source is admitted", () => {
    let state = newController("c", times)
    const wish = { label: "two", content: v2.content, tensors: v2.tensors, policy: { _tag: "Each" } } as const
    ;[state] = controllerStep(state, { _tag: "Publish", wish })
    const [genesis] = [...log().values()]
    const alone = genesis as LogEntry & { readonly _tag: "Genesis" }
    const members = alone.state.members.filter(({ role }) => role === "replica")
    assert.isAbove(members.length, 0)
    const entries = new Map([[1, { ...alone, state: { ...alone.state, members } }]])
    const reports = members.map((each) => report(each))
    const [, effects] = controllerStep(state, { _tag: "Read", incarnation: "i", entries, reports })
    assert.deepStrictEqual(effects, [])
  })

  it("finds its proposal taken, and proposes the next under another number", () => {
    let state = newController("c", times)
    const wish = { label: "two", content: v2.content, tensors: v2.tensors, policy: { _tag: "Each" } } as const
    ;[state] = controllerStep(state, { _tag: "Publish", wish })
    const reports = [source, a, b].map((each) => report(each))
    const other: LogEntry = {
      _tag: "Propose",
      manifest: { ...v2, content: "other" },
      policy: { _tag: "Each" },
      by: "d"
    }
    const abort: LogEntry = { _tag: "Abort", serial: 2, culprits: ["a"], reason: "r" }
    const [, effects] = controllerStep(state, { _tag: "Read", incarnation: "i", entries: log(other, abort), reports })
    assert.deepInclude(effects[0], { _tag: "Append", position: 4 })
    assert.strictEqual((effects[0] as { readonly entry: { readonly manifest: typeof v2 } }).entry.manifest.serial, 3)
  })
})

describe("a member that cannot get a version", () => {
  it("tries again ever later, and at once when other members are there", () => {
    const opened = [[1, { _tag: "Genesis", state: { ...fleetOf(), position: 1 } }] as const, [2, propose] as const]
    const read = (now: number, ...more: ReadonlyArray<readonly [number, LogEntry]>): MemberEvent => ({
      _tag: "Read",
      now,
      askedAt: now,
      incarnation: "i",
      entries: new Map<number, LogEntry>([...opened, ...more])
    })
    let state = newMember(a, times, v1)
    const tries: Array<number> = []
    const hear = (event: MemberEvent): void => {
      const [next, effects] = memberStep(state, event)
      state = next
      if (!effects.some(({ _tag }) => _tag === "Stage")) return
      tries.push(event.now)
      const [failed] = memberStep(state, { _tag: "StageFailed", now: event.now, manifest: v2, reason: "no" })
      state = failed
    }
    hear(read(0))
    for (let now = 1; now <= 40; now++) hear({ _tag: "Beat", now })
    assert.deepStrictEqual(tries, [0, 1, 3, 7, 15, 31])
    hear(read(41, [3, { _tag: "Remove", id: "b", reason: "" }]))
    hear({ _tag: "Beat", now: 42 })
    assert.deepStrictEqual(tries.slice(6), [41, 42])
  })
})

describe("a member", () => {
  const read = (askedAt: number, fleet: FleetState, incarnation = "i"): MemberEvent => ({
    _tag: "Read",
    now: askedAt,
    askedAt,
    incarnation,
    entries: new Map([[fleet.position + 1, { _tag: "Snapshot", state: { ...fleet, position: fleet.position + 1 } }]])
  })
  const run = (events: ReadonlyArray<MemberEvent>) => {
    let state = newMember(a, times, v1)
    const effects = events.map((event) => {
      const [next, done] = memberStep(state, event)
      state = next
      return done.map((effect) => effect._tag)
    })
    return { state, effects }
  }

  it("states whose connection has ended, until that was long ago or they are no members", () => {
    const read = {
      _tag: "Read",
      now: 1,
      askedAt: 1,
      incarnation: "i",
      entries: new Map([[1, { _tag: "Genesis", state: { ...fleetOf(), position: 1 } } as const]])
    } as const
    const events: ReadonlyArray<MemberEvent> = [
      read,
      { _tag: "Missed", now: 1, id: "b" },
      { _tag: "Missed", now: 1, id: "gone before" },
      { _tag: "Beat", now: 2 },
      { _tag: "Beat", now: 3.9 },
      { _tag: "Beat", now: 4 }
    ]
    let state = newMember(a, times)
    const stated = events.map((event) => {
      ;[state] = memberStep(state, event)
      return reportOf(state).missed
    })
    assert.deepStrictEqual(stated.slice(3), [["b"], ["b"], undefined])
  })

  it("serves from the beginning of a look until the fence, also when the clock goes back", () => {
    const { state } = run([read(10, fleetOf())])
    assert.isTrue(canServe(state, 13.9))
    assert.isFalse(canServe(state, 14))
    assert.isFalse(canServe(run([read(10, fleetOf()), { _tag: "Beat", now: 3 }]).state, 14))
    assert.isFalse(canServe(run([read(10, fleetOf({ _tag: "Remove", id: "a", reason: "" }))]).state, 10))
  })

  it("keeps serving an emptied store until the fence, and says what it knows", () => {
    const { state } = run([
      read(10, fleetOf()),
      { _tag: "Read", now: 11, askedAt: 11, incarnation: "j", entries: new Map() }
    ])
    assert.isTrue(canServe(state, 13.9))
    assert.isFalse(canServe(state, 14))
    assert.deepStrictEqual(reportOf(state).knows?.current, v1)
  })

  it("goes through staging, stopping and the new version in this order", () => {
    const prepared = fleetOf(propose, { _tag: "Prepare", serial: 2 })
    const { effects, state } = run([
      read(1, fleetOf(propose)),
      { _tag: "Staged", now: 2, manifest: v2 },
      read(3, prepared),
      { _tag: "Paused", now: 4 },
      read(5, applyEntry(prepared, { _tag: "Commit", serial: 2 })),
      { _tag: "Flipped", now: 6, manifest: v2 }
    ])
    assert.deepStrictEqual(effects, [["Stage"], [], ["Pause"], [], ["Flip"], ["Resume"]])
    assert.deepStrictEqual(state.live, v2)
    assert.isTrue(canServe(state, 6))
  })

  it("keeps the old version where the update is given up after it stopped", () => {
    const prepared = fleetOf(propose, { _tag: "Prepare", serial: 2 })
    const aborted = applyEntry(prepared, { _tag: "Abort", serial: 2, culprits: ["b"], reason: "r" })
    const { effects, state } = run([
      read(1, fleetOf(propose)),
      { _tag: "Staged", now: 2, manifest: v2 },
      read(3, prepared),
      { _tag: "Paused", now: 4 },
      read(5, aborted)
    ])
    assert.deepStrictEqual(effects.at(-1), ["Drop", "Resume"])
    assert.deepStrictEqual(state.live, v1)
    assert.isTrue(canServe(state, 6))
  })

  it("takes no version of a smaller number than it has used", () => {
    const { effects, state } = run([read(1, { ...fleetOf(), members: [source, b], current: { ...v2, serial: 1 } })])
    assert.deepStrictEqual(effects, [["Stage"]])
    const later = memberStep({ ...state, highest: 2, staging: null }, { _tag: "Beat", now: 2 })[1].map(
      ({ _tag }) => _tag
    )
    assert.deepStrictEqual(later, ["Report"])
  })

  it("gives up an update whose controller says nothing more, and names it", () => {
    const { effects } = run([read(1, fleetOf(propose)), read(28, fleetOf(propose)), read(29, fleetOf(propose))])
    assert.deepStrictEqual(effects[1], [])
    assert.deepStrictEqual(effects[2], ["Append"])
  })
})

describe("a manifest", () => {
  it("has the content of its tensors, in any order, and names those that differ", () => {
    assert.strictEqual(manifestOf(1, "", { x: "1", y: "2" }).content, manifestOf(9, "z", { y: "2", x: "1" }).content)
    assert.deepStrictEqual(
      differingTensors(manifestOf(1, "", { x: "1", y: "2" }), manifestOf(2, "", { x: "1", y: "3", z: "4" })),
      ["y", "z"]
    )
  })
})

describe("a history", () => {
  it("says by which policy and when updates were proposed, prepared and ended, also after it was stated whole", () => {
    const fleet = fleetOf(
      { ...propose, at: 1000 },
      { _tag: "Prepare", serial: 2, at: 3000 },
      { _tag: "Commit", serial: 2, at: 3500 }
    )
    const end = {
      policy: { _tag: "All" },
      by: "c",
      outcome: "committed",
      proposedAt: 1000,
      preparedAt: 3000,
      endedAt: 3500
    } as const
    assert.deepInclude(fleet.history.at(-1), end)
    const whole: LogEntry = { _tag: "Snapshot", state: { ...fleet, position: 9 } }
    assert.deepInclude(readLog(undefined, new Map([[9, whole]]))!.history.at(-1), end)
  })

  it("states no time where an entry has none", () => {
    const abort: LogEntry = { _tag: "Abort", serial: 2, culprits: ["a"], reason: "It was late.", at: 9 }
    const [end] = fleetOf(propose, abort).history
    assert.deepInclude(end, { outcome: "aborted", culprits: ["a"], endedAt: 9 })
    assert.notProperty(end, "proposedAt")
    assert.notProperty(end, "preparedAt")
  })
})
