// SPDX-License-Identifier: Apache-2.0
/**
 * Makes the delta between two versions of a model, tensor by tensor: what changed is found by the engine, stated in the form
 * with the fewest bytes, and kept in a file beside the output until all of it is known.
 *
 * Invariant: memory holds one tensor of each version at a time. The output has its name only when it is complete.
 */
import { randomBytes } from "node:crypto"
import { type FileHandle, open, unlink } from "node:fs/promises"
import { tensorHash } from "@tensorferry/core/base/Digest"
import { isSubByte } from "@tensorferry/core/base/DType"
import { equalShapes, formatShape, fullRegion } from "@tensorferry/core/base/Region"
import { TensorEngine, type TensorEngineShape, type TensorError } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorBytes, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type { CheckpointError } from "../checkpoint/CheckpointError.ts"
import { systemCall, writeFully } from "../checkpoint/FileAccess.ts"
import { stageSafetensors } from "../checkpoint/SafetensorsWriter.ts"
import type { ModelTensor } from "../layout/ModelLayout.ts"
import type { Model } from "../Model.ts"
import { type ModelError, modelError } from "../ModelError.ts"
import { checkFilesUnchanged } from "../SameFiles.ts"
import { type DeltaTensor, deltaMetadata, deltaShapeOf } from "./DeltaFile.ts"
import { type DeltaCompression, type DeltaForm, encodeDelta } from "./DeltaPayload.ts"
import { breakEvenShare } from "./DeltaSize.ts"

/** How deltas are made. */
export interface MakeDeltaOptions {
  /** As in `DeltaOptions`. */
  readonly compression?: DeltaCompression
}

/** What a delta says of one tensor. */
export interface MadeChanges {
  readonly name: string
  readonly elements: number
  readonly changed: number
  /** Bytes of the tensor, and of its payload: 0 where it did not change. */
  readonly fullBytes: number
  readonly bytes: number
  readonly form?: DeltaForm
  readonly compression?: DeltaCompression
}

/** What was written. */
export interface MadeDelta {
  readonly base: string
  readonly result: string
  readonly tensors: ReadonlyArray<MadeChanges>
  /** Bytes of the file. */
  readonly bytes: number
}

const different = (file: string, paramName: string, detail: string): ModelError =>
  modelError("Different", {
    file,
    paramName,
    detail,
    remedy: "A delta is between two versions with the same tensors; write the full model."
  })

/** Fails where the two have not the same tensors. */
const checkSameTensors = (base: Model, result: Model): Effect.Effect<void, ModelError> => {
  const before = new Map(base.tensors.map((tensor) => [tensor.name, tensor]))
  for (const { name, dtype, shape } of result.tensors) {
    const old = before.get(name)
    before.delete(name)
    if (old === undefined) return Effect.fail(different(result.path, name, `${base.path} has no such tensor.`))
    if (old.dtype !== dtype || !equalShapes(old.shape, shape)) {
      const types = `${old.dtype}${formatShape(old.shape)} became ${dtype}${formatShape(shape)}`
      return Effect.fail(different(result.path, name, `${types}.`))
    }
    if (isSubByte(dtype)) return Effect.fail(different(result.path, name, `Elements of ${dtype} share bytes.`))
  }
  const [lost] = before.keys()
  return lost === undefined
    ? Effect.void
    : Effect.fail(different(result.path, lost, `${result.path} has no such tensor any more.`))
}

/** A file for bytes whose place in the output is not known yet; it has no name, and ends with the scope. */
const openSpool = (beside: string): Effect.Effect<FileHandle, CheckpointError, Scope.Scope> =>
  Effect.acquireRelease(
    systemCall("WriteFailed", beside, "create a file beside it", async () => {
      const temporary = `${beside}.tmp-${randomBytes(8).toString("hex")}`
      const handle = await open(temporary, "wx+")
      await unlink(temporary)
      return handle
    }),
    (handle) => Effect.ignore(Effect.tryPromise(() => handle.close()))
  )

const pieceBytes = 16 * 1024 * 1024

/** Bytes of the spool, piece by piece. */
const spooled = (path: string, spool: FileHandle, from: number, length: number) =>
  Stream.mapEffect(
    Stream.fromIterable(Array.from({ length: Math.ceil(length / pieceBytes) }, (_, at) => at * pieceBytes)),
    (at) => {
      const bytes = new Uint8Array(Math.min(pieceBytes, length - at))
      return Effect.as(
        systemCall("WriteFailed", path, "read back what it is to hold", async () => {
          for (let done = 0; done < bytes.length; ) {
            const { bytesRead } = await spool.read(bytes, done, bytes.length - done, from + at + done)
            if (bytesRead === 0) break
            done += bytesRead
          }
        }),
        bytes
      )
    }
  )

const hostTensor = (engine: TensorEngineShape, { dtype, shape }: ModelTensor, bytes: Uint8Array) =>
  Effect.map(engine.wrapHost(bytes), (storage): Tensor => Result.getOrThrow(tensorView(storage, dtype, shape)))

/** Changes of one tensor between its two versions. */
const changesOf = Effect.fnUntraced(function* (
  tensor: ModelTensor,
  base: Uint8Array,
  result: Uint8Array,
  compression: DeltaCompression
): Effect.fn.Return<
  ReturnType<typeof encodeDelta> & { readonly changed: number },
  TensorError,
  TensorEngine | Scope.Scope
> {
  const engine = yield* TensorEngine
  const { elementBytes, elements } = deltaShapeOf(tensor)
  const [before, after] = [yield* hostTensor(engine, tensor, base), yield* hostTensor(engine, tensor, result)]
  const listFor = (count: number) =>
    Effect.all({ positions: engine.allocate("uint32", [count]), values: engine.allocate(tensor.dtype, [count]) })
  const changed = yield* engine.diff(before, after, yield* listFor(0))
  // Lists that no form will state are not made: they would take more memory than the tensor.
  const isListed = changed < breakEvenShare(elements, elementBytes) * elements
  const list = yield* listFor(isListed ? changed : 0)
  if (isListed) yield* engine.diff(before, after, list)
  const positions = tensorBytes(list.positions)!
  const encoded = encodeDelta(
    {
      ...{ elements, elementBytes, base, result, changed },
      positions: new Uint32Array(positions.slice().buffer),
      values: tensorBytes(list.values)!.slice()
    },
    { compression, ...(isListed ? {} : { forms: ["xor", "full"] as const }) }
  )
  return { ...encoded, changed }
})

/**
 * Writes the delta from `base` to `result` to `path`, over a file of that name only when it is complete. The engine is one of
 * host memory. Fails with Different where the two have not the same tensors.
 */
export const makeDelta = Effect.fn("makeDelta")(function* (
  base: Model,
  result: Model,
  path: string,
  { compression = "none" }: MakeDeltaOptions = {}
): Effect.fn.Return<MadeDelta, CheckpointError | ModelError | TensorError, TensorEngine> {
  return yield* Effect.scoped(
    Effect.gen(function* () {
      yield* checkSameTensors(base, result)
      const spool = yield* openSpool(path)
      const made: Array<MadeChanges> = []
      const tensors: Array<DeltaTensor> = []
      const places: Array<{ readonly name: string; readonly at: number; readonly length: number }> = []
      let end = 0
      for (const tensor of base.tensors) {
        const { name, dtype, shape } = tensor
        const { elementBytes, elements } = deltaShapeOf(tensor)
        const fullBytes = elements * elementBytes
        const [before, after] = [new Uint8Array(fullBytes), new Uint8Array(fullBytes)]
        yield* base.readRegion(name, fullRegion(shape), before)
        yield* result.readRegion(name, fullRegion(shape), after)
        const digest = (bytes: Uint8Array) => tensorHash(dtype, shape).update(bytes).digest("hex")
        const [baseDigest, resultDigest] = [digest(before), digest(after)]
        tensors.push({ name, dtype, shape, base: baseDigest, result: resultDigest })
        if (baseDigest === resultDigest) {
          made.push({ name, elements, changed: 0, fullBytes, bytes: 0 })
          continue
        }
        const changes = yield* Effect.scoped(changesOf(tensor, before, after, compression))
        const { bytes, changed, form } = changes
        yield* writeFully(path, spool, bytes, end)
        places.push({ name, at: end, length: bytes.length })
        end += bytes.length
        made.push({ name, elements, changed, fullBytes, bytes: bytes.length, form, compression: changes.compression })
      }
      const metadata = deltaMetadata(tensors)
      const staged = yield* stageSafetensors(
        path,
        places.map(({ name, at, length }) => ({
          ...{ name, dtype: "uint8" as const, shape: [length] },
          data: spooled(path, spool, at, length)
        })),
        metadata
      )
      // What was compared is what the paths name now.
      yield* Effect.andThen(checkFilesUnchanged(base), checkFilesUnchanged(result))
      yield* staged.commit
      return {
        base: metadata.get("base")!,
        result: metadata.get("result")!,
        tensors: made,
        bytes: staged.byteLength
      }
    })
  )
})
