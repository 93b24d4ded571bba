// SPDX-License-Identifier: Apache-2.0
/**
 * Updates that send changes give the bytes of whole updates, whatever the layouts, the types and the share that changed; and
 * who lost what they build upon is sent everything.
 */
import { assert, describe, it } from "@effect/vitest"
import { bitsOf } from "@tensorferry/core/base/DType"
import { elementCount } from "@tensorferry/core/base/Region"
import type { MeshPlan } from "@tensorferry/core/ir/MeshPlan"
import type { DeltaReport } from "@tensorferry/core/refit/DeltaUpdates"
import { makeRefitSession } from "@tensorferry/core/refit/RefitSession"
import { executeReshardPlan } from "@tensorferry/core/reshard/executeReshardPlan"
import { type Tensor, tensorBytes } from "@tensorferry/core/tensor/Tensor"
import { makeRandom } from "@tensorferry/testing/mutate"
import { meshPair } from "@tensorferry/testing/planning/meshArbitraries"
import {
  compact,
  dictOf,
  pairSpecs,
  pairText,
  plansOf,
  type Shards,
  setBytes,
  sidesOf,
  specsOf
} from "@tensorferry/testing/planning/meshSides"
import { runCluster, runRanks } from "@tensorferry/testing/VirtualCluster"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import { type DeltaOptions, makeDeltaUpdates } from "../../src/delta/makeDeltaUpdates.ts"

const unlimited: DeltaOptions = { baselineBytes: 2 ** 30 }

/** Bits of whole tensors, equal on every rank, cut as the plan says: elements are told apart by where they are in the whole. */
const fillSource = (plan: MeshPlan, shards: Shards, shares: ReadonlyArray<number>): void =>
  setBytes(shards, (at) => {
    const { sourceDtype, sourceShape } = plan.tensors[at]!
    const size = bitsOf(sourceDtype) / 8
    const bytes = new Uint8Array(elementCount(sourceShape!) * size)
    for (const [version, share] of shares.entries()) {
      const random = makeRandom(10_000 * plan.rank + 1000 * at + version)
      for (let element = 0; element < bytes.length / size; element++) {
        if (version > 0 && random.below(1000) >= share * 1000) continue
        // Finite numbers of any type.
        for (let byte = 0; byte < size; byte++) bytes[element * size + byte] = random.below(0x38)
      }
    }
    return bytes
  })

const bytesOf = (shards: Shards) =>
  shards.map((shard) => (shard === null ? null : tensorBytes(shard as Tensor)!.slice()))

interface Round {
  readonly share: number
  /** What happens on a rank before the update. */
  readonly before?: (rank: number, targets: Shards, round: number) => { readonly holds?: null } | undefined
}

/** One rank's part: changes into one destination, whole updates into another, which must be the same after every round. */
const runRounds = (plans: ReadonlyArray<MeshPlan>, rounds: ReadonlyArray<Round>, options = unlimited) =>
  runCluster({ size: plans.length }, (rank) =>
    Effect.gen(function* () {
      const plan = plans[rank]!
      const { sources, targets } = yield* sidesOf(plan)
      const whole = (yield* sidesOf(plan)).targets
      const updates = yield* makeDeltaUpdates(plan, options)
      const reports: Array<DeltaReport> = []
      setBytes(targets, () => 0x5a)
      for (const [round, { before }] of rounds.entries()) {
        fillSource(
          plan,
          sources,
          rounds.slice(0, round + 1).map(({ share }) => share)
        )
        const more = before?.(rank, targets, round) ?? {}
        const step = { version: `step ${round}`, ...more }
        reports.push(yield* updates.update(step, dictOf(plan, sources), dictOf(plan, targets)))
        setBytes(whole, () => 0x3c)
        yield* executeReshardPlan(plan, dictOf(plan, sources), dictOf(plan, whole))
        assert.deepStrictEqual(bytesOf(targets), bytesOf(whole), `rank ${rank}, round ${round}`)
      }
      return reports
    })
  )

const sum = (
  reports: ReadonlyArray<DeltaReport>,
  key: "whole" | "listed" | "unchanged" | "changedElements" | "repaired"
) => reports.reduce((total, report) => total + report[key], 0)

const atRound = (reports: ReadonlyArray<ReadonlyArray<DeltaReport>>, round: number) =>
  reports.map((each) => each[round]!)

const specs = specsOf("2:S0", "4:S1", [{ shape: [12, 40] }, { shape: [40, 64], from: "bfloat16" }])

describe("updates of changes", () => {
  it.live(
    "give the bytes of whole updates between generated layouts and types",
    () =>
      Effect.gen(function* () {
        const sampled = yield* Arbitrary.sampleEffect(meshPair({ isPartial: false }), { count: 25, seed: 11 })
        let [listed, remote] = [0, 0]
        for (const pair of sampled.map(compact)) {
          const plans = plansOf(pairSpecs(pair, "balanced"), 2 ** 20, 1)
          const reports = yield* Effect.mapError(
            runRounds(plans, [{ share: 1 }, { share: 0.05 }, { share: 0 }, { share: 0.9 }, { share: 0.2 }]),
            (error) => `${pairText(pair)}: ${error.message}`
          )
          listed += sum(reports.flat(), "listed")
          remote += reports.flat().filter(({ copy }) => copy.remoteOps > 0).length
        }
        assert.isAbove(listed, 40)
        assert.isAbove(remote, 40)
      }),
    120_000
  )

  it.live("send everything at first, then what changed, and nothing where nothing did", () =>
    Effect.gen(function* () {
      const reports = yield* runRounds(plansOf(specs), [{ share: 1 }, { share: 0.02 }, { share: 0 }, { share: 1 }])
      const [first, second, third, last] = [0, 1, 2, 3].map((round) => atRound(reports, round))
      assert.strictEqual(sum(first!, "listed") + sum(first!, "unchanged"), 0)
      assert.isAbove(sum(first!, "whole"), 3)
      assert.strictEqual(sum(second!, "whole"), 0)
      assert.isAbove(sum(second!, "listed"), 0)
      assert.deepStrictEqual([sum(third!, "whole"), sum(third!, "listed")], [0, 0])
      // More changed than is worth listing.
      assert.isAbove(sum(last!, "whole"), 3)
      const bytes = (one: ReadonlyArray<DeltaReport>) =>
        one.reduce((total, { copy }) => total + copy.remoteBytesSent + copy.localBytes, 0)
      assert.isBelow(bytes(second!), 0.1 * bytes(first!))
      assert.strictEqual(bytes(third!), 0)
      // Changes take their elements and four bytes each.
      const listedBytes = sum(second!, "changedElements")
      assert.isAtMost(bytes(second!), 8 * listedBytes)
    })
  )

  it.live("cast what changed, at either end", () =>
    Effect.gen(function* () {
      for (const [from, to] of [
        ["float32", "bfloat16"],
        ["bfloat16", "float32"],
        ["float32", "float8_e4m3fn"]
      ] as const) {
        const plans = plansOf(specsOf("2:S0", "2@1:S1", [{ shape: [30, 50], from, to }]))
        const reports = yield* runRounds(plans, [{ share: 1 }, { share: 0.05 }, { share: 0.3 }])
        assert.isAbove(sum(atRound(reports, 1), "listed"), 0)
      }
    })
  )

  it.live("send everything to a rank that lost its version, and changes to the others", () =>
    Effect.gen(function* () {
      const lost = (rank: number, targets: Shards, round: number) => {
        if (rank !== 2 || round !== 2) return undefined
        setBytes(targets, () => 0x11)
        return { holds: null }
      }
      const rounds = [{ share: 1 }, { share: 0.05 }, { share: 0.05, before: lost }, { share: 0.05 }]
      const reports = yield* runRounds(plansOf(specs), rounds)
      const there = atRound(reports, 2)
      assert.isAbove(sum(there, "whole"), 0)
      assert.isAbove(sum(there, "listed") + sum(there, "unchanged"), sum(there, "whole"))
      assert.strictEqual(sum(atRound(reports, 3), "whole"), 0)
    })
  )

  it.live("find a destination that others wrote to, and send that region whole", () =>
    Effect.gen(function* () {
      const spoil = (rank: number, targets: Shards, round: number) => {
        if (rank === 1 && round === 2) tensorBytes(targets[0] as Tensor)![5]! ^= 1
        return undefined
      }
      const rounds = [{ share: 1 }, { share: 0.05 }, { share: 0, before: spoil }, { share: 0.05 }]
      const reports = yield* runRounds(plansOf(specs), rounds, { ...unlimited, verify: true })
      assert.deepStrictEqual(
        [0, 1, 2, 3].map((round) => atRound(reports, round)[0]!.repaired),
        [0, 0, 1, 0]
      )
    })
  )

  it.live("keep copies within their budget, and send the rest whole", () =>
    Effect.gen(function* () {
      const small = 12 * 40 * 4
      const rounds = [{ share: 1 }, { share: 0.02 }, { share: 0.02 }]
      const reports = yield* runRounds(plansOf(specs), rounds, { baselineBytes: small })
      for (const report of reports.flat()) assert.isAtMost(report.baselineBytes, small)
      const last = atRound(reports, 2)
      assert.isAbove(sum(last, "whole"), 0)
      assert.isAbove(sum(last, "listed") + sum(last, "unchanged"), 0)
    })
  )
})

describe("copies of what was sent", () => {
  it.live("go to regions that change little, and are not compared with before they were written", () =>
    Effect.gen(function* () {
      const plans = plansOf(specsOf("1:R", "1@1:R", [{ shape: [40, 40] }, { shape: [40, 40] }]))
      const [reports] = yield* runCluster({ size: 2 }, (rank) =>
        Effect.gen(function* () {
          const plan = plans[rank]!
          const { sources, targets } = yield* sidesOf(plan)
          const updates = yield* makeDeltaUpdates(plan, { baselineBytes: 40 * 40 * 4 })
          const reports: Array<DeltaReport> = []
          const random = makeRandom(9)
          const held: Shards = [0, 1].map(() => null)
          const wanted = [new Uint8Array(6400), new Uint8Array(6400)]
          for (let round = 0; round < 6; round++) {
            for (const [at, bytes] of wanted.entries()) {
              // The first changes as a whole in every round; the second hardly, and to what new memory holds here.
              for (let place = 0; place < 6400; place += 4) {
                const element = bytes.subarray(place, place + 4)
                if (at === 0) element[0] = random.below(256)
                else if (round === 0) element.fill(random.isOneIn(4) ? 1 : 0xa5)
                else if (random.isOneIn(20)) element.fill(0xa5)
              }
            }
            setBytes(rank === 0 ? sources : held, (at) => wanted[at]!)
            reports.push(yield* updates.update({ version: `${round}` }, dictOf(plan, sources), dictOf(plan, targets)))
            if (rank === 1) assert.deepStrictEqual(bytesOf(targets), wanted, `round ${round}`)
          }
          return reports
        })
      )
      const listed = reports!.map((report) => report.listed)
      assert.strictEqual(listed[0], 0)
      assert.strictEqual(listed.at(-1), 1)
      for (const { baselineBytes } of reports!) assert.isAtMost(baselineBytes, 6400)
    })
  )
})

describe("failed updates of changes", () => {
  it.live("fail on every rank, name why, and are followed by a whole one", () =>
    Effect.gen(function* () {
      const plans = plansOf(specs)
      const exits = yield* runRanks({ size: plans.length }, (rank) =>
        Effect.gen(function* () {
          const plan = plans[rank]!
          const { sources, targets } = yield* sidesOf(plan)
          const updates = yield* makeDeltaUpdates(plan, unlimited)
          const dicts = [dictOf(plan, sources), dictOf(plan, targets)] as const
          fillSource(plan, sources, [1])
          yield* updates.update({ version: "a" }, ...dicts)
          const without = rank === 0 ? undefined : dicts[0]
          const missing = yield* Effect.flip(updates.update({ version: "b" }, without, dicts[1]))
          const apart = yield* Effect.flip(updates.update({ version: `c ${rank}` }, ...dicts))
          assert.strictEqual(updates.holds(), undefined)
          const { listed } = yield* updates.update({ version: "d" }, ...dicts)
          assert.strictEqual(updates.holds(), "d")
          return { missing: missing.reason._tag, apart: apart.reason._tag, listed }
        })
      )
      for (const exit of exits) {
        assert.isTrue(Exit.isSuccess(exit), String(exit))
        if (Exit.isSuccess(exit))
          assert.deepStrictEqual(exit.value, { missing: "TensorMissing", apart: "InvalidPlan", listed: 0 })
      }
    })
  )

  it.live("refuse plans that reduce", () =>
    Effect.gen(function* () {
      const plans = plansOf(specsOf("2:P(sum)", "1:R", [{ shape: [4, 4] }]))
      const exits = yield* runRanks({ size: plans.length }, (rank) =>
        Effect.scoped(makeDeltaUpdates(plans[rank]!, unlimited))
      )
      assert.isTrue(exits.some(Exit.isFailure))
    })
  )
})

describe("sessions", () => {
  it.live("take changes as a patch to the version in use, and everything after an update that was given up", () =>
    Effect.gen(function* () {
      const plans = plansOf(specsOf("1:S0", "1@1:R", [{ shape: [40, 30], from: "bfloat16" }]))
      const found = yield* runCluster({ size: 2 }, (rank) =>
        Effect.gen(function* () {
          const plan = plans[rank]!
          const { sources, targets } = yield* sidesOf(plan)
          const updates = yield* makeDeltaUpdates(plan, unlimited)
          const shares = [1, 0.05, 0.05, 0.05, 0.05]
          if (rank === 0) {
            // Sends what the session below asks for.
            const reports: Array<DeltaReport> = []
            for (const version of shares.keys()) {
              fillSource(plan, sources, shares.slice(0, version + 1))
              reports.push(yield* updates.update({ version: `${version}` }, dictOf(plan, sources)))
            }
            return { whole: reports.map(({ whole }) => whole), faults: [] as Array<string> }
          }
          const live = targets[0] as Tensor
          const session = yield* makeRefitSession({
            tensors: new Map([["layers.0.weight", { dtype: "bfloat16", shape: [40, 30], live }]])
          })
          const faults: Array<string> = []
          const expected = (count: number) => {
            const { sourceShape } = plans[0]!.tensors[0]!
            const bytes = new Uint8Array(elementCount(sourceShape!) * 2)
            const shard = { ...live, shape: sourceShape! }
            fillSource(plans[0]!, [shard], shares.slice(0, count))
            bytes.set(tensorBytes(shard)!)
            return bytes
          }
          const judge = (count: number) => {
            const got = tensorBytes(live)!.slice()
            if (Buffer.compare(got, expected(count)) !== 0) faults.push(`after ${count}`)
            tensorBytes(live)!.set(got)
          }
          yield* session.begin({ label: "0" })
          yield* session.receiveChanges(updates, { version: "0" })
          let { version } = yield* session.commit()
          judge(1)
          const patch = Effect.fnUntraced(function* (count: number) {
            yield* session.begin({ label: `${count}`, kind: "patch", base: version.id })
            yield* session.receiveChanges(updates, { version: `${count}` })
          })
          yield* patch(1)
          version = (yield* session.commit()).version
          judge(2)
          // Given up: the weights in use stay, and what came after them fits them no more.
          yield* patch(2)
          yield* session.abort()
          judge(2)
          yield* patch(3)
          version = (yield* session.commit()).version
          judge(4)
          yield* patch(4)
          yield* session.commit()
          judge(5)
          return { whole: [], faults }
        })
      )
      assert.deepStrictEqual(found[1]!.faults, [])
      assert.deepStrictEqual(found[0]!.whole, [1, 0, 0, 1, 0])
    })
  )
})
