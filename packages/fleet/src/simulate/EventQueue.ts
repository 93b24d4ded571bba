// SPDX-License-Identifier: Apache-2.0
/**
 * What happens when, in a simulation: a binary heap of events by time. Events of one time come in the order in which they
 * were added, so a simulation is the same every time.
 */
/** Events by time, and by the order in which they were added where times are equal. */
export class EventQueue<A> {
  readonly #times: Array<number> = []
  readonly #orders: Array<number> = []
  readonly #items: Array<A> = []
  #added = 0

  /** Events that have not been taken. */
  get size(): number {
    return this.#times.length
  }

  /** When the next event happens; infinite where there is none. */
  get nextTime(): number {
    return this.#times[0] ?? Number.POSITIVE_INFINITY
  }

  /** Adds an event; the time is in seconds, or whatever unit the simulation uses throughout. */
  add(time: number, item: A): void {
    const [times, orders, items] = [this.#times, this.#orders, this.#items]
    const order = this.#added++
    let at = times.length
    times.push(time)
    orders.push(order)
    items.push(item)
    while (at > 0) {
      const above = (at - 1) >> 1
      if (times[above]! <= time) break
      times[at] = times[above]!
      orders[at] = orders[above]!
      items[at] = items[above]!
      at = above
    }
    times[at] = time
    orders[at] = order
    items[at] = item
  }

  /** Takes the next event; undefined where there is none. */
  take(): A | undefined {
    const [times, orders, items] = [this.#times, this.#orders, this.#items]
    const found = items[0]
    const [time, order, item] = [times.pop(), orders.pop(), items.pop()]
    const count = times.length
    if (count === 0 || time === undefined) return found
    let at = 0
    for (;;) {
      let below = 2 * at + 1
      if (below >= count) break
      const other = below + 1
      if (
        other < count &&
        (times[other]! < times[below]! || (times[other] === times[below] && orders[other]! < orders[below]!))
      )
        below = other
      if (times[below]! > time || (times[below] === time && orders[below]! > order!)) break
      times[at] = times[below]!
      orders[at] = orders[below]!
      items[at] = items[below]!
      at = below
    }
    times[at] = time
    orders[at] = order!
    items[at] = item as A
    return found
  }
}
