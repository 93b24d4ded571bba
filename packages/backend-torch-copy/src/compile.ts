/**
 * The receiver's half of a preparation: one table of moves for all parts of all peers.
 *
 * Invariant: a move is compiled only where both ends agree on the part and the peer's region lies inside the memory that
 * it published; what a peer claims can make the preparation fail, never reach outside.
 */
import { equalShapes, formatShape } from "@tensorferry/core/base/Region"
import type { Message, MessagePart } from "@tensorferry/core/ir/Message"
import {
  type CopyDriverError,
  type CopyDriverReason,
  copyDriverError,
  type PeerPath
} from "@tensorferry/core/service/CopyDriver"
import { byteMove, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"
import { backendName } from "./Addon.ts"
import type { TableMove } from "./OpTable.ts"
import type { PeerMap } from "./PeerMaps.ts"
import type { PeerList, PublishedPart, PublishedProcess } from "./Publication.ts"
import type { Reach, Reached } from "./reach.ts"

/** A rank that sends to this one: what it said and how to get there. */
export interface Sender {
  readonly process: PublishedProcess
  readonly list: PeerList
  readonly reach: Reach
}

export interface CompiledMoves {
  readonly moves: ReadonlyArray<TableMove>
  /** Rank that each move fetches from. */
  readonly peers: ReadonlyArray<number>
  readonly paths: ReadonlyArray<PeerPath>
  readonly maps: ReadonlyArray<PeerMap>
  /** Processes read without a map, by rank. */
  readonly readFrom: ReadonlyMap<number, PublishedProcess>
}

export const compile = (
  rank: number,
  messages: ReadonlyArray<Message>,
  senders: ReadonlyMap<number, Sender>,
  /** Gets every map as soon as it is acquired, so that the caller can give it back on failure too. */
  keep: (map: PeerMap) => void
): Result.Result<CompiledMoves, CopyDriverError> => {
  const moves: Array<TableMove> = []
  const peers: Array<number> = []
  const maps: Array<PeerMap> = []
  const readFrom = new Map<number, PublishedProcess>()
  const taken = new Map<number, Map<string, string>>()
  const reached = new Map<string, Reached>()

  const fail = (tag: CopyDriverReason["_tag"], peer: number, detail: string, remedy: string, taskId?: number) =>
    Result.fail(
      copyDriverError(tag, {
        backend: backendName,
        rank,
        peer,
        op: "prepare",
        detail,
        remedy,
        ...(taskId === undefined ? {} : { taskId })
      })
    )
  const disagree = (peer: number, detail: string, taskId?: number) =>
    fail("InvalidProgram", peer, detail, "Give both ends the same messages, parts, shapes and types.", taskId)

  const reachMemory = (peer: number, sender: Sender, index: number): Result.Result<Reached, CopyDriverError> => {
    const known = reached.get(`${peer}:${index}`)
    if (known !== undefined) return Result.succeed(known)
    const memory = sender.list.memories[index]
    if (memory === undefined) return disagree(peer, `The peer refers to memory ${index}, which it did not publish.`)
    const found = sender.reach.memory(memory)
    if (Result.isFailure(found)) {
      return fail(
        "UnreachableMemory",
        peer,
        `No path: ${found.failure}.`,
        "Run both processes as one user on one host, or choose another backend."
      )
    }
    const { map, path, reason } = found.success
    if (map === undefined) readFrom.set(peer, sender.process)
    else {
      maps.push(map)
      keep(map)
    }
    const paths = taken.get(peer) ?? new Map<string, string>()
    taken.set(peer, paths.set(path, reason))
    reached.set(`${peer}:${index}`, found.success)
    return Result.succeed(found.success)
  }

  const addPart = (
    peer: number,
    sender: Sender,
    mine: MessagePart,
    theirs: PublishedPart
  ): Result.Result<void, CopyDriverError> => {
    const { tensor, taskId } = mine
    const isSame = taskId === theirs.taskId && mine.part === theirs.part && tensor.dtype === theirs.dtype
    if (!isSame || !equalShapes(tensor.shape, theirs.shape)) {
      return disagree(
        peer,
        `Task ${taskId} part ${mine.part} ${tensor.dtype}${formatShape(tensor.shape)} meets ` +
          `task ${theirs.taskId} part ${theirs.part} ${theirs.dtype}${formatShape(theirs.shape)}.`,
        taskId
      )
    }
    if (tensor.shape.includes(0)) return Result.succeed(undefined)
    const memory = reachMemory(peer, sender, theirs.memory)
    if (Result.isFailure(memory)) return Result.fail(memory.failure)
    const view = tensorView(memory.success.storage, theirs.dtype, theirs.shape, theirs)
    if (Result.isFailure(view))
      return disagree(peer, `The peer's region is not in its memory: ${view.failure.detail}.`, taskId)
    const move = byteMove({ dst: tensor, src: view.success })
    if (Result.isFailure(move)) return disagree(peer, `${move.failure.detail}.`, taskId)
    moves.push({ ...move.success, pid: memory.success.pid })
    peers.push(peer)
    return Result.succeed(undefined)
  }

  for (const { direction, peer, index, parts } of messages) {
    if (direction !== "recv") continue
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
  const paths = [...taken].map(([peer, byPath]) => ({
    peer,
    path: [...byPath.keys()].join("+"),
    reason: [...byPath.values()].join("; ")
  }))
  return Result.succeed({ moves, peers, paths, maps, readFrom })
}
