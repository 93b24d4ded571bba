// SPDX-License-Identifier: Apache-2.0
/** Plans survive their JSON form, and every damage done to one is found and named. */
import { assert, describe, it } from "@effect/vitest"
import { coverageLaw, pairingLaw } from "@tensorferry/testing/planning/laws"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { planDigest, ReshardPlan, ReshardPlanSet } from "../../src/ir/ReshardPlan.ts"
import type { TransferOp } from "../../src/ir/TransferOp.ts"
import { checkPlan, checkPlans } from "../../src/planner/PlanCheck.ts"
import { plansOf, rosterOf } from "../reshard/executeSupport.ts"

const codec = Schema.fromJsonString(Schema.toCodecJson(ReshardPlanSet))
const plans = plansOf(rosterOf(2), rosterOf(3, { firstRank: 1 }), 4)

describe("JSON form", () => {
  it.effect("gives the same plans back, with the same digests", () =>
    Effect.gen(function* () {
      const set: ReshardPlanSet = { format: "tensorferry.reshard-plan-set", version: 1, plans }
      const text = yield* Schema.encodeEffect(codec)(set)
      const back = yield* Schema.decodeEffect(codec)(text)
      assert.deepStrictEqual(back.plans, plans)
      assert.deepStrictEqual(back.plans.map(planDigest), plans.map(planDigest))
      assert.deepStrictEqual(checkPlans(back.plans), [])
      assert.strictEqual(new Set(plans.map(planDigest)).size, 4)
    })
  )

  it("refuses text that is not a plan", () => {
    const decode = Schema.decodeUnknownResult(ReshardPlan)
    const [plan] = plans
    assert.isTrue(Result.isSuccess(decode(plan)))
    for (const wrong of [
      { ...plan, version: 3 },
      { ...plan, format: "other" },
      { ...plan, rank: -1 },
      { ...plan, taskCount: 1.5 },
      { ...plan, recvOps: undefined },
      { ...plan, sendOps: [{ ...plan!.sendOps[0], mySlice: [[3, 1]] }] },
      { ...plan, sendOps: [{ ...plan!.sendOps[0], wireDtype: "float7" }] },
      { ...plan, sendOps: [{ ...plan!.sendOps[0], taskId: 2 ** 53 }] }
    ]) {
      assert.isTrue(Result.isFailure(decode(wrong)), JSON.stringify(wrong).slice(0, 200))
    }
  })
})

type Damage = (ops: ReadonlyArray<TransferOp>, at: number) => ReadonlyArray<TransferOp>

const change =
  (alter: (op: TransferOp) => TransferOp): Damage =>
  (ops, at) =>
    ops.map((op, position) => (position === at ? alter(op) : op))

const shift = (slice: TransferOp["mySlice"], by: number): TransferOp["mySlice"] =>
  slice.map(([start, stop], dim) => (dim === 0 ? [start + by, stop + by] : [start, stop]))

/** Damages that every single application of must show in `checkPlans`. */
const damages: { readonly [name: string]: Damage } = {
  "a dropped operation": (ops, at) => ops.filter((_, position) => position !== at),
  "a doubled operation": (ops, at) => [...ops, ops[at]!],
  "a shifted region": change((op) => ({ ...op, mySlice: shift(op.mySlice, 1) })),
  "a shifted region of the peer": change((op) => ({ ...op, peerSlice: shift(op.peerSlice, 1) })),
  "a cut region": change((op) => ({
    ...op,
    mySlice: op.mySlice.map(([start, stop], dim) => (dim === 0 ? [start, stop - 1] : [start, stop]))
  })),
  "another peer": change((op) => ({ ...op, peerRank: op.peerRank + 1 })),
  "another task": change((op) => ({ ...op, taskId: op.taskId + 1000 })),
  "another wire type": change((op) => ({ ...op, wireDtype: "float64" })),
  "another name": change((op) => ({ ...op, paramName: "nobody" })),
  "the wrong direction": change((op) => ({ ...op, isSend: !op.isSend }))
}

describe("damaged plans", () => {
  for (const [name, damage] of Object.entries(damages)) {
    it(`${name} is found at every operation`, () => {
      let tried = 0
      for (const [position, plan] of plans.entries()) {
        for (const list of ["sendOps", "recvOps"] as const) {
          for (const at of plan[list].keys()) {
            const broken = plans.map((other, index) =>
              index === position ? { ...other, [list]: damage(other[list], at) } : other
            )
            const faults = checkPlans(broken)
            assert.isNotEmpty(faults, `rank ${plan.rank}, ${list}[${at}]`)
            for (const fault of faults) {
              assert.strictEqual(fault.kind, "InvalidPlan")
              assert.isAbove(fault.remedy.length, 0)
            }
            tried++
          }
        }
      }
      assert.isAbove(tried, 20)
    })
  }

  it("swapped receives are found although all bytes add up", () => {
    const [plan] = plans.filter(({ recvOps }) => recvOps.length > 1)
    const [first, second, ...rest] = plan!.recvOps
    const swapped = {
      ...plan!,
      recvOps: [{ ...first!, taskId: second!.taskId }, { ...second!, taskId: first!.taskId }, ...rest]
    }
    const all = plans.map((other) => (other === plan ? swapped : other))
    assert.isNotEmpty(checkPlans(all))
    assert.isNotEmpty(pairingLaw(all))
    assert.deepStrictEqual(coverageLaw(all), [])
  })

  it("plans of other layouts, of one rank twice, and lists with wrong names are found", () => {
    const others = plansOf(rosterOf(2), rosterOf(2), 4)
    assert.isNotEmpty(checkPlans([plans[0]!, others[1]!, ...plans.slice(2)]))
    assert.isNotEmpty(checkPlans([...plans, plans[0]!]))
    const [, plan] = plans
    assert.isNotEmpty(
      checkPlan({ ...plan!, destinationTensors: [...plan!.destinationTensors, plan!.destinationTensors[0]!] })
    )
    assert.isNotEmpty(checkPlan({ ...plan!, aliases: [["head", "nobody"]] }))
    assert.isNotEmpty(checkPlan({ ...plan!, aliases: [["norm.weight", "layers.0.up.weight"]] }))
    assert.isNotEmpty(checkPlan({ ...plan!, taskCount: 1 }))
  })
})
