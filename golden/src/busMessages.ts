// SPDX-License-Identifier: Apache-2.0
/**
 * Recorded commands and payloads of other clients, and the checks of both sets. Each check answers what is wrong, or
 * undefined.
 */

import type { Message } from "@tensorferry/bus/command/Command"
import { decodeCommand, encodeCommand } from "@tensorferry/bus/command/CommandCodec"
import { decodeMeshShape, decodePlacements } from "@tensorferry/bus/payload/LayoutPayload"
import { decodeTensorPayload } from "@tensorferry/bus/payload/TensorCodec"
import type { Placement } from "@tensorferry/core/layout/Placement"
import * as Result from "effect/Result"

type RecordedValue =
  | null
  | string
  | number
  | { readonly int: string }
  | { readonly float64_hex: string; readonly text: string }
  | { readonly bin_hex: string }
  | ReadonlyArray<readonly [string, { readonly bin_hex: string }]>

export interface RecordedCommand {
  readonly type: string
  readonly fields: { readonly [field: string]: RecordedValue }
}

export interface RecordedCommands {
  readonly encode: ReadonlyArray<{
    readonly id: string
    readonly title: string
    readonly command: RecordedCommand
    readonly encoded_hex: string
  }>
  readonly decode: ReadonlyArray<{
    readonly id: string
    readonly title: string
    readonly bytes_hex: string
    readonly ok: boolean
    readonly command?: RecordedCommand
    readonly reencoded_hex?: string
    readonly error?: { readonly is_validation_error: boolean; readonly message: string }
  }>
}

export interface Verdict {
  readonly name: string
  readonly fault: string | undefined
}

const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString("hex")
const bytesOf = (text: string): Uint8Array => new Uint8Array(Buffer.from(text, "hex"))

const floatBits = (value: number): string => {
  const bytes = Buffer.alloc(8)
  bytes.writeDoubleBE(value)
  return bytes.toString("hex")
}

const equalsRecorded = (value: unknown, recorded: RecordedValue): boolean => {
  if (recorded === null || typeof recorded === "string" || typeof recorded === "number") return value === recorded
  if (Array.isArray(recorded)) {
    const list = value as ReadonlyArray<readonly [string, Uint8Array]>
    return (
      list.length === recorded.length &&
      recorded.every(([name, { bin_hex }], at) => list[at]![0] === name && hex(list[at]![1]) === bin_hex)
    )
  }
  if ("int" in recorded) return typeof value === "bigint" && String(value) === recorded.int
  if ("bin_hex" in recorded) return value instanceof Uint8Array && hex(value) === recorded.bin_hex
  const { float64_hex, text } = recorded as { readonly float64_hex: string; readonly text: string }
  return text === "nan" ? Number.isNaN(value) : typeof value === "number" && floatBits(value) === float64_hex
}

const differs = (message: Message, { type, fields }: RecordedCommand): string | undefined => {
  if (message._tag !== type) return `is ${message._tag}, not ${type}`
  const own = message as unknown as { readonly [name: string]: unknown }
  const wrong = Object.entries(fields).find(
    ([wire, value]) =>
      !equalsRecorded(own[wire.replaceAll(/_(.)/g, (_, letter: string) => letter.toUpperCase())], value)
  )
  return wrong === undefined ? undefined : `has another ${wrong[0]}`
}

const readsAs = (bytes: Uint8Array, command: RecordedCommand, written: string): string | undefined => {
  const decoded = decodeCommand(bytes)
  if (Result.isFailure(decoded)) return `refused: ${decoded.failure.message}`
  const again = hex(encodeCommand(decoded.success))
  return differs(decoded.success, command) ?? (again === written ? undefined : `is written as ${again.slice(0, 80)}`)
}

export const checkCommands = (recorded: RecordedCommands): ReadonlyArray<Verdict> => [
  ...recorded.encode.map(({ id, title, command, encoded_hex }) => ({
    name: `${id} ${title}`,
    fault: readsAs(bytesOf(encoded_hex), command, encoded_hex)
  })),
  ...recorded.decode.map(({ id, title, bytes_hex, ok, command, reencoded_hex, error }) => {
    const name = `${id} ${title}`
    if (ok) return { name, fault: readsAs(bytesOf(bytes_hex), command!, reencoded_hex!) }
    const decoded = decodeCommand(bytesOf(bytes_hex))
    if (Result.isSuccess(decoded)) return { name, fault: `accepted, where others say: ${error!.message}` }
    const wanted = error!.is_validation_error ? "Invalid" : "Malformed"
    const { _tag, detail } = decoded.failure.reason
    return { name, fault: _tag === wanted ? undefined : `${_tag} (${detail}), where others say: ${error!.message}` }
  })
]

export interface RecordedPayloads {
  readonly placements: ReadonlyArray<{
    readonly pickle: string
    readonly value: ReadonlyArray<{
      readonly kind: "Shard" | "Replicate" | "Partial" | "StridedShard"
      readonly dim?: number
      readonly splitFactor?: number
      readonly reduceOp?: string
    }>
  }>
  readonly meshShapes: ReadonlyArray<{ readonly pickle: string; readonly value: ReadonlyArray<number> }>
  readonly tensors: ReadonlyArray<{
    readonly name: string
    readonly pickle: string
    readonly device: string
    readonly dtype: string
    readonly shape: ReadonlyArray<number>
    readonly stride: ReadonlyArray<number>
    readonly storageOffset: number
    readonly storageBytes: number
  }>
  readonly hostile: ReadonlyArray<{ readonly name: string; readonly pickle: string }>
}

const unequal = (found: unknown, wanted: unknown): string | undefined => {
  const [a, b] = [JSON.stringify(found), JSON.stringify(wanted)]
  return a === b ? undefined : `is ${a}, not ${b}`
}

const checkTensor = (tensor: RecordedPayloads["tensors"][number]): string | undefined => {
  const decoded = Result.map(decodeTensorPayload(bytesOf(tensor.pickle)), ({ payload }) => payload)
  if (Result.isFailure(decoded)) return `refused: ${decoded.failure.message}`
  const found = decoded.success
  const [device = "", index = "0"] = tensor.device.split(":")
  const wanted = {
    device,
    index: Number(index),
    dtype: tensor.dtype,
    shape: tensor.shape,
    stride: tensor.stride,
    storageOffset: tensor.storageOffset,
    storageBytes: tensor.storageBytes
  }
  if (found._tag === "SharedTensor" || found._tag === "PeerTensor") return "is a payload of this bus"
  const isCuda = found._tag === "TorchCudaTensor"
  return unequal(
    {
      device: isCuda ? "cuda" : "cpu",
      index: isCuda ? found.clientDevice : 0,
      dtype: found.dtype,
      shape: found.shape,
      stride: found.strides,
      storageOffset: found.storageOffset,
      storageBytes: isCuda ? (found.memory?.storageBytes ?? 0) : found.storageBytes
    },
    wanted
  )
}

const recordedPlacement = (placement: Placement) => {
  switch (placement._tag) {
    case "Shard":
      return { kind: "Shard", dim: placement.dim }
    case "Replicate":
      return { kind: "Replicate" }
    case "Partial":
      return { kind: "Partial", reduceOp: placement.op }
    case "StridedShard":
      return { kind: "StridedShard", dim: placement.dim, splitFactor: placement.splitFactor }
  }
}

export const checkPayloads = (recorded: RecordedPayloads): ReadonlyArray<Verdict> => [
  ...recorded.placements.map(({ pickle, value }, at) => {
    const decoded = decodePlacements(bytesOf(pickle))
    if (Result.isFailure(decoded)) return { name: `placements ${at}`, fault: `refused: ${decoded.failure.message}` }
    const found = decoded.success.map(recordedPlacement)
    return { name: `placements ${at}`, fault: unequal(found, value) }
  }),
  ...recorded.meshShapes.map(({ pickle, value }, at) => {
    const decoded = decodeMeshShape(bytesOf(pickle))
    const fault = Result.isFailure(decoded) ? `refused: ${decoded.failure.message}` : unequal(decoded.success, value)
    return { name: `mesh shape ${at}`, fault }
  }),
  ...recorded.tensors.map((tensor) => ({ name: tensor.name, fault: checkTensor(tensor) })),
  ...recorded.hostile.map(({ name, pickle }) => {
    const bytes = bytesOf(pickle)
    const isAccepted =
      Result.isSuccess(decodeTensorPayload(bytes)) ||
      Result.isSuccess(decodePlacements(bytes)) ||
      Result.isSuccess(decodeMeshShape(bytes))
    return { name, fault: isAccepted ? "was accepted" : undefined }
  })
]
