// SPDX-License-Identifier: Apache-2.0
/**
 * The receiver's half of a preparation: one table of moves for the parts of all peers whose memory can be reached, and
 * what the other peers must send.
 *
 * Invariant: a move is compiled only where both ends agree on the part and the peer's region lies inside the memory that
 * it published; what a peer claims can make the preparation fail, never reach outside.
 */

import type { Message, MessagePart } from "@tensorferry/core/ir/Message"
import type { CopyDriverReason, PeerPath } from "@tensorferry/core/service/CopyDriver"
import { byteMove, type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import type { Checked, DriverErrors } from "@tensorferry/native/driver/DriverErrors"
import { inOrder, partDisagreement } from "@tensorferry/native/driver/MessageChecks"
import type { PublishedPart } from "@tensorferry/native/driver/PeerList"
import type { TableMove } from "@tensorferry/native/MoveTable"
import * as Result from "effect/Result"
import type { MemoryPath, MemoryPaths } from "./memoryPath.ts"
import type { PeerMap } from "./PeerMaps.ts"
import type { PeerList, PublishedProcess } from "./Publication.ts"

/** A rank that sends to this one: what it said and how to get there. */
export interface Sender {
  readonly process: PublishedProcess
  readonly list: PeerList
  readonly memoryPaths: MemoryPaths
}

export interface CompiledMoves {
  readonly moves: ReadonlyArray<TableMove>
  /** Rank that each move fetches from. */
  readonly peers: ReadonlyArray<number>
  readonly paths: ReadonlyArray<PeerPath>
  readonly maps: ReadonlyArray<{ readonly peer: number; readonly map: PeerMap }>
  /** Of what is written to: see `Storage.fault`. */
  readonly faults: ReadonlyArray<{ readonly peer: number; readonly fault: () => string | undefined }>
  /** Processes read without a map, by rank. */
  readonly readFrom: ReadonlyMap<number, PublishedProcess>
  /** Where the parts of peers go that must send them, in the order in which they come. */
  readonly sentBy: ReadonlyMap<number, ReadonlyArray<Tensor>>
}

/** Makes the table, or says with which peer that cannot be. */
export const compile = (
  errors: DriverErrors,
  messages: ReadonlyArray<Message>,
  senders: ReadonlyMap<number, Sender>,
  /** False where peers may not be asked to send. */
  allowsSending: boolean,
  /** Gets every map as soon as it is acquired, so that the caller can give it back on failure too. */
  keep: (map: PeerMap) => void
): Checked<CompiledMoves> => {
  const moves: Array<TableMove> = []
  const peers: Array<number> = []
  const maps: Array<CompiledMoves["maps"][number]> = []
  const faults = new Map<number, CompiledMoves["faults"][number]>()
  const readFrom = new Map<number, PublishedProcess>()
  const taken = new Map<number, Map<string, string>>()
  const found = new Map<string, MemoryPath>()
  /** Why the memory of a peer cannot be reached; then everything of that peer is sent. */
  const unreachable = new Map<number, string>()
  const sentBy = new Map<number, Array<Tensor>>()

  const fail = (tag: CopyDriverReason["_tag"], peer: number, detail: string, remedy: string, taskId?: number) =>
    Result.fail(errors.fail(tag, detail, { peer, taskId, op: "prepare", scope: "op", remedy }))
  const disagree = (peer: number, detail: string, taskId?: number) =>
    fail("InvalidProgram", peer, detail, "Give both ends the same messages, parts, shapes and types.", taskId)

  const openMemory = (peer: number, sender: Sender, index: number): Checked<MemoryPath> => {
    const known = found.get(`${peer}:${index}`)
    if (known !== undefined) return Result.succeed(known)
    const memory = sender.list.memories[index]
    if (memory === undefined) return disagree(peer, `The peer refers to memory ${index}, which it did not publish.`)
    const opened = sender.memoryPaths.pathTo(memory)
    if (Result.isFailure(opened)) {
      return fail(
        "UnreachableMemory",
        peer,
        `No path: ${opened.failure}.`,
        "Run both processes as one user on one host, or choose another backend."
      )
    }
    const { map, path, reason } = opened.success
    if (map === undefined) readFrom.set(peer, sender.process)
    else {
      maps.push({ peer, map })
      keep(map)
    }
    const paths = taken.get(peer) ?? new Map<string, string>()
    taken.set(peer, paths.set(path, reason))
    found.set(`${peer}:${index}`, opened.success)
    return Result.succeed(opened.success)
  }

  const addPart = (peer: number, sender: Sender, mine: MessagePart, theirs: PublishedPart): Checked<void> => {
    const { tensor, taskId } = mine
    const disagreement = partDisagreement(mine, theirs)
    if (disagreement !== undefined) return disagree(peer, disagreement, taskId)
    if (tensor.shape.includes(0)) return Result.succeed(undefined)
    const { fault, generation } = tensor.storage
    if (fault !== undefined) faults.set(generation, { peer, fault })
    sentBy.get(peer)!.push(tensor)
    const memory = openMemory(peer, sender, theirs.memory)
    if (Result.isFailure(memory)) {
      const canSend =
        allowsSending && sender.memoryPaths.isSameHost && memory.failure.reason._tag === "UnreachableMemory"
      if (!canSend) return Result.fail(memory.failure)
      unreachable.set(peer, memory.failure.reason.detail)
      return Result.succeed(undefined)
    }
    const view = tensorView(memory.success.storage, theirs.dtype, theirs.shape, theirs)
    if (Result.isFailure(view))
      return disagree(peer, `The peer's region is not in its memory: ${view.failure.detail}.`, taskId)
    const move = byteMove({ dst: tensor, src: view.success })
    if (Result.isFailure(move)) return disagree(peer, `${move.failure.detail}.`, taskId)
    moves.push({ ...move.success, pid: memory.success.pid })
    peers.push(peer)
    return Result.succeed(undefined)
  }

  for (const { peer, index, parts } of inOrder(messages, "recv")) {
    if (!sentBy.has(peer)) sentBy.set(peer, [])
    const sender = senders.get(peer)
    const theirs = sender?.list.messages.find((message) => message.index === index)
    if (sender === undefined || theirs === undefined) return disagree(peer, `The peer sends no message ${index}.`)
    if (theirs.parts.length !== parts.length) {
      return disagree(peer, `Message ${index} has ${parts.length} parts here and ${theirs.parts.length} there.`)
    }
    for (const [i, mine] of parts.entries()) {
      const added = addPart(peer, sender, mine, theirs.parts[i]!)
      if (Result.isFailure(added)) return Result.fail(added.failure)
    }
  }
  const isDirect = (peer: number) => !unreachable.has(peer)
  const paths = [...taken]
    .filter(([peer]) => isDirect(peer))
    .map(([peer, byPath]) => ({ peer, path: [...byPath.keys()].join("+"), reason: [...byPath.values()].join("; ") }))
  for (const [peer, reason] of unreachable) paths.push({ peer, path: "tcp", reason })
  for (const peer of sentBy.keys()) if (isDirect(peer)) sentBy.delete(peer)
  return Result.succeed({
    moves: moves.filter((_, at) => isDirect(peers[at]!)),
    peers: peers.filter(isDirect),
    paths,
    maps,
    faults: [...faults.values()],
    readFrom: new Map([...readFrom].filter(([peer]) => isDirect(peer))),
    sentBy
  })
}
