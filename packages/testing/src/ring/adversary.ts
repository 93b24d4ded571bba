// SPDX-License-Identifier: Apache-2.0
/**
 * A device that carries out the steps of a ring in the worst order that is allowed: streams pass each other wherever no event
 * forbids it, and rows arrive in parts. The engine behind it gets the steps one after the other, in an order of a seed.
 *
 * Invariant: the order keeps that of each stream, and no wait comes before the last record of its event ahead of it.
 */
import type { RingStep } from "@tensorferry/core/service/ReplayRingKernels"
import type { OpenRing } from "@tensorferry/core/service/TensorEngine"

/** Numbers below a bound, the same for a seed. */
const numbersOf = (seed: number) => {
  let state = (Math.imul(seed, 0x9e3779b1) + 0x85ebca6b) >>> 0
  return (bound: number): number => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) % bound
  }
}

/** A step in parts that others may come between. */
const partsOf = (step: RingStep): ReadonlyArray<RingStep> => {
  if (step._tag !== "Place" || step.source.shape[0]! < 2) return [step]
  const [rows, rowBytes] = step.source.shape as readonly [number, number]
  const half = rows >> 1
  const part = (from: number, count: number): RingStep => ({
    ...step,
    at: step.at + from,
    source: { ...step.source, shape: [count, rowBytes], byteOffset: step.source.byteOffset + from * rowBytes }
  })
  return [part(0, half), part(half, rows - half)]
}

/** One order of the steps that their streams and events allow. */
export const allowedOrder = (steps: ReadonlyArray<RingStep>, seed: number): ReadonlyArray<RingStep> => {
  const below = numbersOf(seed)
  const parts = steps.flatMap(partsOf).map((step, place) => ({ step, place }))
  const queues = [0, 1].map((stream) => parts.filter(({ step }) => step.stream === stream))
  const recorded = new Set<number>()
  /** A wait is for the last record that was given before it. */
  const isFree = ({ place, step }: { readonly place: number; readonly step: RingStep }): boolean => {
    if (step._tag !== "Wait") return true
    const record = parts.findLast(
      (other) => other.place < place && other.step._tag === "Record" && other.step.event === step.event
    )
    return record === undefined || recorded.has(record.place)
  }
  // Some orders favour a stream, others change at each step.
  const favourite = below(3)
  const order: Array<RingStep> = []
  while (order.length < parts.length) {
    const ready = queues.filter(([head]) => head !== undefined && isFree(head))
    const favoured = favourite < 2 && below(8) > 0 ? ready.find(([head]) => head!.step.stream === favourite) : undefined
    const next = (favoured ?? ready[below(ready.length)]!).shift()!
    if (next.step._tag === "Record") recorded.add(next.place)
    order.push(next.step)
  }
  return order
}

/** The ring, each of whose runs happens in another order. */
export const inAllowedOrders = (ring: OpenRing, seed: number): OpenRing => {
  let runs = 0
  return { ...ring, run: (steps) => ring.run(allowedOrder(steps, seed * 7919 + runs++)) }
}
