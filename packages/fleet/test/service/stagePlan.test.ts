// SPDX-License-Identifier: Apache-2.0
/** From whom replicas take a version: one plan for all members, without those who are gone, and one parent for who joins. */
import { assert, describe, it } from "@effect/vitest"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"
import { piecesOf } from "../../src/edges/Pieces.ts"
import { stagePlan, wholeDemand } from "../../src/service/stagePlan.ts"
import { applyEntry, emptyFleet, type FleetMember, type FleetState } from "../../src/version/FleetLog.ts"
import { manifestOf } from "../../src/version/Manifest.ts"

const source: FleetMember = { id: "s", rank: 0, role: "source" }
const replicas = Array.from({ length: 9 }, (_, at): FleetMember => ({ id: `r${at}`, rank: at + 1, role: "replica" }))
const [v1, v2] = [manifestOf(1, "one", { w: "1" }), manifestOf(2, "two", { w: "2" })]
const bytes = 300 * 2 ** 20 + 7

const idle: FleetState = { ...emptyFleet, members: [source, ...replicas], current: v1, nextSerial: 2 }
const open = applyEntry(idle, { _tag: "Propose", manifest: v2, policy: { _tag: "All" }, by: "s" })
const without = (state: FleetState, id: string) => applyEntry(state, { _tag: "Remove", id, reason: "" })
const planOf = (fleet: FleetState, self: FleetMember, avoided: ReadonlyArray<string> = [], manifest = v2) =>
  stagePlan(fleet, self, manifest, wholeDemand(bytes), undefined, new Set(avoided))

/** Whoever follows parents from a replica comes to the source. */
const reachesSource = (fleet: FleetState, self: FleetMember): boolean =>
  Result.getOrThrow(planOf(fleet, self)).every(({ offset, parent: first }) => {
    let at = first
    for (let hops = 0; at.id !== source.id; hops++) {
      if (hops > replicas.length) return false
      at = Result.getOrThrow(planOf(fleet, at)).find((part) => part.offset === offset)!.parent
    }
    return true
  })

describe("a version of an open update", () => {
  it("is taken whole by every replica, along parents that lead to the source", () => {
    for (const self of replicas) {
      const parts = Result.getOrThrow(planOf(open, self))
      assert.strictEqual(
        parts.reduce((sum, part) => sum + part.bytes, 0),
        bytes
      )
      assert.isTrue(reachesSource(open, self))
    }
    const parents = new Set(
      replicas.flatMap((self) => Result.getOrThrow(planOf(open, self)).map(({ parent }) => parent.id))
    )
    assert.isAbove(parents.size, 1)
  })

  it("is cut alike after a member was removed, and never taken from it", () => {
    const cuts = (fleet: FleetState, self: FleetMember) =>
      Result.getOrThrow(planOf(fleet, self)).map(({ offset, bytes: length }) => `${offset} ${length}`)
    for (const gone of replicas) {
      const fleet = without(open, gone.id)
      for (const self of replicas.filter(({ id }) => id !== gone.id)) {
        assert.deepStrictEqual(cuts(fleet, self), cuts(open, self))
        assert.notInclude(
          Result.getOrThrow(planOf(fleet, self)).map(({ parent }) => parent.id),
          gone.id
        )
        assert.isTrue(reachesSource(fleet, self))
      }
    }
  })

  it("is taken from another where one did not give it, and from nobody where the only source is gone", () => {
    for (const self of replicas) {
      const [first] = Result.getOrThrow(planOf(open, self))
      const again = planOf(open, self, [first!.parent.id])
      if (first!.parent.id === source.id)
        assert.strictEqual(Result.getOrThrow(Result.flip(again)).reason._tag, "NoSource")
      else assert.notStrictEqual(Result.getOrThrow(again)[0]!.parent.id, first!.parent.id)
    }
    const headless = without(open, source.id)
    const faults = replicas.map((self) => planOf(headless, self)).filter(Result.isFailure)
    assert.isNotEmpty(faults)
  })
})

describe("a replica that joins", () => {
  const joiner: FleetMember = { id: "j", rank: 20, role: "replica" }

  it("takes the current version from a replica, another each time, and from a source where there is none", () => {
    const parentOf = (fleet: FleetState, avoided: ReadonlyArray<string> = []) =>
      Result.getOrThrow(planOf(fleet, joiner, avoided, v1))[0]!.parent
    const first = parentOf(idle)
    assert.strictEqual(first.role, "replica")
    assert.notStrictEqual(parentOf(idle, [first.id]).id, first.id)
    assert.strictEqual(parentOf({ ...idle, members: [source] }).id, source.id)
    const alone = planOf({ ...idle, members: [] }, joiner, [], v1)
    assert.strictEqual(Result.getOrThrow(Result.flip(alone)).reason._tag, "NoSource")
  })
})

describe("pieces of weights", () => {
  it("are views of bytes in the order of names, without gap or overlap, wherever they are cut", () => {
    const tensor = (length: number, byteOffset: number): Tensor =>
      ({ device: {}, dtype: "float32", shape: [length], strides: [1], byteOffset, storage: {} }) as unknown as Tensor
    const weights = new Map([
      ["b", tensor(5, 100)],
      ["a", tensor(3, 8)]
    ])
    const covered = (start: number, end: number) =>
      piecesOf(weights, start, end).map(({ byteOffset, shape, dtype }) => `${dtype} ${byteOffset}+${shape[0]}`)
    assert.deepStrictEqual(covered(0, 32), ["uint8 8+12", "uint8 100+20"])
    assert.deepStrictEqual(covered(10, 13), ["uint8 18+2", "uint8 100+1"])
    assert.deepStrictEqual(covered(12, 32), ["uint8 100+20"])
    assert.deepStrictEqual(covered(5, 5), [])
  })
})
