// SPDX-License-Identifier: Apache-2.0
/** `tensorferry fleet` on stores with made-up fleets: text, documents, what is refused and how. */
import { assert, describe, it } from "@effect/vitest"
import { freePort } from "@tensorferry/testing/machine/freePort"
import * as Effect from "effect/Effect"
import { runHere } from "../support/here.ts"
import { beat, type MadeUp, madeUpMember, madeUpVersion, putFleet, served, servedStore, took } from "./madeUp.ts"

const plain = served(3)
/** Version 3 was given up after 20 seconds, and rank 3 took version 2 slowly. */
const fleet: MadeUp = {
  ...plain,
  entries: [
    ...plain.entries,
    { _tag: "Propose", manifest: madeUpVersion(3), policy: { _tag: "All" }, by: madeUpMember(0).id, at: 20_000 },
    { _tag: "Abort", serial: 3, culprits: [madeUpMember(3).id], reason: "They were late.", at: 40_000 }
  ],
  progress: plain.progress.map((stated, rank) => (rank === 0 ? stated : took(stated, 2, [0, 0.2, 0.3, 1.9][rank]!)))
}

/** Runs a command on a store that has the fleet, with members that beat. */
const onFleet = (args: ReadonlyArray<string>, options: { readonly token?: string } = {}) =>
  Effect.gen(function* () {
    const { port, store } = yield* servedStore(options)
    yield* putFleet(store, fleet)
    yield* beat(store, fleet.name, () => fleet.reports)
    return yield* Effect.promise(() => runHere([...args, "--store", `127.0.0.1:${port}`]))
  }).pipe(Effect.scoped)

describe("tensorferry fleet", () => {
  it.live("status lists members with what they serve, and says whether they live", () =>
    Effect.gen(function* () {
      const { code, stdout, stderr } = yield* onFleet(["fleet", "status"])
      assert.deepStrictEqual([code, stderr], [0, ""])
      assert.match(stdout, /^Fleet prod: version 2 "step 2"\. 1 source; 3 of 3 replicas serve \(3 serving\)\.\n/)
      assert.match(stdout, /\n +3 {2}replica {2}host-3 {2}2 "step 2" {2}serving +0\.\d s\n/)
    })
  )

  it.live("status as a document has every member and no update but an open one", () =>
    Effect.gen(function* () {
      const { stdout } = yield* onFleet(["fleet", "status", "--json", "--fleet", "prod"])
      const found = JSON.parse(stdout)
      assert.deepInclude(found, { ok: true, name: "prod", open: null, current: { serial: 2, label: "step 2" } })
      assert.lengthOf(found.members, 4)
      assert.deepInclude(found.members[3], { rank: 3, role: "replica", host: "host-3", state: "serving" })
      assert.isBelow(found.members[3].silentSeconds, 1)
    })
  )

  it.live("history lists updates newest first, with who was slow and who is to blame", () =>
    Effect.gen(function* () {
      const { code, stdout } = yield* onFleet(["fleet", "history"])
      assert.strictEqual(code, 0)
      const [, , aborted, done] = stdout.split("\n")
      assert.match(aborted!, /^ +3 {2}step 3 {2}all +given up +20 s .*rank 3 on host-3: They were late\.$/)
      assert.match(done!, /^ +2 {2}step 2 {2}all +committed +3\.0 s +1\.0 s {2}rank 3 on host-3, 1\.9 s$/)
    })
  )

  it.live("explain tells one version's life, and what to do", () =>
    Effect.gen(function* () {
      const { code, stdout } = yield* onFleet(["fleet", "explain", "2"])
      assert.strictEqual(code, 0)
      assert.include(stdout, 'Version 2 "step 2", policy all: committed after 3.0 s.')
      assert.match(
        stdout,
        /1\.9 s {2}rank 3 on host-3 has received and proven it, in 1\.9 s\n +2\.0 s {2}replicas are told/
      )
      assert.include(stdout, "rank 3 on host-3 was the slowest")
      const known = yield* onFleet(["fleet", "explain", "9", "--json"])
      assert.strictEqual(known.code, 1)
      assert.deepInclude(JSON.parse(known.stdout).errors[0], { reason: "NotFound" })
      assert.include(known.stdout, "It has 3, 2")
    })
  )

  it.live(
    "says what is wrong where the store is away, guarded, or has no such fleet",
    () =>
      Effect.gen(function* () {
        const port = yield* Effect.promise(() => freePort())
        const away = yield* Effect.promise(() => runHere(["fleet", "status", "--store", `127.0.0.1:${port}`]))
        assert.strictEqual(away.code, 1)
        assert.match(away.stderr, /127\.0\.0\.1:\d+/)
        const refused = yield* onFleet(["fleet", "status", "--json"], { token: "secret" })
        assert.strictEqual(refused.code, 1)
        assert.deepInclude(JSON.parse(refused.stdout).errors[0], { tag: "KeyValueError", reason: "Refused" })
        const other = yield* onFleet(["fleet", "status", "--fleet", "test"])
        assert.strictEqual(other.code, 1)
        assert.include(other.stderr, 'It has "prod".')
        const wrong = yield* Effect.promise(() => runHere(["fleet", "status", "--store", "nowhere"]))
        assert.strictEqual(wrong.code, 2)
        assert.include(wrong.stderr, "Write HOST:PORT, or the URL of an etcd.")
      }),
    30_000
  )
})
