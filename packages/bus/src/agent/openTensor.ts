// SPDX-License-Identifier: Apache-2.0
/**
 * Tensors of clients, used where they lie. What is opened is closed with the scope, and a count that PyTorch keeps is
 * given back then, once, whatever became of the batch.
 */
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { cpu } from "@tensorferry/core/tensor/Device"
import { makeStorage, type Storage } from "@tensorferry/core/tensor/Storage"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import type { NativeAnswer } from "@tensorferry/native/NativeAddon"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type Addon, loadAddon } from "../Addon.ts"
import { type BusError, busError } from "../BusError.ts"
import { isAlive, type Owner, seenOwner } from "../liveness.ts"
import { decodeTensorPayload, type StatedPayload } from "../payload/TensorCodec.ts"
import {
  byteOffsetOf,
  type PeerTensor,
  type SharedTensor,
  type TensorPayload,
  type TorchCudaTensor,
  type TorchHostTensor
} from "../payload/TensorPayload.ts"
import { TensorImporter } from "./TensorImporter.ts"

export interface OpenTensor {
  readonly tensor: Tensor
  /** Whose memory it is, where the end of that process can be noticed. */
  readonly owner: Owner | undefined
  /** What its client calls it; PyTorch's own payloads have no names. */
  readonly name: string | null
  /** How it lies on the mesh of its side, where that is not what its pair says. */
  readonly placements: StatedPayload["placements"]
}

const op = "RegisterTensors"

const unavailable = (detail: string): BusError =>
  busError("MemoryUnavailable", {
    op,
    detail,
    remedy: "Keep the tensor alive in the client, and run client and agent as the same user on the same machine."
  })

const viewOf = (storage: Storage, payload: TensorPayload, byteOffset: number): Effect.Effect<Tensor, BusError> => {
  const view = tensorView(storage, payload.dtype, payload.shape, { strides: payload.strides, byteOffset })
  return Result.isSuccess(view)
    ? Effect.succeed(view.success)
    : Effect.fail(
        busError("InvalidPayload", { op, detail: `${view.failure.detail}.`, remedy: "Share the tensor again." })
      )
}

const openShared = (payload: SharedTensor): Effect.Effect<Tensor, BusError, HostMemory | Scope.Scope> =>
  Effect.gen(function* () {
    const memory = yield* HostMemory
    const storage = yield* Effect.mapError(memory.openShared(payload.memory), (error) => unavailable(error.message))
    return yield* viewOf(storage, payload, payload.byteOffset)
  })

/** For `Storage.fault`: whether a client made a file shorter than its mapping, which reads as zeros there. */
const faultBy = (ask: () => NativeAnswer<boolean>) => (): string | undefined => {
  const answer = ask()
  return answer.code === "Ok" && answer.value ? "The client made the file of the memory shorter." : undefined
}

const mapPeer = (addon: Addon, payload: PeerTensor): Effect.Effect<Storage, BusError> =>
  Effect.suspend(() => {
    const { pid, processStart, descriptor, inode, byteLength } = payload
    const gone = () => unavailable(`Process ${pid}, which has the memory, is gone or is another by now.`)
    if (!isAlive({ pid, processStart })) return Effect.fail(gone())
    const opened = addon.openPeerMemory(pid, descriptor, BigInt(inode), byteLength)
    if (opened.code !== "Ok") return Effect.fail(unavailable(opened.detail))
    const { memory, address, buffer = new ArrayBuffer(0) } = opened.value
    const release = () => {
      addon.closePeerMemory(memory, buffer)
    }
    // The number may have become another process's while its memory was opened.
    if (!isAlive({ pid, processStart })) {
      release()
      return Effect.fail(gone())
    }
    // An agent that receives maps it as well, where the client sealed it.
    const file = { pid, processStart, descriptor, inode: BigInt(inode), byteOffset: 0 }
    const fault = faultBy(() => addon.isPeerMemoryCut(memory))
    const bytes = new Uint8Array(buffer)
    return Effect.succeed(makeStorage({ device: cpu, address, byteLength, bytes, file, fault, release }))
  })

/** The view of memory that is mapped for as long as the scope lasts. */
const openMapped = (mapping: Effect.Effect<Storage, BusError>, payload: TensorPayload, byteOffset: number) =>
  Effect.gen(function* () {
    const storage = yield* Effect.acquireRelease(mapping, (mapped) => Effect.sync(mapped.free))
    return yield* viewOf(storage, payload, byteOffset)
  })

const mapTorch = (addon: Addon, { sharedName, storageBytes }: TorchHostTensor): Effect.Effect<Storage, BusError> =>
  Effect.suspend(() => {
    const opened = addon.openTorchMemory(sharedName, storageBytes)
    if (opened.code !== "Ok") return Effect.fail(unavailable(opened.detail))
    const { memory, address, buffer = new ArrayBuffer(0) } = opened.value
    const storage = makeStorage({
      device: cpu,
      address,
      byteLength: storageBytes,
      bytes: new Uint8Array(buffer),
      fault: faultBy(() => addon.isTorchMemoryCut(memory)),
      release: () => {
        addon.closeTorchMemory(memory, buffer)
      }
    })
    return Effect.succeed(storage)
  })

const torchOwner = (name: string): Owner => ({ pid: Number(name.split("_")[1]), processStart: undefined })

const openTorchCuda = (addon: Addon, payload: TorchCudaTensor): Effect.Effect<Tensor, BusError, Scope.Scope> =>
  Effect.gen(function* () {
    const { memory } = payload
    if (memory !== null) {
      const { counterFile, counterOffset } = memory
      const client = seenOwner(torchOwner(counterFile))
      // Before anything that can fail: the payload carries a count whether the memory can be used or not.
      yield* Effect.addFinalizer(() =>
        Effect.sync(() => {
          addon.returnCudaCount(counterFile, counterOffset)
          if (client !== undefined && !isAlive(client)) addon.removeCudaCounts(counterFile)
        })
      )
    }
    const importer = yield* Effect.serviceOption(TensorImporter)
    if (Option.isNone(importer)) {
      return yield* busError("UnsupportedTensor", {
        op,
        detail: "The tensor lies on a GPU, and this agent serves host memory only.",
        remedy: "Start the agent with a backend for the device, or register a tensor of the host."
      })
    }
    return yield* importer.value.open(payload)
  })

const ownerOf = (payload: TensorPayload): Owner => {
  switch (payload._tag) {
    case "SharedTensor":
      return { pid: payload.memory.pid, processStart: payload.memory.processStart }
    case "PeerTensor":
      return { pid: payload.pid, processStart: payload.processStart }
    case "TorchHostTensor":
      return torchOwner(payload.sharedName)
    case "TorchCudaTensor":
      return payload.memory === null ? { pid: 0, processStart: undefined } : torchOwner(payload.memory.counterFile)
  }
}

/** Opens what a payload describes, for as long as the scope lasts. */
export const openTensor = Effect.fnUntraced(function* (
  bytes: Uint8Array
): Effect.fn.Return<OpenTensor, BusError, HostMemory | Scope.Scope> {
  const decoded = decodeTensorPayload(bytes)
  if (Result.isFailure(decoded)) {
    const { _tag, detail, remedy } = decoded.failure.reason
    return yield* busError(_tag === "Unsupported" ? "UnsupportedTensor" : "InvalidPayload", {
      op,
      detail: `${_tag}: ${detail}`,
      remedy
    })
  }
  const { payload, name, placements } = decoded.success
  // Seen before the memory is opened: a client may end while it is, and would count as one that cannot be seen.
  const stated = { owner: seenOwner(ownerOf(payload)), name, placements }
  if (payload._tag === "SharedTensor") return { tensor: yield* openShared(payload), ...stated }
  const addon = yield* Effect.mapError(loadAddon, (error) =>
    busError("ServiceFailed", { op, detail: error.reason.detail, remedy: error.reason.remedy })
  )
  switch (payload._tag) {
    case "PeerTensor":
      return { tensor: yield* openMapped(mapPeer(addon, payload), payload, payload.byteOffset), ...stated }
    case "TorchHostTensor":
      return { tensor: yield* openMapped(mapTorch(addon, payload), payload, byteOffsetOf(payload)), ...stated }
    case "TorchCudaTensor":
      return { tensor: yield* openTorchCuda(addon, payload), ...stated }
  }
})
