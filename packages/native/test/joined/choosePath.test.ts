// SPDX-License-Identifier: Apache-2.0
/** Paths of any ranks: the same seen from both ends, by what these two state alone, and settled by all ranks in few steps. */
import { assert, describe, it } from "@effect/vitest"
import { makeRandom, type Random } from "@tensorferry/testing/mutate"
import { choosePath, type RankStatement, type StatedWire, spansAll, worldPaths } from "../../src/joined/choosePath.ts"

const orders = { fast: 10, slow: 20, slower: 30 } as const
const names = Object.keys(orders) as ReadonlyArray<keyof typeof orders>

const wireOf = (random: Random, name: keyof typeof orders): StatedWire => {
  const state = random.pick(["closed", "closed", "open", "lacking"] as const)
  return {
    name,
    order: orders[name],
    isStaged: false,
    hasToken: !random.isOneIn(5),
    state,
    why: state === "lacking" ? "not here" : ""
  }
}

const statementOf = (random: Random, rank: number): RankStatement => ({
  rank,
  host: random.pick(["a", "b", "c"]),
  space: random.pick(["1", "1", "2"]),
  network: random.pick(["1", "1", "2"]),
  direct: random.isOneIn(12) ? "other" : "memory",
  spansHosts: false,
  isDirectAllowed: !random.isOneIn(6),
  wires: names.filter(() => !random.isOneIn(5)).map((name) => wireOf(random, name))
})

/** The path as one would look it up by hand, without a reason. */
const expected = (one: RankStatement, other: RankStatement): string | undefined => {
  const isOneHost = one.host === other.host
  const isDirect = isOneHost && one.direct === other.direct && one.isDirectAllowed && other.isDirectAllowed
  if (isDirect && one.space === other.space) return one.direct
  const hasLoopback = isOneHost && one.network === other.network
  const joins = ({ wires }: RankStatement, name: string) =>
    wires.some((wire) => wire.name === name && wire.state !== "lacking" && (hasLoopback || wire.hasToken))
  const rest = isDirect && hasLoopback ? one.direct : undefined
  return names.find((name) => joins(one, name) && joins(other, name)) ?? rest
}

describe("choosePath", () => {
  it("is the same from both ends, takes the first that both have, and says why", () => {
    const seen = new Set<string | undefined>()
    for (let seed = 0; seed < 3000; seed++) {
      const random = makeRandom(seed)
      const [one, other] = [statementOf(random, random.below(4)), statementOf(random, 4 + random.below(4))]
      const chosen = choosePath(one, other)
      assert.deepStrictEqual(choosePath(other, one), chosen, `seed ${seed}`)
      assert.strictEqual(chosen.name, expected(one, other), `seed ${seed}: ${chosen.reason}`)
      assert.isNotEmpty(chosen.reason)
      seen.add(chosen.name)
    }
    assert.sameMembers([...seen], ["memory", "other", ...names, undefined])
  })

  it("names the rank that lacks a wire, and why, once where both lack it alike", () => {
    const lacking: StatedWire = {
      name: "fast",
      order: 10,
      isStaged: false,
      hasToken: true,
      state: "lacking",
      why: "no library"
    }
    const has: StatedWire = { ...lacking, state: "open", why: "" }
    const slow: StatedWire = { ...has, name: "slow", order: 20 }
    const at = (rank: number, host: string, ...wires: ReadonlyArray<StatedWire>): RankStatement => ({
      ...{ rank, host, space: "1", network: "1", direct: "memory", spansHosts: false, isDirectAllowed: true, wires }
    })
    assert.deepStrictEqual(choosePath(at(1, "b", lacking, slow), at(0, "a", has, slow)), {
      name: "slow",
      reason: "two hosts; no fast (rank 1: no library)"
    })
    assert.deepStrictEqual(choosePath(at(0, "a", lacking), at(1, "b", lacking)), {
      reason: "two hosts; no fast (both ranks: no library)"
    })
    assert.deepStrictEqual(choosePath(at(0, "a", { ...has, hasToken: false }), at(1, "b")), {
      reason: "two hosts; no fast (rank 0: without a token it stays on its host; rank 1: not registered)"
    })
  })
})

describe("worldPaths", () => {
  /** Ranks open what they are asked to, where they can, and state that, until all see that nothing is left to do. */
  const settle = (random: Random, given: ReadonlyArray<RankStatement>) => {
    let statements = given
    for (let step = 0; step <= 2 * names.length + 1; step++) {
      const views = statements.map((_, rank) => worldPaths(statements, rank))
      for (const view of views) {
        assert.strictEqual(view.isFinal, views[0]!.isFinal)
        assert.strictEqual(view.hasGap, views[0]!.hasGap)
        assert.deepStrictEqual(view.names, views[0]!.names)
      }
      if (views[0]!.isFinal) return { statements, view: views[0]! }
      assert.isTrue(views.some(({ toOpen }) => toOpen.length > 0))
      statements = statements.map((statement, rank) => ({
        ...statement,
        wires: statement.wires.map((wire): StatedWire => {
          if (!views[rank]!.toOpen.includes(wire.name)) return wire
          assert.strictEqual(wire.state, "closed")
          return random.isOneIn(3) ? { ...wire, state: "lacking", why: "it failed" } : { ...wire, state: "open" }
        })
      }))
    }
    return assert.fail("ranks did not settle")
  }

  it("settles any ranks: whatever two of them take is open at both", () => {
    for (let seed = 0; seed < 500; seed++) {
      const random = makeRandom(seed)
      const size = 1 + random.below(9)
      const { statements, view } = settle(
        random,
        Array.from({ length: size }, (_, rank) => statementOf(random, rank))
      )
      const taken = new Set<string>()
      let hasGap = false
      for (const one of statements) {
        for (const other of statements.slice(one.rank + 1)) {
          const { name } = choosePath(one, other)
          if (name === undefined) hasGap = true
          else taken.add(name)
          for (const { wires } of [one, other]) {
            const wire = wires.find((each) => each.name === name)
            if (wire !== undefined) assert.strictEqual(wire.state, "open", `seed ${seed}`)
          }
        }
      }
      assert.sameMembers([...view.names], [...taken], `seed ${seed}`)
      assert.strictEqual(view.hasGap, hasGap, `seed ${seed}`)
    }
  })

  it("leaves all to the backend within hosts where that of every rank spans them", () => {
    const at = (rank: number, spansHosts: boolean, isDirectAllowed = true): RankStatement => ({
      ...{ rank, host: `${rank}`, space: "1", network: "1", direct: "memory", spansHosts, isDirectAllowed },
      wires: [{ name: "fast", order: 10, isStaged: true, hasToken: true, state: "closed", why: "" }]
    })
    const all = [at(0, true), at(1, true), at(2, true)]
    assert.deepStrictEqual(worldPaths(all, 1), { toOpen: [], isFinal: true, names: ["memory"], hasGap: false })
    assert.include(choosePath(all[0]!, all[2]!, spansAll(all)).reason, "memory joins all ranks")
    for (const odd of [at(2, false), at(2, true, false)]) {
      assert.deepStrictEqual(worldPaths([all[0]!, all[1]!, odd], 0).names, ["fast"])
    }
  })

  it("looks at ranks that state the same once, so thousands of them take no time", () => {
    const random = makeRandom(1)
    const wires = names.map((name): StatedWire => ({ ...wireOf(random, name), state: "open", hasToken: true }))
    const statements = Array.from(
      { length: 4096 },
      (_, rank): RankStatement => ({
        ...{
          rank,
          host: `${rank >> 3}`,
          space: "1",
          network: "1",
          direct: "memory",
          spansHosts: false,
          isDirectAllowed: true,
          wires
        }
      })
    )
    const begun = performance.now()
    assert.deepStrictEqual(worldPaths(statements, 7), {
      toOpen: [],
      isFinal: true,
      names: ["fast", "memory"],
      hasGap: false
    })
    assert.isBelow(performance.now() - begun, 5000)
  })
})
