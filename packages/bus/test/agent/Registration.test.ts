// SPDX-License-Identifier: Apache-2.0
/** What a rank of a pair reads of the others: who is there, who refused, and what of it is history. */
import { assert, describe, it } from "@effect/vitest"
import { replicate, shard } from "@tensorferry/core/layout/Placement"
import * as Result from "effect/Result"
import {
  describeMissing,
  encodeRegistration,
  membersOf,
  type Registration,
  refusalOf
} from "../../src/agent/Registration.ts"
import { busError } from "../../src/BusError.ts"

const registration = (rank: number, side: string, attempt: string, size = 1): Registration => ({
  version: 2,
  host: { id: "one", name: "alpha" },
  instance: `run of ${rank}`,
  attempt,
  rank,
  side,
  remote: side === "a" ? "b" : "a",
  size,
  mesh: [size],
  placements: [size === 1 ? replicate : shard(0)]
})

const failure = (detail: string) => busError("PairMismatch", { detail, remedy: "" })

const entriesOf = (...entries: ReadonlyArray<readonly [number, Parameters<typeof encodeRegistration>[0]]>) =>
  new Map(entries.map(([rank, entry]) => [`pair/p/${rank}`, encodeRegistration(entry)]))

describe("registrations", () => {
  it("make the same pair on all ranks, and none as long as one is missing", () => {
    const [a0, a1, b] = [registration(4, "a", "x", 2), registration(7, "a", "y", 2), registration(2, "b", "z")]
    const all = entriesOf([4, a0], [7, a1], [2, b])
    for (const own of [a0, a1, b]) {
      const members = Result.getOrThrow(membersOf("p", own, all))
      assert.deepStrictEqual(members?.agents, [4, 7, 2])
    }
    assert.isUndefined(Result.getOrThrow(membersOf("p", a0, entriesOf([4, a0], [2, b]))))
  })

  it("a rank whose attempt others refused fails with their reason, though their registrations were removed", () => {
    const [own, other] = [registration(0, "a", "mine"), registration(1, "b", "theirs")]
    const refusal = refusalOf(
      "p",
      other,
      entriesOf([0, own], [1, other]),
      failure("Pair p: agent 1 states something else.")
    )
    assert.deepStrictEqual([...refusal.attempts].sort(), ["mine", "theirs", "theirs"])
    const refused = membersOf("p", own, entriesOf([0, own], [1, refusal]))
    assert.isTrue(Result.isFailure(refused))
    if (Result.isFailure(refused)) {
      assert.strictEqual(refused.failure.reason._tag, "PairMismatch")
      assert.strictEqual(refused.failure.reason.detail, "Pair p: agent 1 states something else.")
    }
  })

  it("a refusal of an earlier attempt is reported where ranks are missing, and stops no new attempt", () => {
    const [own, other] = [registration(0, "a", "second"), registration(1, "b", "theirs")]
    const old = refusalOf("p", other, entriesOf([0, registration(0, "a", "first")]), failure("It did not fit."))
    const waiting = entriesOf([0, own], [1, old])
    assert.isUndefined(Result.getOrThrow(membersOf("p", own, waiting)))
    assert.match(describeMissing("p", own, waiting), /side b came \(none\); It did not fit\./)
    const both = new Map([...entriesOf([0, own], [1, other]), ["pair/p/old", encodeRegistration(old)]])
    assert.deepStrictEqual(Result.getOrThrow(membersOf("p", own, both))?.agents, [0, 1])
  })

  it("agents of different hosts are a pair where all leave their host, and none where one does not", () => {
    const own = { ...registration(0, "a", "mine"), leavesHost: true }
    const away = { ...registration(1, "b", "theirs"), host: { id: "two", name: "beta" } }
    const both = membersOf("p", own, entriesOf([0, own], [1, { ...away, leavesHost: true }]))
    assert.deepStrictEqual(Result.getOrThrow(both)?.agents, [0, 1])
    for (const leavesHost of [false, undefined]) {
      const other = leavesHost === undefined ? away : { ...away, leavesHost }
      const met = membersOf("p", own, entriesOf([0, own], [1, other]))
      assert.isTrue(Result.isFailure(met) && met.failure.reason._tag === "HostsDiffer")
      const seen = membersOf("p", other, entriesOf([0, own], [1, other]))
      assert.isTrue(Result.isFailure(seen) && seen.failure.reason._tag === "HostsDiffer")
    }
  })

  it("agents of different hosts are refused by name, also where the other has refused already", () => {
    const own = registration(0, "a", "mine")
    const away = { ...registration(1, "b", "theirs"), host: { id: "two", name: "beta" } }
    const met = membersOf("p", own, entriesOf([0, own], [1, away]))
    assert.isTrue(Result.isFailure(met))
    if (Result.isSuccess(met)) return
    assert.strictEqual(met.failure.reason._tag, "HostsDiffer")
    assert.match(met.failure.message, /agent 0 runs on host alpha, agent 1 on host beta.*on one host/)
    const refusal = refusalOf("p", away, entriesOf([0, own], [1, away]), met.failure)
    const later = membersOf("p", own, entriesOf([0, own], [1, refusal]))
    assert.isTrue(Result.isFailure(later) && later.failure.reason._tag === "HostsDiffer")
  })
})
