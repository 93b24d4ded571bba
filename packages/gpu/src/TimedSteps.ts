// SPDX-License-Identifier: Apache-2.0
/**
 * The tables of a program that is timed: its steps, the moves that they name, and what each span measures.
 *
 * Invariant: spans are as bounded as events are; work beyond that is done, but not timed.
 */
import type { Span } from "./RunTimes.ts"
import { eventLimit, StepTable, type StreamNumber } from "./StepTable.ts"

const spanLimit = eventLimit / 2

/** Steps with marks between them that the device's clock stamps. */
export class TimedSteps extends StepTable {
  readonly moveTables: Array<BigUint64Array> = []
  /** What each span measures, by its number. */
  readonly spans: Array<Span> = []
  #events = 0

  /** Records the next event on the stream, for others to wait for. */
  recordNext(stream: StreamNumber): number {
    this.record(stream, this.#events)
    return this.#events++
  }

  /** Adds what `work` adds as one span. */
  timed(stream: StreamNumber, span: Span, work: () => void): void {
    const number = this.spans.length
    if (number >= spanLimit) {
      work()
      return
    }
    this.spans.push(span)
    this.spanBegins(stream, number)
    work()
    this.spanEnds(stream, number)
  }

  /** One kernel for all moves of the table. */
  kernel(stream: StreamNumber, table: BigUint64Array): void {
    this.moves(stream, this.moveTables.length)
    this.moveTables.push(table)
  }
}
