// SPDX-License-Identifier: Apache-2.0
/**
 * Moves between this rank's memory and a peer's that is mapped here: what is long and dense for the copy engine, the rest
 * for one kernel.
 *
 * Invariant: a move is compiled only where the peer's region lies inside the memory that it published; what a peer claims
 * can make the preparation fail, never reach outside.
 */

import type { Device } from "@tensorferry/core/tensor/Device"
import { makeStorage, type Storage } from "@tensorferry/core/tensor/Storage"
import { byteMove, tensorByteLength, tensorView } from "@tensorferry/core/tensor/Tensor"
import type { Checked, DriverErrors } from "@tensorferry/native/driver/DriverErrors"
import type { Flow } from "@tensorferry/native/driver/Flows"
import type { PeerList } from "@tensorferry/native/driver/PeerList"
import { type ByteRun, MoveTable } from "@tensorferry/native/MoveTable"
import * as Result from "effect/Result"
import type { PeerMemory } from "./openPeerMemory.ts"

export interface DirectMoves {
  readonly peer: number
  readonly isReceiving: boolean
  /** Moves of one kernel; empty where there are none. */
  readonly table: BigUint64Array
  readonly tableBytes: number
  /** For the copy engine. */
  readonly runs: ReadonlyArray<ByteRun>
}

/** The peer's storage, as far as this process can name its bytes. */
const peerStorage = (device: Device, address: number, byteLength: number): Storage =>
  makeStorage({ device, address: BigInt(address), byteLength, release: () => {} })

export const directMoves = (
  errors: DriverErrors,
  flow: Flow,
  list: PeerList,
  { mappings }: PeerMemory,
  copyEngineBytes: number
): Checked<DirectMoves> => {
  const { peer, isReceiving, pairs } = flow
  const table = new MoveTable(pairs.length)
  const runs: Array<ByteRun> = []
  const storages = new Map<number, Storage>()
  let tableBytes = 0

  for (const { tensor, theirs, taskId } of pairs) {
    const wrong = (detail: string) =>
      Result.fail(errors.fail("InvalidProgram", detail, { peer, taskId, op: "prepare", scope: "op" }))
    const memory = list.memories[theirs.memory]!
    const mapping = mappings.get(memory.block)
    if (mapping === undefined) return wrong("The peer's memory is not mapped.")
    const address = mapping.address + (memory.address - list.blocks[memory.block]!.address)
    const storage = storages.get(theirs.memory) ?? peerStorage(tensor.device, address, memory.byteLength)
    storages.set(theirs.memory, storage)
    const view = tensorView(storage, theirs.dtype, theirs.shape, theirs)
    if (Result.isFailure(view)) return wrong(`The peer's region is not in its memory: ${view.failure.detail}.`)
    const move = byteMove(isReceiving ? { dst: tensor, src: view.success } : { dst: view.success, src: tensor })
    if (Result.isFailure(move)) return wrong(`${move.failure.detail}.`)
    const run = table.addUnlessRun(move.success, copyEngineBytes)
    if (run === undefined) tableBytes += tensorByteLength(move.success.dst)
    else runs.push(run)
  }
  return Result.succeed({ peer, isReceiving, table: table.table, tableBytes, runs })
}
