// SPDX-License-Identifier: Apache-2.0
/**
 * Says in which iteration every batch travels: in one iteration a PE sends at most one batch and receives at most one.
 *
 * Invariants: the number of iterations is the largest number of batches that any PE sends or receives, which is the fewest
 * possible. The schedule is a function of the set of batches: all PEs that know it have the same one, in whatever order
 * they list it.
 *
 * Batches are the edges of a bipartite multigraph, iterations its edge colours (Kőnig's theorem). An edge takes a colour
 * that is free at both ends; where there is none, a path of two alternating colours is swapped. PEs with few batches are
 * first merged, as long as together they have no more than the busiest one: merged or not, the colours are right, and the
 * table of colours stays as small as the list of batches.
 */

/** One message from a PE to another. Batches of a pair have different indices. */
export interface ScheduledBatch {
  readonly source: number
  readonly destination: number
  readonly index: number
  readonly byteLength: number
}

/** In which iteration each batch travels; iterations count from 0. */
export interface Schedule {
  readonly iterations: number
  /** By place in the given list. */
  readonly iterationOf: Int32Array
  /**
   * What it costs that batches of one iteration differ in length: the sum of the longest batches of all iterations, over
   * the bytes of the busiest PE and direction. 1 is best; 1 too where nothing travels.
   */
  readonly imbalance: number
}

/** Ends of edges on one side, merged where that needs no more colours. */
const mergeSide = (
  ends: ReadonlyArray<number>,
  degree: number
): { readonly of: Int32Array; readonly count: number } => {
  const degrees = new Map<number, number>()
  for (const end of ends) degrees.set(end, (degrees.get(end) ?? 0) + 1)
  const merged = new Map<number, number>()
  let [count, filled] = [0, degree]
  for (const end of [...degrees.keys()].sort((a, b) => a - b)) {
    const own = degrees.get(end)!
    if (filled + own > degree) {
      count += 1
      filled = 0
    }
    filled += own
    merged.set(end, count - 1)
  }
  return { of: Int32Array.from(ends, (end) => merged.get(end)!), count }
}

const largestDegree = (batches: ReadonlyArray<ScheduledBatch>): number => {
  const [sends, receives] = [new Map<number, number>(), new Map<number, number>()]
  let largest = 0
  for (const { source, destination } of batches) {
    const [sent, received] = [(sends.get(source) ?? 0) + 1, (receives.get(destination) ?? 0) + 1]
    sends.set(source, sent)
    receives.set(destination, received)
    largest = Math.max(largest, sent, received)
  }
  return largest
}

/** Which edge has a colour at a vertex, and the lowest colour that may be free there. */
const makeSide = (vertices: number, colours: number) => {
  const edges = new Int32Array(vertices * colours).fill(-1)
  const lowest = new Int32Array(vertices)
  const noticeFree = (vertex: number, colour: number): void => {
    if (edges[vertex * colours + colour]! < 0 && colour < lowest[vertex]!) lowest[vertex] = colour
  }
  return {
    at: (vertex: number, colour: number): number => edges[vertex * colours + colour]!,
    put: (vertex: number, colour: number, edge: number): void => {
      edges[vertex * colours + colour] = edge
    },
    swap: (vertex: number, first: number, second: number): void => {
      const [a, b] = [vertex * colours + first, vertex * colours + second]
      const edge = edges[a]!
      edges[a] = edges[b]!
      edges[b] = edge
      noticeFree(vertex, first)
      noticeFree(vertex, second)
    },
    free: (vertex: number): number => {
      let colour = lowest[vertex]!
      while (edges[vertex * colours + colour]! >= 0) colour += 1
      lowest[vertex] = colour
      return colour
    }
  }
}

/** Colours of edges, given in the order in which they choose. Colours with low numbers are chosen first. */
const colourEdges = (
  sources: ReadonlyArray<number>,
  destinations: ReadonlyArray<number>,
  colours: number
): Int32Array => {
  const [left, right] = [mergeSide(sources, colours), mergeSide(destinations, colours)]
  const [from, to] = [makeSide(left.count, colours), makeSide(right.count, colours)]
  const colourOf = new Int32Array(sources.length)

  /** Swaps the colours of the path that leaves a destination by `first`; it never comes to a source without that. */
  const swapFrom = (destination: number, first: number, second: number): void => {
    let [vertex, colour, isDestination] = [destination, first, true]
    for (;;) {
      const side = isDestination ? to : from
      const edge = side.at(vertex, colour)
      side.swap(vertex, first, second)
      if (edge < 0) return
      colour = colour === first ? second : first
      colourOf[edge] = colour
      vertex = isDestination ? left.of[edge]! : right.of[edge]!
      isDestination = !isDestination
    }
  }

  for (let edge = 0; edge < sources.length; edge++) {
    const [source, destination] = [left.of[edge]!, right.of[edge]!]
    let colour = to.free(destination)
    if (from.at(source, colour) >= 0) {
      const second = colour
      colour = from.free(source)
      if (to.at(destination, colour) >= 0) swapFrom(destination, colour, second)
    }
    colourOf[edge] = colour
    from.put(source, colour, edge)
    to.put(destination, colour, edge)
  }
  return colourOf
}

const imbalanceOf = (batches: ReadonlyArray<ScheduledBatch>, iterationOf: Int32Array, iterations: number): number => {
  const longest = new Float64Array(iterations)
  const [sent, received] = [new Map<number, number>(), new Map<number, number>()]
  let busiest = 0
  for (const [at, { source, destination, byteLength }] of batches.entries()) {
    const iteration = iterationOf[at]!
    longest[iteration] = Math.max(longest[iteration]!, byteLength)
    const [out, into] = [(sent.get(source) ?? 0) + byteLength, (received.get(destination) ?? 0) + byteLength]
    sent.set(source, out)
    received.set(destination, into)
    busiest = Math.max(busiest, out, into)
  }
  return busiest === 0 ? 1 : longest.reduce((sum, bytes) => sum + bytes, 0) / busiest
}

/** The default: full duplex, the fewest iterations. Long batches choose first, so that batches of like length meet. */
export const scheduleBatches = (batches: ReadonlyArray<ScheduledBatch>): Schedule => {
  const iterations = largestDegree(batches)
  const order = batches
    .map((batch, place) => ({ batch, place }))
    .sort(
      ({ batch: a }, { batch: b }) =>
        b.byteLength - a.byteLength || a.source - b.source || a.destination - b.destination || a.index - b.index
    )
  const colours = colourEdges(
    order.map(({ batch }) => batch.source),
    order.map(({ batch }) => batch.destination),
    iterations
  )
  const iterationOf = new Int32Array(batches.length)
  for (const [at, { place }] of order.entries()) iterationOf[place] = colours[at]!
  return { iterations, iterationOf, imbalance: imbalanceOf(batches, iterationOf, iterations) }
}

/**
 * The compatibility scheduler: a batch goes into the first iteration in which neither of its PEs sends or receives, in the
 * order given. Half duplex, and more iterations than needed.
 */
export const scheduleFirstFit = (batches: ReadonlyArray<ScheduledBatch>): Schedule => {
  const busy = new Map<number, Set<number>>()
  const busyOf = (pe: number): Set<number> => {
    const known = busy.get(pe) ?? new Set()
    busy.set(pe, known)
    return known
  }
  let iterations = 0
  const iterationOf = Int32Array.from(batches, ({ source, destination }) => {
    const [from, to] = [busyOf(source), busyOf(destination)]
    let iteration = 0
    while (from.has(iteration) || to.has(iteration)) iteration += 1
    from.add(iteration)
    to.add(iteration)
    iterations = Math.max(iterations, iteration + 1)
    return iteration
  })
  return { iterations, iterationOf, imbalance: imbalanceOf(batches, iterationOf, iterations) }
}
