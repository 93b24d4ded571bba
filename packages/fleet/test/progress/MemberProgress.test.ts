// SPDX-License-Identifier: Apache-2.0
/** What a member states about versions on their way, and that the statement stays small whatever happens. */
import { assert, describe, it } from "@effect/vitest"
import { KeyValueStore, KeyValueStoreMemory } from "@tensorferry/bus"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Stream from "effect/Stream"
import { fractionOf, mostParts, mostVersions, ProgressRecord } from "../../src/progress/MemberProgress.ts"
import { progressRoot, readProgress, reportProgress } from "../../src/progress/reportProgress.ts"
import { testTimes } from "../service/weights.ts"

const recordOf = (): ProgressRecord => new ProgressRecord({ id: "1-x", host: "h", process: 7, beat: 1, dead: 4 })

describe("a statement of progress", () => {
  it("says from whom bytes come, also where the first giver goes and another gives the rest", () => {
    const record = recordOf()
    record.begin(3, 100, 10)
    record.take(3, "0-a", 0, 100)
    record.arrived(3, 0, 40)
    assert.strictEqual(fractionOf(record.stated.versions[0]!), 0.4)
    record.take(3, "2-b", 0, 60)
    record.arrived(3, 0, 50)
    const [version] = record.stated.versions
    assert.deepStrictEqual(version!.parts, [
      { from: "0-a", stripe: 0, bytes: 40, done: 40 },
      { from: "2-b", stripe: 0, bytes: 60, done: 50 }
    ])
    assert.strictEqual(fractionOf(version!), 0.9)
    record.arrived(3, 0, 10)
    record.staged(3, 20)
    record.live(3, 30)
    assert.deepInclude(record.stated.versions[0], { begunAt: 10, stagedAt: 20, liveAt: 30, tries: 1 })
    assert.strictEqual(record.stated.received, 100)
  })

  it("counts tries, and leaves a giver out from whom nothing came", () => {
    const record = recordOf()
    record.begin(1, 8, 1)
    record.take(1, "0-a", 0, 8)
    record.begin(1, 8, 2)
    record.take(1, "2-b", 0, 8)
    assert.deepInclude(record.stated.versions[0], {
      begunAt: 1,
      tries: 2,
      parts: [{ from: "2-b", stripe: 0, bytes: 8, done: 0 }]
    })
  })

  it("stays within 8 kB over hundreds of versions, each from hundreds of members in hundreds of stripes", () => {
    const record = recordOf()
    for (let serial = 1; serial <= 200; serial++) {
      record.begin(serial, 2 ** 50, serial)
      for (let stripe = 0; stripe < 300; stripe++) {
        record.take(serial, `${stripe}-01234567-89ab-cdef-0123-456789abcdef`, stripe * 2 ** 40, 2 ** 40)
        record.arrived(serial, stripe * 2 ** 40, 2 ** 40)
      }
    }
    const { versions, received } = record.stated
    assert.lengthOf(versions, mostVersions)
    assert.lengthOf(versions.at(-1)!.parts, mostParts)
    assert.strictEqual(
      versions.at(-1)!.parts.reduce((sum, { done }) => sum + done, 0),
      300 * 2 ** 40
    )
    assert.strictEqual(received, 200 * 300 * 2 ** 40)
    assert.isBelow(JSON.stringify(record.stated).length, 8192)
  })

  it("is left out where it is longer than members make it, or is none", () => {
    const { stated } = recordOf()
    const part = { from: "0-a", stripe: 0, bytes: 1, done: 1 }
    const version = { serial: 1, bytes: 1, begunAt: 1, stagedAt: null, liveAt: null, tries: 1, parts: [part] }
    const texts = [
      { ...stated, id: "kept", versions: [version] },
      { ...stated, id: "long", versions: Array.from({ length: mostVersions + 1 }, () => version) },
      { ...stated, id: "many", versions: [{ ...version, parts: Array.from({ length: mostParts + 1 }, () => part) }] },
      { ...stated, id: "less", versions: [{ ...version, bytes: -1 }] },
      "nothing"
    ].map((each, at): [string, string] => [`key ${at}`, JSON.stringify(each)])
    assert.deepStrictEqual([...readProgress(new Map([...texts, ["key", "{"]])).keys()], ["kept"])
  })

  it.live("is in the store while the scope is open, and not written more than once a second", () =>
    Effect.gen(function* () {
      const store = yield* KeyValueStore
      let puts = 0
      const put = (...given: Parameters<typeof store.put>) => {
        puts += 1
        return store.put(...given)
      }
      const root = progressRoot("a b")
      yield* Effect.scoped(
        Effect.gen(function* () {
          const progress = yield* reportProgress({ ...store, put }, "a b", "1-x", testTimes)
          yield* progress.begin(1, 1000)
          yield* progress.take(1, "0-a", 0, 1000)
          for (let at = 0; at < 1000; at++) yield* progress.arrived(1, 0, 1)
          const stated = Stream.map(store.watch(root), (entries) => readProgress(entries).get("1-x"))
          const whole = yield* Stream.runHead(Stream.filter(stated, (each) => each?.received === 1000))
          assert.strictEqual(Option.getOrThrow(whole)!.process, process.pid)
          assert.isAtMost(puts, 2)
        })
      )
      assert.strictEqual((yield* store.list(root)).size, 0)
    }).pipe(Effect.provide(KeyValueStoreMemory.layerMemory))
  )
})
