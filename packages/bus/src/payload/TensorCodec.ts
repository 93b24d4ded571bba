// SPDX-License-Identifier: Apache-2.0
/** Payloads of tensors as bytes: those of PyTorch are read, our own are read and written. */
import type { DType } from "@tensorferry/core/base/DType"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { Value } from "../wire/Value.ts"
import { decodeOwnPayload, encodeOwnPayload, isOwnPayload } from "./OwnPayload.ts"
import { type PayloadError, payloadError } from "./PayloadError.ts"
import { type PickleValue, readPickle } from "./Pickle.ts"
import { dtypeOfName, type PickleName } from "./PickleNames.ts"
import { NamedTensor, PeerTensor, SharedTensor, type TensorPayload, type TorchCudaMemory } from "./TensorPayload.ts"

/** The payload of a tensor in memory that `HostMemory` shares: strides in elements, offset in bytes. */
export const encodeSharedTensor = (tensor: Omit<SharedTensor, "_tag">): Uint8Array =>
  encodeOwnPayload({ ...tensor, _tag: "SharedTensor" } as unknown as Value)

type Read<A> = Result.Result<A, PayloadError>

const fail = (tag: "Forbidden" | "Unsupported", detail: string, remedy: string): Read<never> =>
  Result.fail(payloadError(tag, { op: "read tensor", detail, remedy }))

const odd = (detail: string): Read<never> =>
  fail("Forbidden", detail, "Send the tensor as PyTorch's multiprocessing reduces it.")

const mostDimensions = 64

/** Reads arguments one after the other; the first that is not as it should be is the fault. */
class Arguments {
  readonly #values: ReadonlyArray<PickleValue>
  #at = 0
  fault: string | undefined

  constructor(values: ReadonlyArray<PickleValue>) {
    this.#values = values
  }

  #next<T extends PickleValue["type"]>(type: T): Extract<PickleValue, { readonly type: T }> | undefined {
    const value = this.#values[this.#at++]
    if (value?.type === type) return value as Extract<PickleValue, { readonly type: T }>
    this.fault ??= `Argument ${this.#at - 1} should be ${type} and is ${value?.type ?? "missing"}.`
    return undefined
  }

  natural(): number {
    const value = this.#next("int")?.value ?? 0
    if (value < 0) this.fault ??= `Argument ${this.#at - 1} is negative.`
    return value
  }

  bool(): boolean {
    return this.#next("bool")?.value ?? false
  }

  bytes(): Uint8Array {
    return (this.#next("bytes")?.value ?? new Uint8Array(0)).slice()
  }

  name(...allowed: ReadonlyArray<PickleName>): void {
    const name = this.#next("name")?.name
    if (name !== undefined && !allowed.includes(name)) this.fault ??= `${name} stands where ${allowed[0]} should.`
  }

  dtype(): DType | undefined {
    const name = this.#next("name")?.name
    return name === undefined ? undefined : dtypeOfName(name)
  }

  naturals(): ReadonlyArray<number> {
    const items = this.#next("tuple")?.items ?? []
    const numbers = items.flatMap((item) => (item.type === "int" && item.value >= 0 ? [item.value] : []))
    if (numbers.length !== items.length || items.length > mostDimensions) {
      this.fault ??= `Argument ${this.#at - 1} is not a tuple of natural numbers.`
    }
    return numbers
  }

  /** A tuple of lengths, plain or within a call of Size. */
  size(): ReadonlyArray<number> {
    if (this.#values[this.#at]?.type !== "call") return this.naturals()
    return this.call("Size").naturals()
  }

  call(name: PickleName): Arguments {
    const call = this.#next("call")
    if (call !== undefined && call.name !== name) this.fault ??= `${call.name} stands where ${name} should.`
    return new Arguments(call?.name === name ? call.args : [])
  }

  tuple(): Arguments {
    return new Arguments(this.#next("tuple")?.items ?? [])
  }

  peek(): PickleValue | undefined {
    return this.#values[this.#at]
  }

  skip(): void {
    this.#at += 1
  }

  end(): void {
    if (this.#at !== this.#values.length) {
      this.fault ??= `There are ${this.#values.length} arguments where ${this.#at} are known.`
    }
  }
}

const ascii = (bytes: Uint8Array): string => new TextDecoder("latin1").decode(bytes)

/** Names that PyTorch gives to shared memory; anything else would let a payload open what it should not. */
const sharedName = /^\/torch_\d{1,10}_\d{1,20}(_\d{1,20})?$/

const noDtype = fail(
  "Unsupported",
  "The tensor has an element type that cannot be moved.",
  "Send a tensor of another type."
)

const hostTensor = (args: ReadonlyArray<PickleValue>): Read<TensorPayload> => {
  const outer = new Arguments(args)
  outer.name("Tensor", "Parameter")
  const typed = outer.call("rebuild_typed_storage")
  const storage = typed.call("rebuild_storage_filename")
  const dtype = typed.dtype()
  storage.name("UntypedStorage", "TypedStorage")
  storage.bytes()
  const name = ascii(storage.bytes())
  const storageBytes = storage.natural()
  if (storage.peek()?.type === "none") storage.skip()
  const metadata = outer.tuple()
  const storageOffset = metadata.natural()
  const shape = metadata.size()
  const strides = metadata.naturals()
  metadata.bool()
  for (const each of [storage, typed, metadata, outer]) each.end()
  const fault = outer.fault ?? typed.fault ?? storage.fault ?? metadata.fault
  if (fault !== undefined) return odd(fault)
  if (dtype === undefined) return noDtype
  if (!sharedName.test(name)) return odd(`${JSON.stringify(name.slice(0, 80))} is not a name of shared memory.`)
  return Result.succeed({
    _tag: "TorchHostTensor",
    dtype,
    shape,
    strides,
    storageOffset,
    storageBytes,
    sharedName: name
  })
}

const handleBytes = 66
/** PyTorch up to 2.12 writes 2. From 2.13 on it writes 3, of the same form for plain memory. */
const handleVersions: ReadonlyArray<number | undefined> = [2, 3]
const plainAllocation = "c".charCodeAt(0)
const eventBytes = 64

const cudaMemory = (args: Arguments): Read<TorchCudaMemory | null> => {
  if (args.peek()?.type === "none") {
    for (let left = 8; left > 0; left--) args.skip()
    return Result.succeed(null)
  }
  const handle = args.bytes()
  const storageBytes = args.natural()
  const storageOffsetBytes = args.natural()
  args.bool()
  const counterFile = ascii(args.bytes())
  const counterOffset = args.natural()
  const event = args.bytes()
  const isEventSyncRequired = args.bool()
  if (args.fault !== undefined) return odd(args.fault)
  if (!handleVersions.includes(handle[0])) {
    return Result.fail(
      payloadError("UnknownVersion", {
        op: "read tensor",
        detail: `The handle of the tensor's memory has version ${handle[0] ?? "none"}, not ${handleVersions.join(" or ")}.`,
        remedy: "Use PyTorch 2.5 or newer, up to the versions that the documentation names."
      })
    )
  }
  if (handle[1] !== plainAllocation) {
    return fail(
      "Unsupported",
      "The tensor lies in expandable memory, which has no handle that an agent can open.",
      "Run the client without expandable_segments in PYTORCH_ALLOC_CONF."
    )
  }
  if (handle.length !== handleBytes || (event.length !== eventBytes && event.length !== 0)) {
    return odd(`The handles have ${handle.length} and ${event.length} bytes.`)
  }
  if (!sharedName.test(counterFile)) return odd("The file of the reference count has no such name.")
  return Result.succeed({
    handle: handle.slice(2),
    storageBytes,
    storageOffsetBytes,
    counterFile,
    counterOffset,
    event,
    isEventSyncRequired
  })
}

const cudaTensor = (values: ReadonlyArray<PickleValue>): Read<TensorPayload> => {
  const args = new Arguments(values)
  args.name("Tensor", "Parameter")
  const shape = args.size()
  const strides = args.naturals()
  const storageOffset = args.natural()
  args.name("TypedStorage", "UntypedStorage")
  const dtype = args.dtype()
  const clientDevice = args.natural()
  return Result.flatMap(cudaMemory(args), (memory) => {
    args.end()
    if (args.fault !== undefined) return odd(args.fault)
    if (dtype === undefined) return noDtype
    return Result.succeed({ _tag: "TorchCudaTensor", dtype, shape, strides, storageOffset, clientDevice, memory })
  })
}

/** A payload, and what its client says beside it. */
export interface StatedPayload {
  readonly payload: TensorPayload
  /** What the client calls the tensor. */
  readonly name: string | null
  /** How the tensor lies on the mesh of its side, where that is not what its pair says. */
  readonly placements: NamedTensor["placements"]
}

const OwnTensor = Schema.Union([SharedTensor, PeerTensor, NamedTensor])

/**
 * Reads a payload of this project or of PyTorch's multiprocessing. A payload that names no usable tensor is a
 * PayloadError.
 */
export const decodeTensorPayload = (bytes: Uint8Array): Read<StatedPayload> => {
  if (isOwnPayload(bytes)) return Result.flatMap(decodeOwnPayload(OwnTensor, bytes), ownTensor)
  return Result.map(torchTensor(bytes), plain)
}

const plain = (payload: TensorPayload): StatedPayload => ({ payload, name: null, placements: undefined })

const ownTensor = (own: typeof OwnTensor.Type): Read<StatedPayload> => {
  if (own._tag === "PeerTensor") return Result.succeed(plain(own))
  if (own._tag === "SharedTensor") return Result.succeed({ ...plain(own), name: own.name ?? null })
  const { name, placements, payload } = own
  // One name is enough: names within names would let a payload nest without end.
  const inner: Read<TensorPayload> = isOwnPayload(payload)
    ? decodeOwnPayload(Schema.Union([SharedTensor, PeerTensor]), payload)
    : torchTensor(payload)
  return Result.map(inner, (tensor) => ({ payload: tensor, name, placements }))
}

const torchTensor = (bytes: Uint8Array): Read<TensorPayload> =>
  Result.flatMap(readPickle(bytes), (value) => {
    if (value.type === "call" && value.name === "rebuild_tensor") return hostTensor(value.args)
    if (value.type === "call" && value.name === "rebuild_cuda_tensor") return cudaTensor(value.args)
    return odd("The payload is not a tensor.")
  })
