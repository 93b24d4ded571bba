// SPDX-License-Identifier: Apache-2.0
/**
 * The only names that pickles of PyTorch's checkpoints may mention. A name is a mark, nothing more: the reader never looks
 * one up and never calls one.
 */
import type { DType } from "@tensorferry/core/base/DType"
import { dtypes, isSubByte } from "@tensorferry/core/base/DType"
import type { PickleRules } from "../pickle/ClosedPickle.ts"

/** A name of a state dict, or of the metadata of a distributed checkpoint. */
export type TorchName =
  | "OrderedDict"
  | "rebuild_tensor"
  | "rebuild_tensor_v3"
  | "rebuild_parameter"
  | "Size"
  | "layout"
  | "memory format"
  | "path"
  | "Metadata"
  | "TensorStorageMetadata"
  | "BytesStorageMetadata"
  | "TensorProperties"
  | "ChunkStorageMetadata"
  | "MetadataIndex"
  | "StorageInfo"
  | "StorageMeta"
  | `storage ${string}`
  | `dtype ${string}`

/** Storages of PyTorch by the type of their elements; `UntypedStorage` counts bytes. */
const storages: Readonly<Record<string, DType | "bytes">> = {
  DoubleStorage: "float64",
  FloatStorage: "float32",
  HalfStorage: "float16",
  BFloat16Storage: "bfloat16",
  LongStorage: "int64",
  IntStorage: "int32",
  ShortStorage: "int16",
  CharStorage: "int8",
  ByteStorage: "uint8",
  BoolStorage: "bool",
  ComplexFloatStorage: "complex64"
}

const metadata = "torch.distributed.checkpoint.metadata"
/** Where versions before 2.3 kept them. */
const olderMetadata = "torch.distributed._shard.sharded_tensor.metadata"

const stateNames: ReadonlyArray<readonly [module: string, name: string, mark: TorchName]> = [
  ["collections", "OrderedDict", "OrderedDict"],
  ["torch", "Size", "Size"],
  ["torch._utils", "_rebuild_tensor_v2", "rebuild_tensor"],
  ["torch._utils", "_rebuild_tensor_v3", "rebuild_tensor_v3"],
  ["torch._utils", "_rebuild_parameter", "rebuild_parameter"],
  ["torch.storage", "UntypedStorage", "storage bytes"],
  ...Object.entries(storages).map(([name, dtype]) => ["torch", name, `storage ${dtype}`] as const),
  ...dtypes.map((dtype) => ["torch", dtype, `dtype ${dtype}`] as const),
  // Other spellings, and types that exist there but not here.
  ...["complex128", "complex32"].map((dtype) => ["torch", dtype, `dtype ${dtype}`] as const)
]

const metadataNames: ReadonlyArray<readonly [module: string, name: string, mark: TorchName]> = [
  ...(
    [
      "Metadata",
      "TensorStorageMetadata",
      "BytesStorageMetadata",
      "TensorProperties",
      "ChunkStorageMetadata",
      "MetadataIndex",
      "StorageMeta"
    ] as const
  ).map((name) => [metadata, name, name] as const),
  [olderMetadata, "TensorProperties", "TensorProperties"],
  [olderMetadata, "MEM_FORMAT_ENCODING", "memory format"],
  [metadata, "_MEM_FORMAT_ENCODING", "memory format"],
  ["torch.distributed.checkpoint.filesystem", "_StorageInfo", "StorageInfo"],
  ["torch.serialization", "_get_layout", "layout"],
  ...["pathlib", "pathlib._local"].flatMap((module) =>
    ["PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"].map((name) => [module, name, "path"] as const)
  ),
  ...stateNames
]

const mapOf = (names: typeof stateNames): ReadonlyMap<string, TorchName> =>
  new Map(names.map(([module, name, mark]) => [`${module}\n${name}`, mark]))

const [state, withMetadata] = [mapOf(stateNames), mapOf(metadataNames)]

/** What the pickle inside a file of torch.save may contain. */
export const stateRules: PickleRules<TorchName> = {
  protocols: [2, 3, 4, 5],
  mostBytes: 256 * 1024 * 1024,
  mostValues: 16 * 1024 * 1024,
  nameOf: (module, name) => state.get(`${module}\n${name}`),
  users: "state dicts",
  dicts: new Set(["OrderedDict"]),
  allowsReferences: true
}

/** What the `.metadata` of a distributed checkpoint may contain. */
export const metadataRules: PickleRules<TorchName> = {
  ...stateRules,
  nameOf: (module, name) => withMetadata.get(`${module}\n${name}`),
  users: "distributed checkpoints",
  allowsReferences: false
}

/** PyTorch has no elements below a byte. */
const known: ReadonlySet<string> = new Set(dtypes.filter((dtype) => !isSubByte(dtype)))

/** The element type that a name stands for; undefined for a type that cannot be moved. */
export const dtypeOfName = (name: TorchName): DType | undefined => {
  const dtype = /^(?:dtype|storage) (.+)$/.exec(name)?.[1]
  return dtype !== undefined && known.has(dtype) ? (dtype as DType) : undefined
}
