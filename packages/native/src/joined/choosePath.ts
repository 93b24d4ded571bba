// SPDX-License-Identifier: Apache-2.0
/**
 * By which path two ranks exchange tensors: by memory where they share a host, else by the first wire that both have. Pure.
 *
 * Invariants: the choice follows from what the two state about themselves and nothing else, and is the same whichever of them
 * makes it. A wire that cannot be opened is passed by, and the reason says at which rank, and why.
 */

/** How a wire stands at a rank: not needed so far, open, or not to be had. */
export const wireStates = ["closed", "open", "lacking"] as const
/** One of them. */
export type WireState = (typeof wireStates)[number]

/** What a rank states about one of its wires. */
export interface StatedWire {
  /** The backend's name. */
  readonly name: string
  /** Among wires that both ends have, the lowest is taken. */
  readonly order: number
  /** Memory of a device passes through host buffers on its way. */
  readonly isStaged: boolean
  /** Without a token it stays on the host. */
  readonly hasToken: boolean
  readonly state: WireState
  /** Why it is lacking; else empty. */
  readonly why: string
}

/** What a rank states about itself. */
export interface RankStatement {
  readonly rank: number
  /** Equal where two ranks run under one kernel. */
  readonly host: string
  /** Equal where two ranks of a host can name each other's processes. */
  readonly space: string
  /** Equal where two ranks of a host reach each other by its loopback. */
  readonly network: string
  /** The backend that moves bytes within a host. */
  readonly direct: string
  /** It moves them between hosts too, where that of every rank does. */
  readonly spansHosts: boolean
  /** False where options exclude it. */
  readonly isDirectAllowed: boolean
  readonly wires: ReadonlyArray<StatedWire>
}

/** Two ranks, the lower one first. */
type Ends = readonly [RankStatement, RankStatement]

/** A path of two ranks, and why it is this one. Without a name there is none. */
export interface ChosenPath {
  /** The backend's name. */
  readonly name?: string
  readonly reason: string
}

/** What keeps a wire of this name from leaving a rank; undefined where nothing does. */
const faultOf = ({ wires }: RankStatement, name: string, leavesHost: boolean): string | undefined => {
  const wire = wires.find((one) => one.name === name)
  if (wire === undefined) return "not registered"
  if (wire.state === "lacking") return wire.why
  return leavesHost && !wire.hasToken ? "without a token it stays on its host" : undefined
}

/** What keeps a wire from joining two ranks, in words; empty where nothing does. */
const faultsOf = ([first, second]: Ends, name: string, leavesHost: boolean): string => {
  const [here, there] = [faultOf(first, name, leavesHost), faultOf(second, name, leavesHost)]
  if (here !== undefined && here === there) return `both ranks: ${here}`
  return [
    ...(here === undefined ? [] : [`rank ${first.rank}: ${here}`]),
    ...(there === undefined ? [] : [`rank ${second.rank}: ${there}`])
  ].join("; ")
}

/** Names of wires that one of the two has, in the order in which they are tried. */
const wireNames = (ends: Ends): ReadonlyArray<string> => {
  const orders = new Map<string, number>()
  for (const { name, order } of ends.flatMap(({ wires }) => wires)) {
    orders.set(name, Math.min(order, orders.get(name) ?? order))
  }
  return [...orders].sort(([a, at], [b, bt]) => at - bt || (a < b ? -1 : 1)).map(([name]) => name)
}

/** Whether the backend within hosts joins all ranks of the job, so that no wire is needed. */
export const spansAll = (statements: ReadonlyArray<RankStatement>): boolean =>
  statements.every(
    ({ direct, spansHosts, isDirectAllowed }) => spansHosts && isDirectAllowed && direct === statements[0]!.direct
  )

/** The path of two ranks. `isSpanned` is `spansAll` of all ranks. */
export const choosePath = (one: RankStatement, other: RankStatement, isSpanned = false): ChosenPath => {
  const ends: Ends = one.rank <= other.rank ? [one, other] : [other, one]
  const [first, second] = ends
  const isOneHost = first.host === second.host
  const hasLoopback = isOneHost && first.network === second.network
  const canShare = isOneHost && first.direct === second.direct
  if (isSpanned) {
    return { name: first.direct, reason: isOneHost ? "one host" : `two hosts, and ${first.direct} joins all ranks` }
  }
  const passed: Array<string> = []
  if (canShare) {
    const excluding = ends.filter(({ isDirectAllowed }) => !isDirectAllowed).map(({ rank }) => rank)
    if (excluding.length > 0)
      passed.push(`one host, but options of rank ${excluding.join(" and ")} exclude ${first.direct}`)
    else if (first.space === second.space) return { name: first.direct, reason: "one host" }
    else passed.push(`one host, but process ${hasLoopback ? "" : "and network "}namespaces of their own`)
  } else if (isOneHost) passed.push(`one host, but ${first.direct} here and ${second.direct} there`)
  else passed.push("two hosts")
  for (const name of wireNames(ends)) {
    const faults = faultsOf(ends, name, !hasLoopback)
    if (faults === "") return { name, reason: passed.join("; ") }
    passed.push(`no ${name} (${faults})`)
  }
  // It has a connection of its own on loopback, for processes that cannot see each other's memory.
  if (canShare && hasLoopback && ends.every(({ isDirectAllowed }) => isDirectAllowed)) {
    return { name: first.direct, reason: passed.join("; ") }
  }
  return { reason: passed.join("; ") }
}

/** What all ranks together do next. */
export interface WorldPaths {
  /** Wires that this rank must open before the choice is final; none at any rank where `isFinal`. */
  readonly toOpen: ReadonlyArray<string>
  readonly isFinal: boolean
  /** Names of all paths that any two ranks take, the same list on every rank. */
  readonly names: ReadonlyArray<string>
  /** Some two ranks have no path. */
  readonly hasGap: boolean
}

/** Ranks by something that they state, each value once with a rank that states it. */
const grouped = (statements: ReadonlyArray<RankStatement>, keyOf: (statement: RankStatement) => string) => {
  const groups = new Map<string, Array<RankStatement>>()
  for (const statement of statements) {
    const key = keyOf(statement)
    const known = groups.get(key)
    if (known === undefined) groups.set(key, [statement])
    else known.push(statement)
  }
  return [...groups.values()]
}

/** Of ranks that state the same, at most two: what one of them does with another, all do. */
const distinct = (statements: ReadonlyArray<RankStatement>): ReadonlyArray<RankStatement> =>
  grouped(statements, ({ rank: _, ...facts }) => JSON.stringify(facts)).flatMap((alike) => alike.slice(0, 2))

/** One pair for each two kinds of ranks that meet on a host, and for each two kinds that meet between hosts. */
const meetingPairs = (statements: ReadonlyArray<RankStatement>): ReadonlyArray<Ends> => {
  const pairs: Array<Ends> = []
  for (const neighbours of grouped(statements, ({ host }) => host)) {
    const some = distinct(neighbours)
    for (const [at, one] of some.entries()) for (const other of some.slice(at + 1)) pairs.push([one, other])
  }
  // Between hosts, only wires count. Two ranks of a kind on two hosts meet whatever other kind there is.
  const kinds = grouped(statements, ({ wires }) => JSON.stringify(wires)).map(([first, ...more]) => {
    const elsewhere = more.find(({ host }) => host !== first!.host)
    return elsewhere === undefined ? [first!] : [first!, elsewhere]
  })
  for (const [at, kind] of kinds.entries()) {
    for (const others of kinds.slice(at)) {
      const pair = kind.flatMap((one) => others.map((other): Ends => [one, other])).find(([a, b]) => a.host !== b.host)
      if (pair !== undefined) pairs.push(pair)
    }
  }
  return pairs
}

/** The paths between all ranks, as this one sees them. Ranks that state the same are looked at once. */
export const worldPaths = (statements: ReadonlyArray<RankStatement>, rank: number): WorldPaths => {
  const own = JSON.stringify(statements[rank]!.wires)
  const [names, toOpen] = [new Set<string>(), new Set<string>()]
  let [isFinal, hasGap] = [true, false]
  const isSpanned = spansAll(statements)
  for (const pair of meetingPairs(statements)) {
    const { name } = choosePath(...pair, isSpanned)
    if (name === undefined) hasGap = true
    else names.add(name)
    for (const { wires } of pair) {
      if (wires.find((wire) => wire.name === name)?.state !== "closed") continue
      isFinal = false
      // A rank whose wires stand alike may open one that only another needs: all of them go on alike.
      if (JSON.stringify(wires) === own) toOpen.add(name!)
    }
  }
  return { toOpen: [...toOpen].sort(), isFinal, names: [...names].sort(), hasGap }
}
