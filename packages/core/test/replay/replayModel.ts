// SPDX-License-Identifier: Apache-2.0
/**
 * Slots as the contract describes them, without any of the machinery: what the states must be after each step, who still
 * waits, and which bytes are where.
 */

export type Mode = "asynchronous" | "synchronous" | "deferred"

export interface ModelSlot {
  phase: "idle" | "failed" | "recorded" | "running" | "ready"
  isCleared: boolean
  /** What the copy under way, or the recorded one, brings. */
  value: number
  /** Which source it reads. */
  source: number
  /** The recorded copy's source was freed meanwhile. */
  isSourceFreed: boolean
  /** The waiter or submitter whose fiber makes the copy. */
  maker: number | undefined
  /** The byte that fills the destination. */
  content: number
}

export interface ModelFiber {
  readonly slot: number
  readonly kind: "wait" | "submit"
  outcome: "waits" | "done" | "failed" | "interrupted"
  /** It waits for the device to end this copy, and hears of nothing else before. */
  isOnCopy?: boolean
}

export class ReplayModel {
  readonly mode: Mode
  readonly slots: ReadonlyArray<ModelSlot>
  readonly fibers = new Map<number, ModelFiber>()
  isClosed = false

  constructor(mode: Mode, depth: number, content: number) {
    this.mode = mode
    this.slots = Array.from({ length: depth }, () => ({
      phase: "idle" as const,
      isCleared: false,
      value: 0,
      source: 0,
      isSourceFreed: false,
      maker: undefined,
      content
    }))
  }

  stateOf(slot: ModelSlot): string {
    if (slot.phase === "failed") return "idle"
    if (slot.phase === "recorded") return "deferred"
    if (slot.phase === "running") return this.mode === "deferred" ? "deferred" : "submitted"
    return slot.phase
  }

  isBusy(index: number): boolean {
    const { phase } = this.slots[index]!
    return phase === "running" || phase === "recorded"
  }

  waitersOf(index: number): ReadonlyArray<readonly [number, ModelFiber]> {
    return [...this.fibers].filter(([, fiber]) => fiber.slot === index && fiber.outcome === "waits")
  }

  /** What follows by itself: waiters go on where the state lets them, and make what is recorded. */
  settle(): void {
    for (const [index, slot] of this.slots.entries()) {
      const waiters = this.waitersOf(index).filter(([, { kind }]) => kind === "wait")
      if (slot.phase === "ready") for (const [, fiber] of waiters) fiber.outcome = "done"
      if (slot.phase === "failed") for (const [, fiber] of waiters) fiber.outcome = "failed"
      if (slot.phase === "recorded" && waiters.length > 0 && !this.isClosed) {
        if (slot.isSourceFreed) {
          slot.phase = "failed"
          for (const [, fiber] of waiters) fiber.outcome = "failed"
        } else {
          slot.phase = "running"
          slot.maker = waiters[0]![0]
        }
      }
      // A copy that counts may still bring what its waiters want.
      const isHopeful = slot.phase === "running" && !slot.isCleared
      if (isHopeful && this.mode === "asynchronous") for (const [, fiber] of waiters) fiber.isOnCopy = true
      if (this.isClosed && !isHopeful) {
        for (const [id, fiber] of this.waitersOf(index)) {
          if (id !== slot.maker && fiber.isOnCopy !== true) fiber.outcome = "failed"
        }
      }
    }
  }

  submit(index: number, source: number, value: number, id: number): void {
    const slot = this.slots[index]!
    Object.assign(slot, { isCleared: false, value, source, isSourceFreed: false, maker: undefined })
    slot.phase = this.mode === "deferred" ? "recorded" : "running"
    if (this.mode === "synchronous") slot.maker = id
    this.fibers.set(id, { slot: index, kind: "submit", outcome: this.mode === "synchronous" ? "waits" : "done" })
  }

  finish(index: number, isFailing: boolean): void {
    const slot = this.slots[index]!
    if (!isFailing) slot.content = slot.value
    const maker = slot.maker === undefined ? undefined : this.fibers.get(slot.maker)
    slot.phase = slot.isCleared ? "idle" : isFailing ? "failed" : "ready"
    slot.maker = undefined
    for (const [, fiber] of this.waitersOf(index)) fiber.isOnCopy = false
    // Who made the copy hears of its failure even where it does not count any more.
    if (maker !== undefined && isFailing) maker.outcome = "failed"
    else if (maker?.kind === "submit") maker.outcome = "done"
  }

  clear(index: number): void {
    const slot = this.slots[index]!
    if (slot.phase === "running") slot.isCleared = true
    else slot.phase = "idle"
  }

  interrupt(id: number): void {
    const fiber = this.fibers.get(id)!
    fiber.outcome = "interrupted"
    const slot = this.slots[fiber.slot]!
    if (slot.maker !== id) return
    slot.maker = undefined
    slot.phase = this.mode === "deferred" && !slot.isCleared ? "recorded" : "idle"
  }
}
