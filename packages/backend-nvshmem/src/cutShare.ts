// SPDX-License-Identifier: Apache-2.0
/**
 * What a rank has to send, cut into batches, and which memory of it peers may write to in place: its share of a schedule.
 *
 * Invariant: batches follow from what both ends know, so both ends cut alike. Nothing here waits or meets other ranks.
 */
import type { Message } from "@tensorferry/core/ir/Message"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import { publishedLists } from "@tensorferry/gpu/publish"
import type { Checked } from "@tensorferry/native/driver/DriverErrors"
import { type Flow, flowsOf } from "@tensorferry/native/driver/Flows"
import { decodePeerLists, type PeerList } from "@tensorferry/native/driver/PeerList"
import * as Result from "effect/Result"
import { batchesOf, type Piece } from "./batches.ts"
import type { DriverParts } from "./driverParts.ts"
import type { Member } from "./Membership.ts"
import type { SentBatches, Share, Statement } from "./Publication.ts"
import type { Batch } from "./planning/WorkloadPacker.ts"
import { isSymmetric } from "./symmetricTensors.ts"

/** A flow and its batches. What is sent goes to the peer's slots in one of two ways. */
export interface CutFlow {
  readonly flow: Flow
  readonly batches: ReadonlyArray<Batch<Piece>>
  /** Where the peer's block is mapped here, less where it lies here; undefined for puts. */
  readonly distance: number | undefined
}

/** A rank's part before it is compiled. */
export interface CutShare {
  readonly flows: ReadonlyArray<CutFlow>
  /** Lists of the peers, by peer. */
  readonly lists: ReadonlyMap<number, PeerList>
  /** Storages of this rank that peers can write to at their place. */
  readonly symmetric: ReadonlySet<Storage>
  /** What the other ranks need to know of it. */
  readonly share: Share
}

/** The lists of a rank's messages for its peers. Memory is written to in slots or in the heap, so none is opened. */
export const ownLists = (messages: ReadonlyArray<Message>): ReadonlyMap<number, PeerList> =>
  publishedLists(messages, undefined)

/** How far away the peer's block is mapped; undefined where puts are to be used. */
const distanceTo = (
  { addon, options, errors }: DriverParts,
  member: Member,
  peer: number
): Checked<number | undefined> => {
  if (options.path === "put") return Result.succeed(undefined)
  const { address } = member.layout
  const there = addon.pointerTo(member.session, BigInt(address), peer)
  if (there.code !== "Ok") return Result.fail(errors.ofNative(there, "prepare"))
  if (there.value !== 0n) return Result.succeed(Number(there.value) - address)
  if (options.path !== "direct") return Result.succeed(undefined)
  const detail = "Memory of the peer is not mapped here, and the option path asks for the direct way."
  return Result.fail(errors.fail("UnreachableMemory", detail, { peer, op: "prepare" }))
}

/** What receives and lies in the symmetric heap. */
const symmetricStorages = (ordinal: number, messages: ReadonlyArray<Message>): ReadonlySet<Storage> => {
  const receiving = messages.filter(({ direction }) => direction === "recv").flatMap(({ parts }) => parts)
  const storages = new Set(receiving.map(({ tensor }) => tensor.storage))
  return new Set(
    [...storages].filter(
      ({ address, byteLength }) => byteLength > 0 && isSymmetric(ordinal, Number(address), byteLength)
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

/** Cuts what goes between this rank and its peers. */
export const cutShare = (
  parts: DriverParts,
  messages: ReadonlyArray<Message>,
  statements: ReadonlyArray<Statement>,
  member: Member
): Checked<CutShare> => {
  const { errors, gpu } = parts
  const devices = { here: gpu.ordinal, there: (peer: number) => statements[peer]!.ordinal }
  return Result.gen(function* () {
    const texts = statements.map(({ lists }) => lists[errors.rank])
    const lists = yield* decodePeerLists(errors, texts)
    const flows: Array<CutFlow> = []
    for (const flow of yield* flowsOf(errors, messages, lists, devices)) {
      const batches = yield* batchesOf(errors, flow, member.layout.slotBytes)
      const distance = flow.isReceiving ? undefined : yield* distanceTo(parts, member, flow.peer)
      flows.push({ flow, batches, distance })
    }
    const symmetric = symmetricStorages(gpu.ordinal, messages)
    const share = {
      sent: sentBatches(flows),
      block: member.layout.address,
      symmetric: symmetricMemories(messages, symmetric)
    }
    return { flows, lists, symmetric, share }
  })
}
