/**
 * Finds regions of one batch that would race: a destination that meets another region of the batch.
 *
 * Only dense regions are judged, exactly; strided ones may interleave, and deciding that costs more than the copy.
 * The same region twice is legal. Batches without overlap, which is nearly all, are recognised by sorting numbers alone.
 */
import type { Move, Tensor } from "@tensorferry/core/tensor/Tensor"
import { isContiguous, tensorByteLength } from "@tensorferry/core/tensor/Tensor"

/** Starts and ends of dense regions, in the order given. */
interface Spans {
  readonly starts: Float64Array
  readonly ends: Float64Array
}

const spansOf = (moves: ReadonlyArray<Move>, side: "dst" | "src", addresses: Float64Array): Spans => {
  const starts = new Float64Array(moves.length)
  const ends = new Float64Array(moves.length)
  let count = 0
  for (let i = 0; i < moves.length; i++) {
    const tensor: Tensor = moves[i]![side]
    if (!isContiguous(tensor)) continue
    starts[count] = addresses[i]!
    ends[count] = addresses[i]! + tensorByteLength(tensor)
    count += 1
  }
  return { starts: starts.subarray(0, count), ends: ends.subarray(0, count) }
}

/** Starts sorted and ends sorted. Regions are disjoint exactly where the i-th end comes before the next start. */
const sortedApart = ({ starts, ends }: Spans): Spans => ({ starts: starts.slice().sort(), ends: ends.slice().sort() })

const areDisjoint = ({ starts, ends }: Spans): boolean => {
  for (let i = 1; i < starts.length; i++) if (ends[i - 1]! > starts[i]!) return false
  return true
}

/** For disjoint `written`: a read region meets one where more reads have begun before its end than ended by its start. */
const doMeet = (written: Spans, read: Spans): boolean => {
  let begun = 0
  let ended = 0
  for (let i = 0; i < written.starts.length; i++) {
    while (begun < read.starts.length && read.starts[begun]! < written.ends[i]!) begun++
    while (ended < read.ends.length && read.ends[ended]! <= written.starts[i]!) ended++
    if (begun > ended) return true
  }
  return false
}

/** Indices by start. */
const order = ({ starts, ends }: Spans): Array<number> =>
  Array.from(starts.keys()).sort((a, b) => starts[a]! - starts[b]! || ends[a]! - ends[b]!)

/** The first byte of an overlap of unequal regions, by comparing them one by one. */
const searchOverlap = (written: Spans, read: Spans): number | undefined => {
  const byStart = order(written)
  for (let i = 1; i < byStart.length; i++) {
    const [before, after] = [byStart[i - 1]!, byStart[i]!]
    const isSame = written.starts[before] === written.starts[after] && written.ends[before] === written.ends[after]
    if (!isSame && written.starts[after]! < written.ends[before]!) return written.starts[after]
  }
  let first = 0
  for (const source of order(read)) {
    const [start, end] = [read.starts[source]!, read.ends[source]!]
    while (first < byStart.length && written.ends[byStart[first]!]! <= start) first++
    for (let i = first; i < byStart.length && written.starts[byStart[i]!]! < end; i++) {
      const [from, to] = [written.starts[byStart[i]!]!, written.ends[byStart[i]!]!]
      if (from !== start || to !== end) return Math.max(from, start)
    }
  }
  return undefined
}

/**
 * Address of a byte that is written and also part of another region; `undefined` where there is none. The addresses are
 * those of the first bytes of both sides.
 */
export const findOverlap = (
  moves: ReadonlyArray<Move>,
  destinations: Float64Array,
  sources: Float64Array
): number | undefined => {
  const [written, read] = [spansOf(moves, "dst", destinations), spansOf(moves, "src", sources)]
  const sorted = sortedApart(written)
  if (areDisjoint(sorted) && !doMeet(sorted, sortedApart(read))) return undefined
  return searchOverlap(written, read)
}
