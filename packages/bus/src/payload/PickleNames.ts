// SPDX-License-Identifier: Apache-2.0
/**
 * The only names that a pickle may mention. A name is a mark, nothing more: the reader never looks one up and never calls
 * one.
 */
import type { DType } from "@tensorferry/core/base/DType"
import { dtypes } from "@tensorferry/core/base/DType"

export type PickleName =
  | "Shard"
  | "Replicate"
  | "Partial"
  | "_StridedShard"
  | "Tensor"
  | "Parameter"
  | "Size"
  | "UntypedStorage"
  | "TypedStorage"
  | "rebuild_tensor"
  | "rebuild_typed_storage"
  | "rebuild_storage_filename"
  | "rebuild_storage_fd"
  | "rebuild_cuda_tensor"
  | `dtype ${string}`

const placements = ["Shard", "Replicate", "Partial", "_StridedShard"] as const
const rebuilders = [
  "rebuild_tensor",
  "rebuild_typed_storage",
  "rebuild_storage_filename",
  "rebuild_storage_fd",
  "rebuild_cuda_tensor"
] as const

const names: ReadonlyMap<string, PickleName> = new Map<string, PickleName>([
  ...["torch.distributed.tensor.placement_types", "torch.distributed._tensor.placement_types"].flatMap((module) =>
    placements.map((name) => [`${module}\n${name}`, name] as const)
  ),
  ...rebuilders.map((name) => [`torch.multiprocessing.reductions\n${name}`, name] as const),
  ["torch\nTensor", "Tensor"],
  ["torch\nSize", "Size"],
  ["torch.nn.parameter\nParameter", "Parameter"],
  ["torch.storage\nUntypedStorage", "UntypedStorage"],
  ["torch.storage\nTypedStorage", "TypedStorage"],
  // Types that exist there but not here are distinguished from names that have no business in a payload.
  ...[...dtypes, "complex128", "complex32", "half", "float", "double"].map(
    (dtype) => [`torch\n${dtype}`, `dtype ${dtype}`] as const
  )
])

export const pickleName = (module: string, name: string): PickleName | undefined => names.get(`${module}\n${name}`)

const known: ReadonlySet<string> = new Set(dtypes)

/** The element type that a name stands for, or undefined for a type that cannot be moved. */
export const dtypeOfName = (name: PickleName): DType | undefined => {
  const dtype = name.startsWith("dtype ") ? name.slice(6) : undefined
  return dtype !== undefined && known.has(dtype) ? (dtype as DType) : undefined
}
