// SPDX-License-Identifier: Apache-2.0
/**
 * The program of one PE's part in a schedule that all PEs derive from their shares.
 *
 * Invariant: what a peer claims is compared with what this rank expects, and looked up in the heap, before anything is
 * compiled that writes there. Nothing here waits or meets other ranks.
 */
import type { CopyDriverError, PeerPath } from "@tensorferry/core/service/CopyDriver"
import { makeStorage, type Storage } from "@tensorferry/core/tensor/Storage"
import { acquireProgram } from "@tensorferry/gpu/GpuProgram"
import type { TransferProgram } from "@tensorferry/gpu/ProgramTransfer"
import type { Checked } from "@tensorferry/native/driver/DriverErrors"
import type { PeerList } from "@tensorferry/native/driver/PeerList"
import type { ProcessIdentity } from "@tensorferry/native/driver/ProcessIdentity"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { batchMoves, hasWholeElements, inPlace, inSlot, type SlotMoves } from "./batches.ts"
import type { CutFlow, CutShare } from "./cutShare.ts"
import type { DriverParts } from "./driverParts.ts"
import { exchangeSteps, putLimit, type ReceiveStep, type SendStep } from "./exchangeSteps.ts"
import { receiveSlotAddress, sendSlotAddress } from "./layout.ts"
import type { Member } from "./Membership.ts"
import { exchangeSizes, type PathPreference } from "./options.ts"
import type { SentBatches, Share, Statement } from "./Publication.ts"
import { type Schedule, type ScheduledBatch, scheduleBatches } from "./planning/CommunicationScheduler.ts"
import { type ExecutionPlan, executionPlan } from "./planning/ExecutionPlan.ts"
import { isSymmetric } from "./symmetricTensors.ts"

/** A program, and what it waits for. */
export interface PreparedExchange extends TransferProgram {
  readonly paths: ReadonlyArray<PeerPath>
  /** Processes that it waits for, by rank. */
  readonly processes: ReadonlyMap<number, ProcessIdentity>
  readonly iterations: number
  /** See Schedule. */
  readonly imbalance: number
}

/** What all ranks said, and this rank's part of it. */
export interface ExchangeInput {
  readonly cut: CutShare
  /** By rank. */
  readonly shares: ReadonlyArray<Share>
  /** By rank. */
  readonly statements: ReadonlyArray<Statement>
  readonly member: Member
}

/** The batches of all PEs in their schedule, and this PE's part. */
interface Planned {
  readonly batches: ReadonlyArray<ScheduledBatch>
  readonly plan: ExecutionPlan
  /** Peers with which some batch goes between tensors without a slot. Filled while steps are compiled. */
  readonly inPlacePeers: Set<number>
}

const nothingToMove: SlotMoves = { table: new BigUint64Array(0), runs: [] }

const listTo = (shares: ReadonlyArray<Share>, source: number, destination: number): SentBatches | undefined =>
  shares[source]?.sent.find(({ peer }) => peer === destination)

const cutTo = (flows: ReadonlyArray<CutFlow>, peer: number, isReceiving: boolean): CutFlow =>
  flows.find(({ flow }) => flow.peer === peer && flow.isReceiving === isReceiving)!

/** Where symmetric memory lies at a peer; undefined for what is not symmetric, or not mapped here. */
const mappedAt = (
  { addon, gpu }: DriverParts,
  member: Member,
  address: number,
  byteLength: number,
  peer: number
): number | undefined => {
  if (!isSymmetric(gpu.ordinal, address, byteLength)) return undefined
  const there = addon.pointerTo(member.session, BigInt(address), peer)
  return there.code === "Ok" && there.value !== 0n ? Number(there.value) : undefined
}

/** The peer's memories that lie in the symmetric heap, as they are mapped here. */
const symmetricAt = (
  parts: DriverParts,
  member: Member,
  peer: number,
  list: PeerList | undefined,
  share: Share | undefined
): Checked<ReadonlyMap<number, Storage>> => {
  const { errors, gpu } = parts
  const mapped = new Map<number, Storage>()
  for (const number of share?.symmetric[errors.rank] ?? []) {
    const memory = list?.memories[number]
    // The heap has the same shape on all PEs: what the peer says is looked up in it before anything is written there.
    const here = memory === undefined ? 0 : memory.address - share!.block + member.layout.address
    const byteLength = memory?.byteLength ?? 0
    const address = byteLength > 0 ? mappedAt(parts, member, here, byteLength, peer) : undefined
    if (address === undefined) {
      const detail = `The peer says that memory ${number} of its list lies in the symmetric heap, but it is not mapped here.`
      return Result.fail(errors.fail("UnreachableMemory", detail, { peer, op: "prepare" }))
    }
    mapped.set(number, makeStorage({ device: gpu.device, address: BigInt(address), byteLength, release: () => {} }))
  }
  return Result.succeed(mapped)
}

/** Fails where a peer sends other batches than this rank expects. */
const checkArrivals = ({ errors }: DriverParts, { cut, shares }: ExchangeInput): Checked<void> => {
  for (const { flow, batches } of cut.flows) {
    if (!flow.isReceiving) continue
    const list = listTo(shares, flow.peer, errors.rank)
    const expected = batches.map(({ byteLength }) => byteLength)
    if (list?.byteLengths.join() === expected.join()) continue
    const detail = `The peer packs ${list?.byteLengths.length ?? 0} batches where ${expected.length} of other sizes are expected.`
    return Result.fail(errors.fail("InvalidProgram", detail, { peer: flow.peer, op: "prepare", scope: "op" }))
  }
  return Result.succeed(undefined)
}

const compileSends = (
  parts: DriverParts,
  { cut, shares, member }: ExchangeInput,
  { batches, plan, inPlacePeers }: Planned
): Checked<ReadonlyArray<SendStep>> =>
  Result.gen(function* () {
    const { errors, gpu, options } = parts
    const { layout } = member
    const symmetricThere = new Map<number, ReadonlyMap<number, Storage>>()
    for (const { flow, distance } of cut.flows) {
      if (flow.isReceiving || distance === undefined) continue
      const { peer } = flow
      symmetricThere.set(peer, yield* symmetricAt(parts, member, peer, cut.lists.get(peer), shares[peer]))
    }
    const sends: Array<SendStep> = []
    for (const send of plan.sends) {
      const { distance, batches: own } = cutTo(cut.flows, send.peer, false)
      const batch = own[batches[send.batch]!.index]!
      const isDirect = distance !== undefined
      const mapped = symmetricThere.get(send.peer)
      const isInPlace =
        mapped !== undefined &&
        hasWholeElements(batch) &&
        batch.items.every(({ item }) => mapped.has(item.theirs.memory))
      if (isInPlace) inPlacePeers.add(send.peer)
      const slot = isDirect
        ? receiveSlotAddress(layout, send.receiveSlot) + distance
        : sendSlotAddress(layout, send.sendSlot)
      const otherEnd = isInPlace ? inPlace((memory) => mapped.get(memory)!) : inSlot(gpu.device, batch, slot)
      const runBytes = isDirect ? exchangeSizes(options).copyEngineBytes : Number.POSITIVE_INFINITY
      const moves = yield* batchMoves(errors, batch, otherEnd, false, runBytes)
      sends.push({ ...send, byteLength: batch.byteLength, moves, isDirect })
    }
    return sends
  })

const compileReceives = (
  { errors, gpu }: DriverParts,
  { cut, shares, member }: ExchangeInput,
  { batches, plan, inPlacePeers }: Planned
): Checked<ReadonlyArray<ReceiveStep>> =>
  Result.gen(function* () {
    const receives: Array<ReceiveStep> = []
    for (const [at, receive] of plan.receives.entries()) {
      const batch = cutTo(cut.flows, receive.peer, true).batches[batches[receive.batch]!.index]!
      const isInPlace =
        listTo(shares, receive.peer, errors.rank)!.isDirect &&
        hasWholeElements(batch) &&
        batch.items.every(({ item }) => cut.symmetric.has(item.tensor.storage))
      if (isInPlace) inPlacePeers.add(receive.peer)
      const slot = inSlot(gpu.device, batch, receiveSlotAddress(member.layout, receive.receiveSlot))
      const moves = isInPlace ? nothingToMove : yield* batchMoves(errors, batch, slot, true, Number.POSITIVE_INFINITY)
      receives.push({ ...receive, byteLength: batch.byteLength, moves, next: plan.nextLeaves[at] })
    }
    return receives
  })

const pathsOf = (
  rank: number,
  preference: PathPreference | undefined,
  { cut, shares }: ExchangeInput,
  { iterations, imbalance }: Schedule,
  inPlacePeers: ReadonlySet<number>
): ReadonlyArray<PeerPath> =>
  [...new Set(cut.flows.map(({ flow }) => flow.peer))].map((peer) => {
    const ways = [listTo(shares, rank, peer), listTo(shares, peer, rank)]
    const names = new Set(ways.flatMap((list) => (list === undefined ? [] : [list.isDirect ? "direct" : "put"])))
    const reasons = [...names].map((name) =>
      name === "direct"
        ? `kernels reach the ${inPlacePeers.has(peer) ? "symmetric tensors" : "slots"} of the receiver`
        : preference === "put"
          ? "asked for by the option path"
          : "slots of the receiver are not mapped at the sender"
    )
    return {
      peer,
      path: [...names].join("+"),
      reason: `${reasons.join("; ")}; ${iterations} iterations, imbalance ${imbalance.toFixed(2)}`
    }
  })

/** Makes the program of this rank's part; it is closed with the scope. */
export const compileExchange = (
  parts: DriverParts,
  input: ExchangeInput
): Effect.Effect<PreparedExchange, CopyDriverError, Scope.Scope> =>
  Effect.gen(function* () {
    yield* Effect.fromResult(checkArrivals(parts, input))
    const { errors, gpu, options } = parts
    const { cut, shares, statements, member } = input
    const { layout } = member
    const batches = shares.flatMap(({ sent }, source) =>
      sent.flatMap(({ peer: destination, byteLengths }) =>
        byteLengths.map((byteLength, index): ScheduledBatch => ({ source, destination, index, byteLength }))
      )
    )
    const schedule = scheduleBatches(batches)
    const plan = executionPlan(errors.rank, batches, schedule, { send: layout.sendSlots, receive: layout.slots })
    const puts = plan.sends.length
    if (puts > putLimit) {
      const detail = `${puts} batches are more than the ${putLimit} that a program can hold. Raise slotBytes.`
      return yield* errors.fail("TransportFailed", detail, { op: "prepare" })
    }
    const planned: Planned = { batches, plan, inPlacePeers: new Set() }
    const sends = yield* Effect.fromResult(compileSends(parts, input, planned))
    const receives = yield* Effect.fromResult(compileReceives(parts, input, planned))
    const { steps, moves, spans } = exchangeSteps(errors.rank, layout, sends, receives, plan.leaves)
    const program = yield* acquireProgram(gpu, errors, { steps, moves, calls: member.calls })
    return {
      paths: pathsOf(errors.rank, options.path, input, schedule, planned.inPlacePeers),
      program,
      spans,
      processes: new Map(cut.flows.map(({ flow }) => [flow.peer, statements[flow.peer]!.process])),
      iterations: schedule.iterations,
      imbalance: schedule.imbalance
    }
  })
