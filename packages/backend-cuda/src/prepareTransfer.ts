/**
 * A preparation on one rank: tells peers where its memory is, agrees with them on the way of every flow, makes the program.
 *
 * Invariant: the collectives are reached by every rank whatever fails before them, each tells the failures so far, and the
 * failure of one rank is the failure of all. What a rank does between two of them depends on others only through them.
 */
import type { Message } from "@tensorferry/core/ir/Message"
import type { CopyDriverError, PeerPath } from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import type { DeviceMemory } from "@tensorferry/gpu/DeviceMemory"
import type { Gpu } from "@tensorferry/gpu/Gpu"
import { type GpuProgram, makeProgram } from "@tensorferry/gpu/GpuProgram"
import type { Span } from "@tensorferry/gpu/RunTimes"
import type { Sharing } from "@tensorferry/gpu/Sharing"
import { makeAgreement } from "@tensorferry/native/driver/DriverAgreement"
import type { Checked, DriverErrors } from "@tensorferry/native/driver/DriverErrors"
import { type Flow, type FlowDevices, flowsOf, problemOf } from "@tensorferry/native/driver/Flows"
import { isSameProcess, type ProcessIdentity, processIdentity } from "@tensorferry/native/driver/ProcessIdentity"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type { Connection, Connections } from "./Connections.ts"
import { type DirectMoves, directMoves } from "./directMoves.ts"
import type { Mapping, Mappings } from "./Mappings.ts"
import { type CudaOptions, transferSizes } from "./options.ts"
import { decodeFindings, decodePushes, type Finding } from "./Publication.ts"
import { type GroupWindow, packedPlan } from "./packedMoves.ts"
import { commonPreference, directionOf } from "./planning/direction.ts"
import { type DriverKind, type Reached, type Route, routeOf } from "./planning/route.ts"
import { windowLimits } from "./planning/windows.ts"
import { makePublisher, type Published } from "./publisher.ts"
import { type PeerMemory, reachPeer } from "./reach.ts"
import { transferSteps, windowLimit } from "./transferSteps.ts"

/** What the parts of one driver share. */
export interface DriverParts {
  readonly kind: DriverKind
  readonly gpu: Gpu
  readonly memory: DeviceMemory
  readonly group: ProcessGroupShape
  readonly options: CudaOptions
  readonly errors: DriverErrors
  readonly mappings: Mappings
  readonly connections: Connections
  readonly sharing: Sharing
}

export interface PreparedTransfer {
  readonly paths: ReadonlyArray<PeerPath>
  /** Absent where this rank has nothing to do. */
  readonly program: GpuProgram | undefined
  readonly spans: ReadonlyArray<Span>
  /** Set where the program sends or receives. */
  readonly connection: Connection | undefined
  /** Memory of peers that the program touches. */
  readonly mappings: ReadonlyArray<Mapping>
  /** Processes whose memory it touches, by rank. */
  readonly processes: ReadonlyMap<number, ProcessIdentity>
  /** Peers write into memory of this rank. */
  readonly isPushedTo: boolean
  /** All ranks meet when their own moves are done, because some push. The same on all ranks. */
  readonly meets: boolean
}

/** The bytes are moved by their sender: its end has the memory of the other one. */
const isPushed = ({ flow, memory: found, route }: RoutedFlow): boolean =>
  route.name === "ipc" && (found !== undefined) !== flow.isReceiving

/** A flow and, where this rank moves its bytes between memories, the peer's memory. */
interface SearchedFlow {
  readonly flow: Flow
  readonly memory: PeerMemory | undefined
}

interface RoutedFlow extends SearchedFlow {
  readonly route: Route
}

/** Ways of all flows of the job, known to all ranks. */
interface Routes {
  readonly reached: ReadonlyMap<string, Reached>
  readonly hasCollectives: boolean
  /** The most peers that any rank has by collectives. */
  readonly collectivePeers: number
}

const flowKey = (from: number, to: number): string => `${from} to ${to}`

/** What goes both ways to a peer is one entry. */
const mergePaths = (paths: ReadonlyArray<PeerPath>): ReadonlyArray<PeerPath> => {
  const merged = new Map<number, PeerPath>()
  for (const { peer, path, reason } of paths) {
    const known = merged.get(peer)
    if (known === undefined) merged.set(peer, { peer, path, reason })
    else if (known.path !== path) {
      merged.set(peer, { peer, path: `${known.path}+${path}`, reason: `${known.reason}; ${reason}` })
    }
  }
  return [...merged.values()].sort((a, b) => a.peer - b.peer)
}

export const makePreparer = (parts: DriverParts) => {
  const { kind, gpu, memory, group, options, errors, mappings, connections } = parts
  const { rank } = group
  const { copyEngineBytes } = transferSizes(options)
  const self = processIdentity()
  const agreement = makeAgreement(group, kind, errors)
  const publish = makePublisher(parts, agreement)

  /** Whether this end moves the bytes of a flow between memories: both ends find the same. */
  const isMovedHere = (flow: Flow, flows: ReadonlyArray<Flow>, { settings, lists, own }: Published): boolean => {
    const { peer, isReceiving } = flow
    if (isSameProcess(self, settings[peer]!.process)) return isReceiving
    const [mine, theirs] = [own.get(peer), lists.get(peer)]
    const direction = directionOf({
      preference: commonPreference(settings.map((told) => told.direction)),
      senderProblem: isReceiving ? problemOf(theirs, "send") : problemOf(mine, "send"),
      receiverProblem: isReceiving ? problemOf(mine, "recv") : problemOf(theirs, "recv"),
      isDuplex: flows.some((other) => other.peer === peer && other.isReceiving !== isReceiving)
    })
    // Where neither end can, the receiver looks and tells why.
    return Result.isFailure(direction) ? isReceiving : (direction.success === "pull") === isReceiving
  }

  const devicesOf = ({ settings }: Published): FlowDevices => ({
    here: gpu.ordinal,
    there: (peer) => settings[peer]!.ordinal
  })

  const search = (messages: ReadonlyArray<Message>, published: Published): Checked<ReadonlyArray<SearchedFlow>> =>
    Result.map(flowsOf(errors, messages, published.lists, devicesOf(published)), (flows) =>
      flows.map((flow): SearchedFlow => {
        if (kind === "nccl" || !isMovedHere(flow, flows, published)) return { flow, memory: undefined }
        const peer = { settings: published.settings[flow.peer]!, list: published.lists.get(flow.peer)! }
        return { flow, memory: reachPeer(gpu, mappings, published.settings[rank]!, peer, flow) }
      })
    )

  const findingsOf = (searched: ReadonlyArray<SearchedFlow>): ReadonlyArray<Finding> =>
    searched.flatMap(({ flow: { peer, isReceiving }, memory: found }) =>
      found === undefined ? [] : [{ peer, isReceiving, reached: found.reached }]
    )

  /** The same on all ranks, since all heard the same. */
  const routesOf = (findings: ReadonlyArray<ReadonlyArray<Finding>>, published: Published): Checked<Routes> => {
    const hasCollectives = published.settings.every((told) => told.hasCollectives)
    const reached = new Map<string, Reached>()
    const collective = published.neighbours.map((peers) => new Set(kind === "nccl" ? peers : []))
    for (const [looking, found] of findings.entries()) {
      for (const { peer, isReceiving, reached: answer } of found) {
        reached.set(isReceiving ? flowKey(peer, looking) : flowKey(looking, peer), answer)
        if (answer._tag === "Reached") continue
        const route = routeOf({ kind, reached: answer, hasCollectives })
        if (Result.isFailure(route)) {
          const detail = `Rank ${looking} does not reach memory of rank ${peer}: ${route.failure}.`
          return Result.fail(
            errors.fail("UnreachableMemory", detail, { peer: looking === rank ? peer : looking, op: "prepare" })
          )
        }
        collective[looking]?.add(peer)
        collective[peer]?.add(looking)
      }
    }
    const collectivePeers = Math.max(0, ...collective.map((peers) => peers.size))
    if (collectivePeers > 0 && !hasCollectives) {
      const lacking = published.settings.findIndex((told) => !told.hasCollectives)
      return Result.fail(
        errors.fail("TransportFailed", `Rank ${lacking} could not open the library for collectives.`, {
          op: "prepare",
          scope: "service"
        })
      )
    }
    return Result.succeed({ reached, hasCollectives, collectivePeers })
  }

  const routed = (searched: ReadonlyArray<SearchedFlow>, routes: Routes): Checked<ReadonlyArray<RoutedFlow>> => {
    const flows: Array<RoutedFlow> = []
    for (const each of searched) {
      const { peer, isReceiving } = each.flow
      const reached = routes.reached.get(isReceiving ? flowKey(peer, rank) : flowKey(rank, peer))
      const route = routeOf({ kind, reached, hasCollectives: routes.hasCollectives })
      if (Result.isFailure(route)) {
        return Result.fail(errors.fail("UnreachableMemory", `No path: ${route.failure}.`, { peer, op: "prepare" }))
      }
      flows.push({ ...each, route: route.success })
    }
    return Result.succeed(flows)
  }

  const compileDirect = (
    flows: ReadonlyArray<RoutedFlow>,
    { lists }: Published
  ): Checked<ReadonlyArray<DirectMoves>> => {
    const all: Array<DirectMoves> = []
    for (const { flow, memory: found, route } of flows) {
      if (route.name === "nccl" || found === undefined) continue
      const moves = directMoves(errors, flow, lists.get(flow.peer)!, found, copyEngineBytes)
      if (Result.isFailure(moves)) return Result.fail(moves.failure)
      all.push(moves.success)
    }
    return Result.succeed(all)
  }

  const compilePacked = (
    flows: ReadonlyArray<RoutedFlow>,
    { settings }: Published,
    { collectivePeers }: Routes
  ): Effect.Effect<ReadonlyArray<GroupWindow>, CopyDriverError, Scope.Scope> =>
    Effect.gen(function* () {
      const packed = flows.filter(({ route }) => route.name === "nccl").map(({ flow }) => flow)
      if (packed.length === 0) return []
      // Both ends must cut alike: what all ranks have, and what the smallest allows.
      const limits = windowLimits(Math.min(...settings.map((told) => told.stagingBytes)), collectivePeers)
      const directBytes = Math.max(...settings.map((told) => told.directBytes))
      const plan = yield* Effect.fromResult(packedPlan(errors, packed, limits, directBytes))
      if (plan.windowCount > windowLimit) {
        const detail = `${plan.windowCount} windows are more than the ${windowLimit} that a program can hold.`
        return yield* errors.fail("TransportFailed", `${detail} Raise stagingBytes.`, { op: "prepare" })
      }
      const staging =
        plan.stagingBytes === 0
          ? undefined
          : yield* Effect.mapError(memory.allocate(plan.stagingBytes), ({ reason }) =>
              errors.fail("TransportFailed", `Staging: ${reason.detail}`, { op: "prepare" })
            )
      return yield* Effect.fromResult(plan.windows(staging))
    })

  const compile = (
    flows: ReadonlyArray<RoutedFlow>,
    published: Published,
    routes: Routes,
    connection: Connection | undefined
  ): Effect.Effect<PreparedTransfer, CopyDriverError, Scope.Scope> =>
    Effect.gen(function* () {
      const direct = yield* Effect.fromResult(compileDirect(flows, published))
      const windows = yield* compilePacked(flows, published, routes)
      const { steps, moves, spans, usesCommunicator } = transferSteps(direct, windows)
      const made =
        steps.length === 0
          ? undefined
          : yield* Effect.acquireRelease(
              Effect.mapError(
                Effect.suspend(() =>
                  Effect.fromResult(makeProgram(gpu, { steps, moves, communicator: connection?.native }))
                ),
                (failure) => errors.ofNative(failure, "prepare")
              ),
              (program) => Effect.sync(program.close)
            )
      const touched = flows.filter(({ route, memory: found }) => route.name !== "nccl" && found !== undefined)
      return {
        paths: mergePaths(
          flows.map((each) => {
            const { name, reason } = each.route
            return { peer: each.flow.peer, path: name, reason: isPushed(each) ? `${reason}, pushed` : reason }
          })
        ),
        program: made,
        spans,
        connection: usesCommunicator ? connection : undefined,
        mappings: touched.flatMap(({ memory: found }) => [...found!.mappings.values()]),
        processes: new Map(touched.map(({ flow }) => [flow.peer, published.settings[flow.peer]!.process])),
        isPushedTo: flows.some((each) => isPushed(each) && each.flow.isReceiving),
        meets: flows.some(isPushed)
      }
    })

  return (messages: ReadonlyArray<Message>): Effect.Effect<PreparedTransfer, CopyDriverError, Scope.Scope> =>
    Effect.gen(function* () {
      const published = yield* publish(messages)
      const searched = Result.flatMap(published, (all) => search(messages, all))
      const findings = yield* agreement.agree("reach", Result.map(searched, findingsOf), decodeFindings)
      // Nobody told of a failure, so there is none here either.
      const all = yield* Effect.fromResult(published)
      const routes = yield* Effect.fromResult(routesOf(findings, all))
      const flows = Result.flatMap(searched, (known) => routed(known, routes))
      const connection =
        routes.collectivePeers === 0
          ? Result.succeed(undefined)
          : yield* Effect.result(connections.ensure(all.settings.map((told) => told.connection)))
      const compiled = yield* Effect.result(
        Effect.gen(function* () {
          return yield* compile(yield* Effect.fromResult(flows), all, routes, yield* Effect.fromResult(connection))
        })
      )
      const pushes = yield* agreement.agree(
        "outcome",
        Result.map(compiled, ({ meets }) => meets),
        decodePushes
      )
      return { ...(yield* Effect.fromResult(compiled)), meets: pushes.includes(true) }
    })
}
