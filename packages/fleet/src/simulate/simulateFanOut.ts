// SPDX-License-Identifier: Apache-2.0
/**
 * How long an update takes: the chunks of a fan-out over the links of a topology, event by event.
 *
 * Model. A link sends one chunk at a time and takes turns among the edges that have one ready, so they share it fairly.
 * The chunk arrives after the latency, or when the receiving link has taken in what came before it; directions do not
 * slow each other. An edge has a few chunks on their way at once. A rank passes a chunk on once it has all of it. Copies
 * within a host take turns on the host's memory in the same way.
 *
 * A rank that dies sends and receives nothing more. `noticeSeconds` later its trees are repaired, and orphans go on after
 * the chunks that they have.
 */
import type { Rank } from "@tensorferry/core/base/Ids"
import type { Demand } from "../fanout/Demand.ts"
import type { FanOut, FanOutEdge } from "../fanout/FanOut.ts"
import { repairTree } from "../fanout/repairTree.ts"
import type { TopologyIndex } from "../topology/Topology.ts"
import { EventQueue } from "./EventQueue.ts"

/** What goes wrong in a simulation. */
export interface SimulateOptions {
  /** Ranks that die, and when, in seconds from the start. */
  readonly deaths?: ReadonlyArray<{ readonly rank: Rank; readonly at: number }>
  /** From a death until the others act on it; 1 second by default. */
  readonly noticeSeconds?: number
}

/** What came of it. */
export interface Simulated {
  /** When the last rank had everything that it can get. */
  readonly seconds: number
  /** Chunks that arrived, those within hosts among them. */
  readonly chunks: number
  /** Bytes that went through links, chunks that arrived nowhere among them. */
  readonly networkBytes: number
  /** Ranks that live and did not get everything, ascending. */
  readonly incomplete: ReadonlyArray<Rank>
}

type Event =
  | { readonly _tag: "Sent"; readonly edge: number; readonly turn: number }
  | { readonly _tag: "Arrived"; readonly edge: number; readonly turn: number }
  | { readonly _tag: "Dies"; readonly rank: Rank }
  | { readonly _tag: "Noticed"; readonly rank: Rank }

/** Something that moves one chunk at a time: the sending side of a link, or a host's memory. */
interface Server {
  readonly bytesPerSecond: number
  readonly waiting: Array<number>
  /** First of `waiting` that has not had its turn. */
  next: number
  isBusy: boolean
}

/** An edge on its way; it stays that of its receiver when the sender changes. */
interface Flow {
  edge: FanOutEdge
  readonly tree: number
  readonly chunks: number
  readonly lastBytes: number
  /** The flow that brings the sender its chunks; undefined for holders. */
  parent: Flow | undefined
  children: Array<number>
  server: Server
  /** When the receiving link is free, by link; undefined within a host. */
  into: { free: number; readonly bytesPerSecond: number } | undefined
  latency: number
  sent: number
  arrived: number
  onTheirWay: number
  isWaiting: boolean
  isOver: boolean
  /** Grows when the sender changes; older events count no more. */
  turn: number
}

class Simulation {
  readonly #queue = new EventQueue<Event>()
  readonly #flows: Array<Flow> = []
  /** By tree, the flow that brings a rank its chunks. */
  readonly #flowTo: Array<Map<Rank, number>> = []
  readonly #holders: ReadonlyArray<ReadonlySet<Rank>>
  readonly #dead = new Set<Rank>()
  readonly #noticed = new Set<Rank>()
  readonly #memory: ReadonlyArray<Server>
  readonly #out: ReadonlyArray<ReadonlyArray<Server>>
  readonly #in: ReadonlyArray<ReadonlyArray<{ free: number; readonly bytesPerSecond: number }>>
  readonly #fanOut: FanOut
  readonly #demand: Demand
  readonly #topology: TopologyIndex
  readonly #noticeSeconds: number
  #now = 0
  #last = 0
  #chunks = 0
  #networkBytes = 0

  constructor(fanOut: FanOut, demand: Demand, topology: TopologyIndex, noticeSeconds: number) {
    this.#fanOut = fanOut
    this.#demand = demand
    this.#topology = topology
    this.#noticeSeconds = noticeSeconds
    const server = (bytesPerSecond: number): Server => ({ bytesPerSecond, waiting: [], next: 0, isBusy: false })
    const { hosts } = topology.topology
    this.#memory = hosts.map((host) => server(host.localBytesPerSecond))
    this.#out = hosts.map(({ links }) => links.map((link) => server(link.bytesPerSecond)))
    this.#in = hosts.map(({ links }) => links.map(({ bytesPerSecond }) => ({ free: 0, bytesPerSecond })))
    this.#holders = demand.bundles.map(({ holders }) => new Set(holders))
    for (const [tree, { bundle, edges, bytes }] of fanOut.trees.entries()) {
      const chunks = Math.ceil(bytes / fanOut.chunkBytes)
      const lastBytes = bytes - (chunks - 1) * fanOut.chunkBytes
      const flowOf = new Map<Rank, number>()
      this.#flowTo.push(flowOf)
      for (const edge of edges) {
        const at = this.#flows.length
        const above = this.#holders[bundle]!.has(edge.from) ? undefined : flowOf.get(edge.from)
        const flow: Flow = {
          ...this.#ways(edge),
          ...{
            edge,
            tree,
            chunks,
            lastBytes,
            children: [],
            parent: above === undefined ? undefined : this.#flows[above]
          },
          ...{ sent: 0, arrived: 0, onTheirWay: 0, isWaiting: false, isOver: false, turn: 0 }
        }
        this.#flows.push(flow)
        flow.parent?.children.push(at)
        flowOf.set(edge.to, at)
      }
    }
  }

  #ways({ from, to, via, fromLink, toLink }: FanOutEdge): Pick<Flow, "server" | "into" | "latency"> {
    const [there, here] = [this.#topology.hostOf(from)!, this.#topology.hostOf(to)!]
    if (via !== "network") return { server: this.#memory[here]!, into: undefined, latency: 0 }
    const { latencySeconds } = this.#topology.topology.hosts[there]!.links[fromLink]!
    return { server: this.#out[there]![fromLink]!, into: this.#in[here]![toLink]!, latency: latencySeconds }
  }

  /** Chunks that may be on their way at once: enough to fill the link while the first is acknowledged. */
  #window({ latency, server }: Flow): number {
    return 2 + Math.ceil((2 * latency * server.bytesPerSecond) / this.#fanOut.chunkBytes)
  }

  #isReady(flow: Flow): boolean {
    const available = flow.parent === undefined ? flow.chunks : flow.parent.arrived
    return !flow.isOver && flow.sent < available && flow.onTheirWay < this.#window(flow)
  }

  #offer(at: number): void {
    const flow = this.#flows[at]!
    if (flow.isWaiting || !this.#isReady(flow)) return
    flow.isWaiting = true
    flow.server.waiting.push(at)
    if (!flow.server.isBusy) this.#serve(flow.server)
  }

  #bytesOf(flow: Flow, chunk: number): number {
    return chunk === flow.chunks - 1 ? flow.lastBytes : this.#fanOut.chunkBytes
  }

  #serve(server: Server): void {
    while (server.next < server.waiting.length) {
      const at = server.waiting[server.next++]!
      if (server.next > 1024 && server.next * 2 > server.waiting.length) {
        server.waiting.splice(0, server.next)
        server.next = 0
      }
      const flow = this.#flows[at]!
      flow.isWaiting = false
      if (flow.server !== server || !this.#isReady(flow)) continue
      const bytes = this.#bytesOf(flow, flow.sent)
      flow.sent += 1
      flow.onTheirWay += 1
      server.isBusy = true
      if (flow.into !== undefined) this.#networkBytes += bytes
      this.#queue.add(this.#now + bytes / server.bytesPerSecond, { _tag: "Sent", edge: at, turn: flow.turn })
      return
    }
    server.isBusy = false
  }

  #sent(at: number, turn: number): void {
    const flow = this.#flows[at]!
    const { server, into } = flow
    if (turn === flow.turn) {
      if (into === undefined) this.#arrived(at)
      else {
        const bytes = this.#bytesOf(flow, flow.sent - 1)
        into.free = Math.max(this.#now + flow.latency, into.free + bytes / into.bytesPerSecond)
        this.#queue.add(into.free, { _tag: "Arrived", edge: at, turn })
      }
      this.#offer(at)
    }
    this.#serve(server)
  }

  #arrived(at: number): void {
    const flow = this.#flows[at]!
    flow.arrived += 1
    flow.onTheirWay -= 1
    this.#chunks += 1
    if (flow.arrived === flow.chunks) this.#last = this.#now
    for (const child of flow.children) this.#offer(child)
    this.#offer(at)
  }

  /** Nothing goes from a dead rank or to it, and what is on its way is lost. */
  #stop(rank: Rank): void {
    this.#dead.add(rank)
    for (const flow of this.#flows) {
      if (flow.edge.from !== rank && flow.edge.to !== rank) continue
      flow.turn += 1
      flow.isOver = true
    }
  }

  #repair(rank: Rank): void {
    this.#noticed.add(rank)
    for (const [number, tree] of this.#fanOut.trees.entries()) {
      if (!tree.edges.some(({ from, to }) => this.#noticed.has(from) || this.#noticed.has(to))) continue
      const flowTo = this.#flowTo[number]!
      const proven = tree.edges.flatMap(({ to }) => {
        const flow = this.#flows[flowTo.get(to)!]!
        return flow.arrived === flow.chunks ? [to] : []
      })
      const bundle = this.#demand.bundles[tree.bundle]!
      const { tree: repaired } = repairTree(tree, bundle, this.#topology, this.#noticed, proven)
      for (const edge of repaired.edges) {
        const at = flowTo.get(edge.to)!
        const flow = this.#flows[at]!
        const isSame = flow.edge.from === edge.from && flow.edge.via === edge.via
        if (flow.arrived === flow.chunks || (isSame && !flow.isOver) || this.#dead.has(edge.from)) continue
        if (flow.parent !== undefined) flow.parent.children = flow.parent.children.filter((child) => child !== at)
        flow.parent = this.#holders[tree.bundle]!.has(edge.from) ? undefined : this.#flows[flowTo.get(edge.from)!]
        flow.parent?.children.push(at)
        Object.assign(flow, this.#ways(edge), {
          edge,
          isOver: false,
          sent: flow.arrived,
          onTheirWay: 0,
          turn: flow.turn + 1
        })
        this.#offer(at)
      }
    }
  }

  run(deaths: NonNullable<SimulateOptions["deaths"]>): Simulated {
    for (const { rank, at } of deaths) this.#queue.add(at, { _tag: "Dies", rank })
    for (const at of this.#flows.keys()) this.#offer(at)
    for (let time = this.#queue.nextTime; this.#queue.size > 0; time = this.#queue.nextTime) {
      this.#now = time
      const event = this.#queue.take()!
      if (event._tag === "Dies") {
        this.#stop(event.rank)
        this.#queue.add(time + this.#noticeSeconds, { _tag: "Noticed", rank: event.rank })
      } else if (event._tag === "Noticed") this.#repair(event.rank)
      else if (event._tag === "Sent") this.#sent(event.edge, event.turn)
      else if (event.turn === this.#flows[event.edge]!.turn) this.#arrived(event.edge)
    }
    const incomplete = new Set<Rank>()
    for (const { arrived, chunks, edge } of this.#flows)
      if (arrived < chunks && !this.#dead.has(edge.to)) incomplete.add(edge.to)
    return {
      seconds: this.#last,
      chunks: this.#chunks,
      networkBytes: this.#networkBytes,
      incomplete: [...incomplete].sort((a, b) => a - b)
    }
  }
}

/** Runs a fan-out to its end. The same every time. */
export const simulateFanOut = (
  fanOut: FanOut,
  demand: Demand,
  topology: TopologyIndex,
  { deaths = [], noticeSeconds = 1 }: SimulateOptions = {}
): Simulated => new Simulation(fanOut, demand, topology, noticeSeconds).run(deaths)
