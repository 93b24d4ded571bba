// SPDX-License-Identifier: Apache-2.0
/**
 * Holds planners to the laws of the kit over generated models in two layouts each, and shows what the laws say of planners
 * with a fault. Exits with 1 where the shipped planner breaks a law, or a fault goes unseen.
 *
 * Usage: node run.ts [RUNS]
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import type { ReshardPlan } from "@tensorferry/core/ir/ReshardPlan"
import type { Roster } from "@tensorferry/core/layout/Roster"
import { indexRosters, planRank } from "@tensorferry/core/planner/RosterPlanner"
import { arbitraries, laws, oracle } from "@tensorferry/testing"
import * as Arbitrary from "effect/Arbitrary"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"

/** All ranks' plans for an update from one layout to another. */
type Planner = (source: Roster, destination: Roster) => ReadonlyArray<ReshardPlan>

const shipped: Planner = (source, destination) =>
  Result.match(indexRosters(source, destination), {
    onFailure: () => [],
    onSuccess: (index) =>
      Array.from({ length: oracle.jobSize(source, destination) }, (_, rank) => planRank(index, rank))
  })

/** The shipped planner with every rank's plan changed. */
const faulty =
  (change: (plan: ReshardPlan) => Partial<ReshardPlan>): Planner =>
  (source, destination) =>
    shipped(source, destination).map((plan) => ({ ...plan, ...change(plan) }))

const faults: { readonly [name: string]: Planner } = {
  "forgets what a rank has already": faulty(({ rank, sendOps, recvOps }) => ({
    sendOps: sendOps.filter((op) => op.peerRank !== rank),
    recvOps: recvOps.filter((op) => op.peerRank !== rank)
  })),
  "begins regions one element early": faulty(({ recvOps }) => ({
    recvOps: recvOps.map((op) => ({
      ...op,
      mySlice: op.mySlice.map(([start, stop]) => [Math.max(0, start - 1), stop] as const)
    }))
  })),
  "sends another region than is received": faulty(({ sendOps }) => ({
    sendOps: sendOps.map((op) => ({
      ...op,
      mySlice: op.mySlice.map(([start, stop]) =>
        start === 0 ? ([start, stop] as const) : ([0, stop - start] as const)
      )
    }))
  }))
}

/** What the laws say of a planner's plans for a pair; nothing where all hold. */
const violations = (planner: Planner, pair: arbitraries.ModelPair): ReadonlyArray<string> =>
  Result.match(arbitraries.layoutsOf(pair), {
    onFailure: (error) => [error.message],
    onSuccess: ({ source, destination }) => {
      const plans = planner(source.roster, destination.roster)
      return [...laws.coverageLaw(plans), ...laws.pairingLaw(plans), ...laws.payloadLaw(plans)]
    }
  })

const pairs = arbitraries.modelPair({ limits: { tp: 4, pp: 2, dp: 2 } })

const judge = (planner: Planner, runs: number) =>
  Arbitrary.checkEffect(pairs, (pair) => laws.holds(violations(planner, pair)), { runs, seed: "example" })

const describeSide = ({ tp, pp, dp }: { readonly tp: number; readonly pp: number; readonly dp: number }) =>
  `tp=${tp},pp=${pp},dp=${dp}`

const runs = Number(process.argv[2] ?? 100)

const program = Effect.gen(function* () {
  const verdict = yield* judge(shipped, runs)
  if (verdict._tag !== "Passed") {
    yield* Console.error(`The shipped planner: ${Arbitrary.formatCheckFailure(verdict)}`)
    process.exitCode = 1
    return
  }
  yield* Console.log(`The shipped planner keeps all laws in ${verdict.runs} pairs of layouts.`)
  for (const [name, planner] of Object.entries(faults)) {
    const found = yield* judge(planner, runs)
    if (found._tag !== "Falsified") {
      yield* Console.error(`The planner that ${name} was not caught.`)
      process.exitCode = 1
      continue
    }
    const { tensors, source, destination, placement } = found.shrunkInput
    const shapes = tensors.map(({ lengths }) => lengths.join("x")).join(" and ")
    yield* Console.log(`\nThe planner that ${name} was caught at pair ${found.runs}; the smallest that shows it:`)
    yield* Console.log(`  ${shapes}, ${describeSide(source)} to ${describeSide(destination)}, ${placement}`)
    yield* Console.log(`  ${violations(planner, found.shrunkInput)[0]}`)
  }
})

NodeRuntime.runMain(program)
