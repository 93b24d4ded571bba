// SPDX-License-Identifier: Apache-2.0
/**
 * Rings that do not keep their word, each in one way. A test of the cases demands that they find every one; those of order
 * show only where the device makes use of the order that is missing.
 */
import type { RingStep } from "@tensorferry/core/service/ReplayRingKernels"
import type { OpenRing } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"

/** One way not to keep a word. */
export interface RingLie {
  /** What it does, as a test is called. */
  readonly name: string
  /** The order that it breaks shows only under some orders of the device. */
  readonly isOfOrder: boolean
  /** The ring that lies. */
  readonly tell: (ring: OpenRing) => OpenRing
}

const lie = (
  name: string,
  change: (steps: ReadonlyArray<RingStep>) => ReadonlyArray<RingStep>,
  isOfOrder = false
): RingLie => ({ name, isOfOrder, tell: (ring) => ({ ...ring, run: (steps) => ring.run(change(steps)) }) })

const each = (change: (step: RingStep) => RingStep) => (steps: ReadonlyArray<RingStep>) => steps.map(change)

const without = (wrong: (step: RingStep) => boolean) => (steps: ReadonlyArray<RingStep>) =>
  steps.filter((step) => !wrong(step))

/** Rows reserved only right before they are committed. */
const reservedLate = (steps: ReadonlyArray<RingStep>): ReadonlyArray<RingStep> =>
  without(({ _tag }) => _tag === "Reserve")(steps).flatMap((step) =>
    step._tag === "Commit"
      ? [...steps.filter((other) => other._tag === "Reserve" && other.at === step.at), step]
      : [step]
  )

/** All lies. */
export const ringLies: ReadonlyArray<RingLie> = [
  lie(
    "overwrites rows that a batch is drawn from",
    without((step) => step._tag === "Wait" && step.stream === 1),
    true
  ),
  lie(
    "commits rows that have not arrived",
    without((step) => step._tag === "Wait" && step.stream === 0),
    true
  ),
  lie(
    "waits for nothing",
    without((step) => step._tag === "Wait"),
    true
  ),
  lie("lets rows be drawn while they are overwritten", reservedLate, true),
  lie(
    "draws another tick",
    each((step) => (step._tag === "Sample" ? { ...step, tick: step.tick + 1 } : step))
  ),
  lie(
    "draws all rows equally often",
    each((step) => (step._tag === "Sample" ? { ...step, draws: "uniform" } : step))
  ),
  lie(
    "lets windows cross the ends of episodes",
    each((step) => (step._tag === "Sample" ? { ...step, episodes: "cross" } : step))
  ),
  lie(
    "refuses windows where it should cut them",
    each((step) => (step._tag === "Sample" && step.episodes === "cut" ? { ...step, episodes: "whole" } : step))
  ),
  lie(
    "gives rows in place of columns",
    each((step) => (step._tag === "Sample" ? { ...step, packing: "rows" } : step))
  ),
  lie(
    "forgets the weights of a push",
    each((step) => (step._tag === "Commit" ? { ...step, weight: 1 } : step))
  ),
  lie(
    "changes no weight",
    without(({ _tag }) => _tag === "Weigh")
  ),
  lie("takes in nothing behind the place where the ring wraps", (steps) =>
    steps.filter((step, at) => {
      const before = steps[at - 1]
      return !(step._tag === "Place" && before?._tag === "Place" && step.at > before.at)
    })
  ),
  {
    name: "ends a push before the device has taken its rows",
    isOfOrder: false,
    tell: (ring) => ({
      ...ring,
      run: (steps) =>
        steps.some(({ _tag }) => _tag === "Sample")
          ? ring.run(steps)
          : Effect.as(Effect.forkDetach(Effect.delay(Effect.orDie(ring.run(steps)), 20)), [])
    })
  }
]
