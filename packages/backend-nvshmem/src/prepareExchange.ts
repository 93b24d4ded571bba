/**
 * A preparation on one rank: tells the others what it has to send, agrees with them on the job and the schedule, and makes
 * the program of its part.
 *
 * Invariant: the collectives are reached by every rank whatever fails between them, each tells the failures so far, and the
 * failure of one rank is the failure of all.
 */

import type { Message } from "@tensorferry/core/ir/Message"
import type { CopyDriverError, PeerPath } from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { makeStorage, type Storage } from "@tensorferry/core/tensor/Storage"
import type { Gpu } from "@tensorferry/gpu/Gpu"
import { type GpuProgram, makeProgram } from "@tensorferry/gpu/GpuProgram"
import { checkMessage, publishedLists } from "@tensorferry/gpu/publish"
import type { Span } from "@tensorferry/gpu/RunTimes"
import type { makeAgreement } from "@tensorferry/native/driver/DriverAgreement"
import type { Checked, DriverErrors } from "@tensorferry/native/driver/DriverErrors"
import { type Flow, flowsOf } from "@tensorferry/native/driver/Flows"
import { decodeDone } from "@tensorferry/native/driver/Outcome"
import { decodePeerList, encodePeerList, type PeerList } from "@tensorferry/native/driver/PeerList"
import { type ProcessIdentity, processIdentity } from "@tensorferry/native/driver/ProcessIdentity"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type { Addon } from "./Addon.ts"
import { batchesOf, batchMoves, hasWholeElements, inPlace, inSlot, type Piece, type SlotMoves } from "./batches.ts"
import { exchangeSteps, putLimit, type ReceiveStep, type SendStep } from "./exchangeSteps.ts"
import { reasonUnusable } from "./LibraryState.ts"
import { receiveSlotAddress, sendSlotAddress } from "./layout.ts"
import type { Member, Membership } from "./Membership.ts"
import { exchangeSizes, type NvshmemOptions } from "./options.ts"
import { decodeShare, decodeTold, type SentBatches, type Share, type Told } from "./Publication.ts"
import { type Schedule, type ScheduledBatch, scheduleBatches } from "./planning/CommunicationScheduler.ts"
import { executionPlan } from "./planning/ExecutionPlan.ts"
import type { Batch } from "./planning/WorkloadPacker.ts"
import { isSymmetric } from "./symmetricTensors.ts"

/** What the parts of one driver share. */
export interface DriverParts {
  readonly addon: Addon
  readonly gpu: Gpu
  readonly group: ProcessGroupShape
  readonly options: NvshmemOptions
  readonly errors: DriverErrors
  readonly agreement: ReturnType<typeof makeAgreement>
  readonly membership: Membership
}

export interface PreparedExchange {
  readonly paths: ReadonlyArray<PeerPath>
  /** Absent where this rank has nothing to do. */
  readonly program: GpuProgram | undefined
  readonly spans: ReadonlyArray<Span>
  /** Processes that it waits for, by rank. */
  readonly processes: ReadonlyMap<number, ProcessIdentity>
  readonly iterations: number
  /** See Schedule. */
  readonly imbalance: number
}

const nothingToMove: SlotMoves = { table: new BigUint64Array(0), runs: [] }

/** A flow and its batches. What is sent goes to the peer's slots in one of two ways. */
interface CutFlow {
  readonly flow: Flow
  readonly batches: ReadonlyArray<Batch<Piece>>
  /** Where the peer's block is mapped here, less where it lies here; undefined for puts. */
  readonly distance: number | undefined
}

/** A rank's part before it is compiled. */
interface CutShare {
  readonly flows: ReadonlyArray<CutFlow>
  /** Lists of the peers, by peer. */
  readonly lists: ReadonlyMap<number, PeerList>
  /** Storages of this rank that peers can write to at their place. */
  readonly symmetric: ReadonlySet<Storage>
  readonly told: Share
}

export const makePreparer = (parts: DriverParts) => {
  const { addon, gpu, group, options, errors, agreement, membership } = parts
  const { rank, size } = group
  const sizes = exchangeSizes(options)
  const self = processIdentity()

  const ownLists = (messages: ReadonlyArray<Message>) => publishedLists(messages, undefined)

  const publication = (messages: ReadonlyArray<Message>): Checked<Told> => {
    const why = reasonUnusable(gpu.ordinal)
    if (why !== undefined) {
      const detail = `NVSHMEM of the process of rank ${rank} cannot be used any more: ${why} Start the process again.`
      return Result.fail(errors.fail("Broken", detail, { op: "prepare", scope: "service" }))
    }
    const fault = messages.map((message) => checkMessage(errors, gpu, rank, size, message)).find(Result.isFailure)
    if (fault !== undefined) return Result.fail(fault.failure)
    return Result.succeed({
      process: self,
      ordinal: gpu.ordinal,
      ...membership.told(sizes.slotBytes, sizes.slots),
      lists: Object.fromEntries([...ownLists(messages)].map(([peer, list]) => [String(peer), encodePeerList(list)]))
    })
  }

  /** The lists that peers have for this rank. */
  const listsFor = (told: ReadonlyArray<Told>): Checked<ReadonlyMap<number, PeerList>> => {
    const lists = new Map<number, PeerList>()
    for (const [peer, { lists: texts }] of told.entries()) {
      const text = peer === rank ? undefined : texts[rank]
      if (text === undefined) continue
      const list = decodePeerList(text)
      if (Result.isFailure(list)) {
        return Result.fail(errors.fail("InvalidProgram", list.failure, { peer, op: "prepare" }))
      }
      lists.set(peer, list.success)
    }
    return Result.succeed(lists)
  }

  /** How far away the peer's block is mapped; undefined where puts are to be used. */
  const distanceTo = (member: Member, peer: number): Checked<number | undefined> => {
    if (options.path === "put") return Result.succeed(undefined)
    const { address } = member.layout
    const there = addon.pointerTo(member.session, BigInt(address), peer)
    if (there.code !== "Ok") return Result.fail(errors.ofNative(there, "prepare"))
    if (there.value !== 0n) return Result.succeed(Number(there.value) - address)
    if (options.path !== "direct") return Result.succeed(undefined)
    const detail = "Memory of the peer is not mapped here, and the option path asks for the direct way."
    return Result.fail(errors.fail("UnreachableMemory", detail, { peer, op: "prepare" }))
  }

  const cut = (messages: ReadonlyArray<Message>, told: ReadonlyArray<Told>, member: Member): Checked<CutShare> =>
    Result.flatMap(listsFor(told), (lists) => {
      const devices = { here: gpu.ordinal, there: (peer: number) => told[peer]!.ordinal }
      return Result.flatMap(flowsOf(errors, messages, lists, devices), (flows) => {
        const all: Array<CutFlow> = []
        for (const flow of flows) {
          const batches = batchesOf(errors, flow, member.layout.slotBytes)
          if (Result.isFailure(batches)) return Result.fail(batches.failure)
          const distance = flow.isReceiving ? Result.succeed(undefined) : distanceTo(member, flow.peer)
          if (Result.isFailure(distance)) return Result.fail(distance.failure)
          all.push({ flow, batches: batches.success, distance: distance.success })
        }
        const symmetric = symmetricStorages(messages)
        return Result.succeed({
          flows: all,
          lists,
          symmetric,
          told: {
            sent: sentBatches(all),
            block: member.layout.address,
            symmetric: symmetricMemories(messages, symmetric)
          }
        })
      })
    })

  /** Where symmetric memory lies at a peer; undefined for what is not symmetric, or not mapped here. */
  const mappedAt = (member: Member, address: number, byteLength: number, peer: number): number | undefined => {
    if (!isSymmetric(gpu.ordinal, address, byteLength)) return undefined
    const there = addon.pointerTo(member.session, BigInt(address), peer)
    return there.code === "Ok" && there.value !== 0n ? Number(there.value) : undefined
  }

  /** What receives and lies in the symmetric heap. */
  const symmetricStorages = (messages: ReadonlyArray<Message>): ReadonlySet<Storage> => {
    const receiving = messages.filter(({ direction }) => direction === "recv").flatMap(({ parts }) => parts)
    const storages = new Set(receiving.map(({ tensor }) => tensor.storage))
    return new Set(
      [...storages].filter(
        ({ address, byteLength }) => byteLength > 0 && isSymmetric(gpu.ordinal, Number(address), byteLength)
      )
    )
  }

  /** The same by peer and number in the list for it. */
  const symmetricMemories = (messages: ReadonlyArray<Message>, symmetric: ReadonlySet<Storage>): Share["symmetric"] => {
    if (symmetric.size === 0) return {}
    const addresses = new Set([...symmetric].map(({ address }) => Number(address)))
    return Object.fromEntries(
      [...ownLists(messages)].map(([peer, { memories }]) => [
        String(peer),
        memories.flatMap(({ address }, number) => (addresses.has(address) ? [number] : []))
      ])
    )
  }

  const sentBatches = (flows: ReadonlyArray<CutFlow>): ReadonlyArray<SentBatches> =>
    flows
      .filter(({ flow }) => !flow.isReceiving)
      .map(({ flow, batches, distance }) => ({
        peer: flow.peer,
        isDirect: distance !== undefined,
        byteLengths: batches.map(({ byteLength }) => byteLength)
      }))

  const listTo = (shares: ReadonlyArray<Share>, source: number, destination: number): SentBatches | undefined =>
    shares[source]?.sent.find(({ peer }) => peer === destination)

  /** The peer's memories that lie in the symmetric heap, as they are mapped here. */
  const symmetricAt = (
    member: Member,
    peer: number,
    list: PeerList | undefined,
    share: Share | undefined
  ): Checked<ReadonlyMap<number, Storage>> => {
    const mapped = new Map<number, Storage>()
    for (const number of share?.symmetric[rank] ?? []) {
      const memory = list?.memories[number]
      // The heap has the same shape on all PEs: what the peer says is looked up in it before anything is written there.
      const here = memory === undefined ? 0 : memory.address - share!.block + member.layout.address
      const byteLength = memory?.byteLength ?? 0
      const address = byteLength > 0 ? mappedAt(member, here, byteLength, peer) : undefined
      if (address === undefined) {
        const detail = `The peer says that memory ${number} of its list lies in the symmetric heap, but it is not mapped here.`
        return Result.fail(errors.fail("UnreachableMemory", detail, { peer, op: "prepare" }))
      }
      mapped.set(number, makeStorage({ device: gpu.device, address: BigInt(address), byteLength, release: () => {} }))
    }
    return Result.succeed(mapped)
  }

  /** Fails where a peer sends other batches than this rank expects. */
  const checkArrivals = (flows: ReadonlyArray<CutFlow>, shares: ReadonlyArray<Share>): Checked<void> => {
    for (const { flow, batches } of flows) {
      if (!flow.isReceiving) continue
      const list = listTo(shares, flow.peer, rank)
      const expected = batches.map(({ byteLength }) => byteLength)
      if (list?.byteLengths.join() === expected.join()) continue
      const detail = `The peer packs ${list?.byteLengths.length ?? 0} batches where ${expected.length} of other sizes are expected.`
      return Result.fail(errors.fail("InvalidProgram", detail, { peer: flow.peer, op: "prepare", scope: "op" }))
    }
    return Result.succeed(undefined)
  }

  const compile = (
    { flows, lists, symmetric }: CutShare,
    shares: ReadonlyArray<Share>,
    told: ReadonlyArray<Told>,
    member: Member
  ): Effect.Effect<PreparedExchange, CopyDriverError, Scope.Scope> =>
    Effect.gen(function* () {
      yield* Effect.fromResult(checkArrivals(flows, shares))
      const { layout } = member
      const batches = shares.flatMap(({ sent }, source) =>
        sent.flatMap(({ peer: destination, byteLengths }) =>
          byteLengths.map((byteLength, index): ScheduledBatch => ({ source, destination, index, byteLength }))
        )
      )
      const schedule = scheduleBatches(batches)
      const plan = executionPlan(rank, batches, schedule, { send: layout.sendSlots, receive: layout.slots })
      const puts = plan.sends.length
      if (puts > putLimit) {
        const detail = `${puts} batches are more than the ${putLimit} that a program can hold. Raise slotBytes.`
        return yield* errors.fail("TransportFailed", detail, { op: "prepare" })
      }
      const cutTo = (peer: number, isReceiving: boolean): CutFlow =>
        flows.find(({ flow }) => flow.peer === peer && flow.isReceiving === isReceiving)!

      const symmetricThere = new Map<number, ReadonlyMap<number, Storage>>()
      for (const { flow, distance } of flows) {
        if (flow.isReceiving || distance === undefined) continue
        const { peer } = flow
        symmetricThere.set(peer, yield* Effect.fromResult(symmetricAt(member, peer, lists.get(peer), shares[peer])))
      }
      const inPlacePeers = new Set<number>()
      const sends: Array<SendStep> = []
      for (const send of plan.sends) {
        const { distance, batches: own } = cutTo(send.peer, false)
        const batch = own[batches[send.batch]!.index]!
        const isDirect = distance !== undefined
        const mapped = symmetricThere.get(send.peer)
        const isInPlace =
          mapped !== undefined &&
          hasWholeElements(batch) &&
          batch.items.every(({ item }) => mapped.has(item.theirs.memory))
        if (isInPlace) inPlacePeers.add(send.peer)
        const otherEnd = isInPlace
          ? inPlace((memory) => mapped.get(memory)!)
          : inSlot(
              gpu.device,
              batch,
              isDirect
                ? receiveSlotAddress(layout, send.receiveSlot) + distance
                : sendSlotAddress(layout, send.sendSlot)
            )
        const runBytes = isDirect ? sizes.copyEngineBytes : Number.POSITIVE_INFINITY
        const moves = yield* Effect.fromResult(batchMoves(errors, batch, otherEnd, false, runBytes))
        sends.push({ ...send, byteLength: batch.byteLength, moves, isDirect })
      }
      const receives: Array<ReceiveStep> = []
      for (const [at, receive] of plan.receives.entries()) {
        const batch = cutTo(receive.peer, true).batches[batches[receive.batch]!.index]!
        const isInPlace =
          listTo(shares, receive.peer, rank)!.isDirect &&
          hasWholeElements(batch) &&
          batch.items.every(({ item }) => symmetric.has(item.tensor.storage))
        if (isInPlace) inPlacePeers.add(receive.peer)
        const slot = inSlot(gpu.device, batch, receiveSlotAddress(layout, receive.receiveSlot))
        const moves = isInPlace
          ? nothingToMove
          : yield* Effect.fromResult(batchMoves(errors, batch, slot, true, Number.POSITIVE_INFINITY))
        receives.push({ ...receive, byteLength: batch.byteLength, moves, next: plan.nextLeaves[at] })
      }
      const { steps, moves, spans } = exchangeSteps(rank, layout, sends, receives, plan.leaves)
      const program =
        steps.length === 0
          ? undefined
          : yield* Effect.acquireRelease(
              Effect.mapError(
                Effect.suspend(() => Effect.fromResult(makeProgram(gpu, { steps, moves, calls: member.calls }))),
                (failure) => errors.ofNative(failure, "prepare")
              ),
              (made) => Effect.sync(made.close)
            )
      return {
        paths: pathsOf(flows, shares, schedule, inPlacePeers),
        program,
        spans,
        processes: new Map(flows.map(({ flow }) => [flow.peer, told[flow.peer]!.process])),
        iterations: schedule.iterations,
        imbalance: schedule.imbalance
      }
    })

  const pathsOf = (
    flows: ReadonlyArray<CutFlow>,
    shares: ReadonlyArray<Share>,
    { iterations, imbalance }: Schedule,
    inPlacePeers: ReadonlySet<number>
  ): ReadonlyArray<PeerPath> =>
    [...new Set(flows.map(({ flow }) => flow.peer))].map((peer) => {
      const ways = [listTo(shares, rank, peer), listTo(shares, peer, rank)]
      const names = new Set(ways.flatMap((list) => (list === undefined ? [] : [list.isDirect ? "direct" : "put"])))
      const reasons = [...names].map((name) =>
        name === "direct"
          ? `kernels reach the ${inPlacePeers.has(peer) ? "symmetric tensors" : "slots"} of the receiver`
          : options.path === "put"
            ? "asked for by the option path"
            : "slots of the receiver are not mapped at the sender"
      )
      return {
        peer,
        path: [...names].join("+"),
        reason: `${reasons.join("; ")}; ${iterations} iterations, imbalance ${imbalance.toFixed(2)}`
      }
    })

  const prepare = (messages: ReadonlyArray<Message>): Effect.Effect<PreparedExchange, CopyDriverError, Scope.Scope> =>
    Effect.gen(function* () {
      const told = yield* agreement.agree("publish", publication(messages), decodeTold)
      const member = yield* membership.ensure(told)
      const share = cut(messages, told, member)
      const shares = yield* agreement.agree(
        "batches",
        Result.map(share, ({ told }) => told),
        decodeShare
      )
      // Nobody told of a failure, so there is none here either.
      const known = yield* Effect.fromResult(share)
      const compiled = yield* Effect.result(compile(known, shares, told, member))
      yield* agreement.agree(
        "outcome",
        Result.map(compiled, () => null),
        decodeDone
      )
      return yield* Effect.fromResult(compiled)
    })

  /** Joins the job, if this rank has no part in one. Every rank calls it. */
  const join = Effect.suspend(() =>
    Effect.flatMap(agreement.agree("publish", publication([]), decodeTold), membership.ensure)
  )

  return { prepare, join }
}
