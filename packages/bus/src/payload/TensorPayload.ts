// SPDX-License-Identifier: Apache-2.0
/**
 * What a tensor's payload says about where the tensor lies.
 *
 * Contract
 * - `SharedTensor`: memory that a TypeScript client shares through `HostMemory`.
 * - `TorchHostTensor`: PyTorch's CPU memory shared by file name. Its bytes begin `torchHeaderBytes` into the file; the
 *   payload carries one count of the file's owners, which its reader gives back once.
 * - `PeerTensor`: memory in a file without a name that the client has open under a descriptor, as PyTorch shares CPU memory
 *   by default.
 * - `TorchCudaTensor`: CUDA memory to be opened through its IPC handle; the counter and the event are PyTorch's. A tensor
 *   without elements has no memory.
 *
 * A `NamedTensor` says of one of these what its client calls it, and how it lies on the mesh of its side.
 */

import { bitsOf, DType } from "@tensorferry/core/base/DType"
import { Natural } from "@tensorferry/core/base/Numbers"
import { Shape } from "@tensorferry/core/base/Region"
import { Placement } from "@tensorferry/core/layout/Placement"
import { HostMemoryHandle } from "@tensorferry/core/service/HostMemory"
import * as Schema from "effect/Schema"

/** PyTorch's header before the bytes of a file-shared storage; its first 4 bytes count the owners. */
export const torchHeaderBytes = 64

const view = { dtype: DType, shape: Shape, strides: Schema.Array(Natural) }

export const SharedTensor = Schema.TaggedStruct("SharedTensor", {
  ...view,
  byteOffset: Natural,
  memory: HostMemoryHandle,
  /** What the client calls the tensor; where both sides name theirs, tensors meet by name. */
  name: Schema.optionalKey(Schema.NonEmptyString.check(Schema.isMaxLength(1_000)))
})
export type SharedTensor = typeof SharedTensor.Type

export const PeerTensor = Schema.TaggedStruct("PeerTensor", {
  ...view,
  byteOffset: Natural,
  pid: HostMemoryHandle.fields.pid,
  processStart: HostMemoryHandle.fields.processStart,
  descriptor: HostMemoryHandle.fields.descriptor,
  /** Of the file, so that a descriptor of something else is noticed. */
  inode: HostMemoryHandle.fields.inode,
  /** From the beginning of the file to the end of the storage. */
  byteLength: Natural
})
export type PeerTensor = typeof PeerTensor.Type

/** Meshes have few dimensions. */
const mostPlacements = 32

export const NamedTensor = Schema.TaggedStruct("NamedTensor", {
  name: Schema.NonEmptyString.check(Schema.isMaxLength(1_000)),
  /** One per dimension of the mesh of this side; as the pair says where there are none. */
  placements: Schema.optionalKey(Schema.Array(Placement).check(Schema.isMaxLength(mostPlacements))),
  /** Of the tensor; a payload of another form. */
  payload: Schema.Uint8Array
})
export type NamedTensor = typeof NamedTensor.Type

export const TorchHostTensor = Schema.TaggedStruct("TorchHostTensor", {
  ...view,
  /** In elements. */
  storageOffset: Natural,
  storageBytes: Natural,
  /** As of shm_open. */
  sharedName: Schema.String
})
export type TorchHostTensor = typeof TorchHostTensor.Type

export const TorchCudaMemory = Schema.Struct({
  /** Of the whole allocation. */
  handle: Schema.Uint8Array,
  storageBytes: Natural,
  /** Where the storage begins in the allocation. */
  storageOffsetBytes: Natural,
  counterFile: Schema.String,
  /** In 8-byte counters. */
  counterOffset: Natural,
  event: Schema.Uint8Array,
  isEventSyncRequired: Schema.Boolean
})
export type TorchCudaMemory = typeof TorchCudaMemory.Type

export const TorchCudaTensor = Schema.TaggedStruct("TorchCudaTensor", {
  ...view,
  storageOffset: Natural,
  /** Of the client; an agent uses its own. */
  clientDevice: Natural,
  memory: Schema.NullOr(TorchCudaMemory)
})
export type TorchCudaTensor = typeof TorchCudaTensor.Type

export const TensorPayload = Schema.Union([SharedTensor, PeerTensor, TorchHostTensor, TorchCudaTensor])
export type TensorPayload = typeof TensorPayload.Type

/** First byte of a PyTorch tensor in its storage. */
export const byteOffsetOf = (tensor: TorchHostTensor | TorchCudaTensor): number =>
  tensor.storageOffset * Math.ceil(bitsOf(tensor.dtype) / 8)
