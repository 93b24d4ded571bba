// SPDX-License-Identifier: Apache-2.0
/** Which pairs of ranks count as slow, and for which rank others waited. */
import { assert, describe, it } from "@effect/vitest"
import { lateRankOf, pacesOf } from "../../src/report/pace.ts"
import type { RecordedRank, RunRecord } from "../../src/report/RunRecord.ts"

const steps = { handshake: 0, prepare: 0, pack: 0, local: 0, transfer: 0, unpack: 0, writeback: 0, outcome: 0 }

interface Rank {
  readonly transfer?: number
  readonly wait?: number
  readonly load?: number
  /** Seconds of the wire, by peer. */
  readonly wires?: Readonly<Record<number, number>>
}

const recordOf = (ranks: ReadonlyArray<Rank>, pairs: ReadonlyArray<readonly [number, number, number]>): RunRecord =>
  ({
    ranks: ranks.map(({ transfer = 0, wait = 0, load = 0, wires = {} }, rank) => ({
      rank,
      seconds: { ranks: 100, load, wait },
      copy: {
        phases: { ...steps, transfer, local: 0.5 },
        peers: Object.entries(wires).map(([peer, wire]) => ({
          peer: Number(peer),
          bytesSent: 0,
          bytesReceived: 1,
          path: "link",
          reason: "",
          seconds: { pack: 0, wire, unpack: 0 }
        }))
      } as unknown as RecordedRank["copy"]
    })),
    traffic: pairs.map(([from, to, bytes]) => ({ from, to, bytes, path: "link", reason: "" }))
  }) as unknown as RunRecord

const slow = (record: RunRecord) =>
  pacesOf(record)
    .filter(({ isSlow }) => isSlow)
    .map(({ from, to }) => [from, to])

describe("a pair of ranks", () => {
  const even = [{ transfer: 1 }, { transfer: 1 }, { transfer: 1 }, { transfer: 1 }]

  it("is slow where its bytes took more than twice as long as is usual", () => {
    const ring: ReadonlyArray<readonly [number, number, number]> = [0, 1, 2, 3].map((rank) => [
      rank,
      (rank + 1) % 4,
      1e9
    ])
    assert.deepStrictEqual(slow(recordOf(even, ring)), [])
    assert.deepStrictEqual(slow(recordOf([...even.slice(0, 3), { transfer: 2.1 }], ring)), [[2, 3]])
    assert.deepStrictEqual(slow(recordOf([...even.slice(0, 3), { transfer: 1.9 }], ring)), [])
  })

  it("has the seconds of its own wire where the driver knows them", () => {
    const record = recordOf(
      [...even.slice(0, 3), { transfer: 3, wires: { 0: 1, 1: 1, 2: 3 } }],
      [
        [0, 3, 1e9],
        [1, 3, 1e9],
        [2, 3, 1e9]
      ]
    )
    assert.deepStrictEqual(slow(record), [[2, 3]])
    assert.deepStrictEqual(
      pacesOf(record).map(({ seconds }) => seconds),
      [1, 1, 3]
    )
  })

  it("is never slow within a rank, in a blink, or where there are too few to say what is usual", () => {
    assert.deepStrictEqual(
      slow(
        recordOf(
          [{ transfer: 1 }, { transfer: 9 }],
          [
            [0, 0, 1e6],
            [0, 1, 1e6],
            [1, 0, 1e6]
          ]
        )
      ),
      []
    )
    const blinks = [{ transfer: 1e-4 }, { transfer: 1e-4 }, { transfer: 9e-4 }]
    assert.deepStrictEqual(
      slow(
        recordOf(blinks, [
          [0, 1, 1e6],
          [1, 2, 1e6],
          [2, 0, 1e6]
        ])
      ),
      []
    )
  })
})

describe("the rank for which others waited", () => {
  it("is the one that waited least, where others waited long", () => {
    assert.strictEqual(lateRankOf(recordOf([{ load: 1, wait: 9 }, { load: 10 }, { load: 2, wait: 8 }], [])), 1)
    assert.isUndefined(
      lateRankOf(
        recordOf(
          [
            { load: 10, wait: 0.5 },
            { load: 10, wait: 0.1 }
          ],
          []
        )
      )
    )
    assert.isUndefined(lateRankOf(recordOf([{ load: 1 }], [])))
  })
})
