/**
 * A preparation on one rank: tells the others what it has to send, agrees with them on the job and the schedule, and makes
 * the program of its part.
 *
 * Invariant: the collectives are reached by every rank whatever fails between them, each tells the failures so far, and the
 * failure of one rank is the failure of all.
 */
import type { makeAgreement } from "@tensorferry/backend-cuda/agreement"
import type { Checked, DriverErrors } from "@tensorferry/backend-cuda/driverErrors"
import { type Flow, flowsOf } from "@tensorferry/backend-cuda/flows"
import type { Gpu } from "@tensorferry/backend-cuda/Gpu"
import { type GpuProgram, makeProgram } from "@tensorferry/backend-cuda/GpuProgram"
import { type ProcessIdentity, processIdentity } from "@tensorferry/backend-cuda/identity"
import { decodeDone, decodePeerList, encodePeerList, type PeerList } from "@tensorferry/backend-cuda/Publication"
import { checkMessage, publishedLists } from "@tensorferry/backend-cuda/publish"
import type { Span } from "@tensorferry/backend-cuda/RunTimes"
import type { Message } from "@tensorferry/core/ir/Message"
import type { CopyDriverError, PeerPath } from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type { Addon } from "./Addon.ts"
import { batchesOf, type Piece, slotMoves } from "./batches.ts"
import { exchangeSteps, putLimit, type ReceiveStep, type SendStep } from "./exchangeSteps.ts"
import { receiveSlotAddress, sendSlotAddress } from "./layout.ts"
import type { Member, Membership } from "./Membership.ts"
import { exchangeSizes, type NvshmemOptions } from "./options.ts"
import { decodeBatches, decodeTold, type SentBatches, type Told } from "./Publication.ts"
import { type Schedule, type ScheduledBatch, scheduleBatches } from "./planning/CommunicationScheduler.ts"
import { executionPlan } from "./planning/ExecutionPlan.ts"
import type { Batch } from "./planning/WorkloadPacker.ts"
import { poisonOf } from "./poison.ts"

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

/** A flow and its batches. What is sent goes to the peer's slots in one of two ways. */
interface CutFlow {
  readonly flow: Flow
  readonly batches: ReadonlyArray<Batch<Piece>>
  /** Where the peer's block is mapped here, less where it lies here; undefined for puts. */
  readonly distance: number | undefined
}

export const makePreparer = (parts: DriverParts) => {
  const { addon, gpu, group, options, errors, agreement, membership } = parts
  const { rank, size } = group
  const sizes = exchangeSizes(options)
  const self = processIdentity()

  const publication = (messages: ReadonlyArray<Message>): Checked<Told> => {
    const why = poisonOf(gpu.ordinal)
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
      lists: Object.fromEntries(
        [...publishedLists(messages, undefined)].map(([peer, list]) => [String(peer), encodePeerList(list)])
      )
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

  const cut = (
    messages: ReadonlyArray<Message>,
    told: ReadonlyArray<Told>,
    member: Member
  ): Checked<ReadonlyArray<CutFlow>> =>
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
        return Result.succeed(all)
      })
    })

  const sentBatches = (flows: ReadonlyArray<CutFlow>): ReadonlyArray<SentBatches> =>
    flows
      .filter(({ flow }) => !flow.isReceiving)
      .map(({ flow, batches, distance }) => ({
        peer: flow.peer,
        isDirect: distance !== undefined,
        byteLengths: batches.map(({ byteLength }) => byteLength)
      }))

  /** Fails where a peer sends other batches than this rank expects. */
  const checkArrivals = (
    flows: ReadonlyArray<CutFlow>,
    sent: ReadonlyArray<ReadonlyArray<SentBatches>>
  ): Checked<void> => {
    for (const { flow, batches } of flows) {
      if (!flow.isReceiving) continue
      const list = sent[flow.peer]?.find(({ peer }) => peer === rank)
      const expected = batches.map(({ byteLength }) => byteLength)
      if (list?.byteLengths.join() === expected.join()) continue
      const detail = `The peer packs ${list?.byteLengths.length ?? 0} batches where ${expected.length} of other sizes are expected.`
      return Result.fail(errors.fail("InvalidProgram", detail, { peer: flow.peer, op: "prepare", scope: "op" }))
    }
    return Result.succeed(undefined)
  }

  const compile = (
    flows: ReadonlyArray<CutFlow>,
    sent: ReadonlyArray<ReadonlyArray<SentBatches>>,
    told: ReadonlyArray<Told>,
    member: Member
  ): Effect.Effect<PreparedExchange, CopyDriverError, Scope.Scope> =>
    Effect.gen(function* () {
      yield* Effect.fromResult(checkArrivals(flows, sent))
      const { layout } = member
      const batches = sent.flatMap((lists, source) =>
        lists.flatMap(({ peer: destination, byteLengths }) =>
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

      const sends: Array<SendStep> = []
      for (const send of plan.sends) {
        const { distance, batches: own } = cutTo(send.peer, false)
        const batch = own[batches[send.batch]!.index]!
        const isDirect = distance !== undefined
        const address = isDirect
          ? receiveSlotAddress(layout, send.receiveSlot) + distance
          : sendSlotAddress(layout, send.sendSlot)
        const runBytes = isDirect ? sizes.copyEngineBytes : Number.POSITIVE_INFINITY
        const moves = yield* Effect.fromResult(slotMoves(errors, gpu.device, batch, address, false, runBytes))
        sends.push({ ...send, byteLength: batch.byteLength, moves, isDirect })
      }
      const receives: Array<ReceiveStep> = []
      for (const [at, receive] of plan.receives.entries()) {
        const batch = cutTo(receive.peer, true).batches[batches[receive.batch]!.index]!
        const address = receiveSlotAddress(layout, receive.receiveSlot)
        const moves = yield* Effect.fromResult(
          slotMoves(errors, gpu.device, batch, address, true, Number.POSITIVE_INFINITY)
        )
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
        paths: pathsOf(flows, sent, schedule),
        program,
        spans,
        processes: new Map(flows.map(({ flow }) => [flow.peer, told[flow.peer]!.process])),
        iterations: schedule.iterations,
        imbalance: schedule.imbalance
      }
    })

  const pathsOf = (
    flows: ReadonlyArray<CutFlow>,
    sent: ReadonlyArray<ReadonlyArray<SentBatches>>,
    { iterations, imbalance }: Schedule
  ): ReadonlyArray<PeerPath> =>
    [...new Set(flows.map(({ flow }) => flow.peer))].map((peer) => {
      const ways = [sent[rank]?.find((list) => list.peer === peer), sent[peer]?.find((list) => list.peer === rank)]
      const names = new Set(ways.flatMap((list) => (list === undefined ? [] : [list.isDirect ? "direct" : "put"])))
      const reasons = [...names].map((name) =>
        name === "direct"
          ? "kernels reach the slots of the receiver"
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

  return (messages: ReadonlyArray<Message>): Effect.Effect<PreparedExchange, CopyDriverError, Scope.Scope> =>
    Effect.gen(function* () {
      const told = yield* agreement.agree("publish", publication(messages), decodeTold)
      const member = yield* membership.ensure(told)
      const flows = cut(messages, told, member)
      const sent = yield* agreement.agree("batches", Result.map(flows, sentBatches), decodeBatches)
      // Nobody told of a failure, so there is none here either.
      const known = yield* Effect.fromResult(flows)
      const compiled = yield* Effect.result(compile(known, sent, told, member))
      yield* agreement.agree(
        "outcome",
        Result.map(compiled, () => null),
        decodeDone
      )
      return yield* Effect.fromResult(compiled)
    })
}
