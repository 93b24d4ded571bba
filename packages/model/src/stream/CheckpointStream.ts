// SPDX-License-Identifier: Apache-2.0
/**
 * Moves tensors between a checkpoint and memory, host or device, a few portions at a time: while some are read, others are
 * copied. Only the bytes of the regions that are asked for are read.
 *
 * Invariants: host memory that a portion fits as it lies is read into directly; everything else passes through a ring of a
 * few buffers, so that memory beside the tensors is bounded. Reads into the caller's memory are never left to themselves.
 */
import type { DType } from "@tensorferry/core/base/DType"
import { type Region, regionShape } from "@tensorferry/core/base/Region"
import { endsWithin } from "@tensorferry/core/service/endsWithin"
import { TensorEngine, type TensorEngineShape, type TensorError } from "@tensorferry/core/service/TensorEngine"
import { type ElementDigest, sumOfDigests } from "@tensorferry/core/tensor/ElementDigest"
import type { Move, Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type CheckpointError, checkpointError } from "../checkpoint/CheckpointError.ts"
import type { StoredTensors } from "../checkpoint/CheckpointIndex.ts"
import { writeFully } from "../checkpoint/FileAccess.ts"
import { encodeHeader } from "../checkpoint/SafetensorsHeader.ts"
import { type StagedFile, stageFile } from "../checkpoint/SafetensorsWriter.ts"
import { inTurns } from "./inTurns.ts"
import {
  type Batch,
  batchesOf,
  neededBytes,
  offsetIn,
  ownBytes,
  type Pack,
  type Portion,
  packed,
  portionsOf,
  readBytesOf,
  type StreamRead,
  stagedView,
  wantedRegion
} from "./portions.ts"
import { makeStagingRing, type StagingRing } from "./stagingRing.ts"

export type { StreamRead } from "./portions.ts"

/** What is read from: a checkpoint, one of its files, or a model whatever its form. */
export interface StreamSource<E> {
  /** The path that was opened, for errors. */
  readonly path: string
  /** Fills `into` with the dense row-major bytes of a region of a tensor; may be called again before it has ended. */
  readonly readRegion: (name: string, region: Region, into: Uint8Array) => Effect.Effect<void, E>
  /**
   * Where tensors lie in files, if they lie there as `readRegion` reads them. Then what lies between short runs is read with
   * them, small tensors are read together, and the engine picks them out. Else each region is read by itself.
   */
  readonly stored?: StoredTensors<E>
}

/** Where the tensors of a source lie; nothing where it reads something else than what lies there. */
export const storedOf = <E>({ stored, readRegion }: Pick<StreamSource<E>, "stored" | "readRegion">) =>
  stored?.readRegion === readRegion ? stored : undefined

/** How much is under way at once, and how long it may take. */
export interface StreamOptions {
  /** Portions under way at once; by default 4 more than Node has threads for files, so that copies go on beside reads. */
  readonly inFlight?: number
  /** Bytes of a portion at most, 4 MiB by default. The ring has as many buffers of this size as portions are under way. */
  readonly portionBytes?: number
  /** How long the read or the write of one portion may take, 60 s by default. */
  readonly deadline?: Duration.Input
  /** Called after each portion with its bytes. */
  readonly onProgress?: (bytes: number) => Effect.Effect<void>
}

/** The same for writing. */
export interface SaveOptions extends StreamOptions {
  /** Sees all bytes of each tensor as they are written, in the order of the file, as for a digest of them. */
  readonly onBytes?: (name: string, bytes: Uint8Array) => void
}

/** The same for reading. */
export interface LoadOptions extends StreamOptions {
  /** Digests what was read, in host memory as the file gave it. */
  readonly digests?: boolean
}

/** What a stream moved. */
export interface StreamReport {
  /** Bytes of the regions, as they are in files. */
  readonly bytes: number
  /** Bytes that were read or written; those between short runs are more. */
  readonly fileBytes: number
  /** Those that passed through the ring. */
  readonly stagedBytes: number
  /** Bytes of the ring's buffers. */
  readonly ringBytes: number
}

/** Threads that Node reads files with, 4 unless the environment says otherwise. */
const fileThreads = Math.max(1, Number(process.env.UV_THREADPOOL_SIZE) || 4)
const usualInFlight = fileThreads + 4
const usualPortionBytes = 4 << 20
const usualDeadline = Duration.seconds(60)

/** The error of a portion that took longer than the deadline. */
export const late = (file: string, name: string, what: string, deadline: Duration.Duration) =>
  checkpointError("Unreadable", {
    detail: `${what} has not ended within ${Duration.format(deadline)}.`,
    remedy: "Look whether the file system answers, or give a longer deadline.",
    file,
    paramName: name
  })

/** Options with their defaults. */
export interface Settings {
  readonly inFlight: number
  readonly portionBytes: number
  readonly deadline: Duration.Duration
  readonly onProgress: NonNullable<StreamOptions["onProgress"]>
}

/** Checks options and fills in defaults. */
export const settingsOf = (file: string, options: StreamOptions): Result.Result<Settings, CheckpointError> => {
  const { inFlight = usualInFlight, portionBytes = usualPortionBytes, onProgress = () => Effect.void } = options
  const wrong = [inFlight, portionBytes].find((number) => !Number.isSafeInteger(number) || number < 1)
  return wrong === undefined
    ? Result.succeed({
        ...{ inFlight, portionBytes, onProgress },
        deadline: Duration.fromInputUnsafe(options.deadline ?? usualDeadline)
      })
    : Result.fail(
        checkpointError("InvalidRequest", {
          detail: `${wrong} is no number of portions or of bytes.`,
          remedy: "Give whole numbers from 1 on.",
          file
        })
      )
}

/** What was read besides. */
export interface LoadReport extends StreamReport {
  /**
   * Where they were asked for: for each region the digest of its elements, in the file's type and as a whole of their own, before
   * they went into memory.
   */
  readonly digests?: ReadonlyArray<ElementDigest>
}

/** Adds up digests of portions by the region that they are of. */
const digestsOfReads = (reads: ReadonlyArray<StreamRead>, portions: ReadonlyArray<ReadonlyArray<Portion>>) => {
  const readOf = new Map(portions.flatMap((own, read) => own.map((portion) => [portion, read] as const)))
  const sums = reads.map((): ElementDigest => 0n)
  return {
    sums,
    add: (engine: TensorEngineShape, seen: ReadonlyArray<readonly [portion: Portion, bytes: Tensor]>) => {
      const parts = seen.map(([portion, tensor]) => {
        const { region } = reads[readOf.get(portion)!]!
        const origin = wantedRegion(portion).map(([start], dim) => start - region[dim]![0])
        return { tensor, whole: regionShape(region), origin }
      })
      return Effect.map(engine.digest(parts), (digests) => {
        for (const [at, digest] of digests.entries()) {
          const read = readOf.get(seen[at]![0])!
          sums[read] = sumOfDigests([sums[read]!, digest])
        }
      })
    }
  }
}

/** A ring for portions of these lengths, and counts of what passes. */
const makeStream = Effect.fnUntraced(function* (
  batches: ReadonlyArray<{ readonly byteLength: number }>,
  { inFlight, onProgress }: Settings
) {
  const largest = batches.reduce((most, { byteLength }) => Math.max(most, byteLength), 0)
  const ring: StagingRing = yield* makeStagingRing(inFlight, largest)
  const counts = { bytes: 0, fileBytes: 0, stagedBytes: 0 }
  const done = (portions: ReadonlyArray<Portion>, fileBytes: number) => {
    const bytes = portions.reduce((sum, portion) => sum + neededBytes(portion), 0)
    counts.bytes += bytes
    counts.fileBytes += fileBytes
    return onProgress(bytes)
  }
  return {
    ring,
    counts,
    done,
    report: (): StreamReport => ({ ...counts, ringBytes: ring.made() * largest })
  }
})

/**
 * Reads regions into memory. Fails with the source's error, with InvalidRequest (shapes, types), with Unreadable where a
 * portion takes longer than the deadline, or as the engine does; what was not read by then has unspecified contents.
 */
export const loadRegions = <E>(
  source: StreamSource<E>,
  reads: ReadonlyArray<StreamRead>,
  options: LoadOptions = {}
): Effect.Effect<LoadReport, E | CheckpointError | TensorError, TensorEngine> =>
  Effect.gen(function* () {
    const file = source.path
    const settings = yield* Effect.fromResult(settingsOf(file, options))
    const { deadline, inFlight, portionBytes } = settings
    const stored = storedOf(source)
    const all = yield* Effect.fromResult(
      Result.all(reads.map((read) => portionsOf(file, read, portionBytes, stored?.placeOf(read.name))))
    )
    const batches = batchesOf(all.flat(), portionBytes)
    const engine = yield* TensorEngine
    const { counts, done, report, ring } = yield* makeStream(batches, settings)
    const digests = options.digests === true ? digestsOfReads(reads, all) : undefined

    const direct = (portion: Portion, bytes: Uint8Array) => {
      const error = late(file, portion.name, "The read of a portion", deadline)
      // The caller's memory must not be freed under a read: one that is late is waited for, and says so.
      const orElse = () => Effect.andThen(Effect.logWarning(error.message), Effect.fail(error))
      const read = source.readRegion(portion.name, portion.region, bytes)
      return Effect.timeoutOrElse(read, { duration: deadline, orElse })
    }
    const staged = (batch: Batch) =>
      ring.use((buffer) =>
        Effect.gen(function* () {
          const { at, byteLength, portions } = batch
          const moves = yield* Effect.fromResult(
            Result.all(
              portions.map((portion, number) =>
                Result.map(
                  stagedView(file, portion, buffer, offsetIn(batch, number)),
                  (src): Move => ({ dst: portion.tensor, src })
                )
              )
            )
          )
          const partOf = (from: number, length: number) => buffer.bytes.subarray(from, from + length)
          const read =
            at === undefined
              ? Effect.forEach(
                  portions,
                  ({ byteLength: length, name, region }, number) =>
                    source.readRegion(name, region, partOf(offsetIn(batch, number), length)),
                  { discard: true }
                )
              : stored!.readBytes(at.file, at.start, partOf(0, byteLength))
          const error = late(at?.file ?? file, portions[0]!.name, "The read of a portion", deadline)
          yield* endsWithin(read, deadline, Effect.fail(error))
          yield* engine.copy(moves)
          if (digests !== undefined)
            yield* digests.add(
              engine,
              moves.map(({ src }, at) => [portions[at]!, src])
            )
          counts.stagedBytes += readBytesOf(batch)
        })
      )
    const move = (batch: Batch) =>
      Effect.gen(function* () {
        const [first] = batch.portions as readonly [Portion]
        const bytes = batch.portions.length === 1 ? ownBytes(first) : undefined
        yield* bytes === undefined ? staged(batch) : direct(first, bytes)
        if (bytes !== undefined && digests !== undefined) yield* digests.add(engine, [[first, first.tensor]])
        yield* done(batch.portions, readBytesOf(batch))
      })
    yield* Effect.forEach(batches, move, { concurrency: inFlight, discard: true })
    return { ...report(), ...(digests === undefined ? {} : { digests: digests.sums }) }
  }).pipe(Effect.scoped)

/** A portion of a file that is written. */
type Placed = Portion & { readonly position: number }

/** A tensor under its name in a file. */
export interface NamedTensor {
  /** Name in the file. */
  readonly name: string
  /** Memory of any device and any strides. */
  readonly tensor: Tensor
  /** Element type in the file; that of the memory by default. Others are cast by the engine. */
  readonly storedAs?: DType
}

/**
 * Writes tensors of any device under a temporary name beside `path`, a few portions at a time. Fails as `stageSafetensors`
 * does, with WriteFailed where a portion takes longer than the deadline, or as the engine does.
 */
export const stageTensors = (
  path: string,
  tensors: ReadonlyArray<NamedTensor>,
  metadata: ReadonlyMap<string, string> = new Map(),
  options: SaveOptions = {}
): Effect.Effect<
  StagedFile & { readonly report: StreamReport },
  CheckpointError | TensorError,
  TensorEngine | Scope.Scope
> =>
  Effect.gen(function* () {
    const settings = yield* Effect.fromResult(settingsOf(path, options))
    const { deadline, inFlight, portionBytes } = settings
    const described = tensors.map(({ name, storedAs, tensor }) => ({
      ...{ name, tensor },
      dtype: storedAs ?? tensor.dtype,
      shape: tensor.shape
    }))
    const header = yield* Effect.fromResult(encodeHeader(described, metadata, path))
    const portions: Array<Placed> = []
    let position = header.bytes.length
    for (const { dtype, name, shape, tensor } of header.tensors) {
      const region = shape.map((length) => [0, length] as const)
      const own = yield* Effect.fromResult(
        portionsOf(path, { name, region, into: tensor, storedAs: dtype }, portionBytes)
      )
      for (const portion of own) {
        portions.push({ ...portion, position })
        position += portion.byteLength
      }
    }
    const engine = yield* TensorEngine
    const write = (handle: Parameters<Parameters<typeof stageFile>[2]>[0]) =>
      Effect.gen(function* () {
        const packs = packed(portions, { isAlone: (portion) => ownBytes(portion) !== undefined, isDense: true })
        const { counts, done, report, ring } = yield* makeStream(packs, settings)
        const put = ({ name, position }: Placed, bytes: Uint8Array) =>
          Effect.timeoutOrElse(writeFully(path, handle, bytes, position), {
            duration: deadline,
            orElse: () =>
              Effect.fail(
                checkpointError("WriteFailed", {
                  ...late(path, name, "The write of a portion", deadline).reason
                })
              )
          })
        yield* writeFully(path, handle, header.bytes, 0)
        const show = inTurns((at, bytes: Uint8Array) => {
          for (const { from, portion } of packs[at]!.parts)
            options.onBytes?.(portion.name, bytes.subarray(from, from + portion.byteLength))
        })
        const writePack = ({ byteLength, parts }: Pack<Placed>, at: number) =>
          Effect.gen(function* () {
            const first = parts[0]!.portion
            const bytes = ownBytes(first)
            if (bytes !== undefined) {
              yield* show(at, bytes)
              yield* put(first, bytes)
            } else {
              yield* ring.use((buffer) =>
                Effect.gen(function* () {
                  const moves = parts.map(({ from, portion }) =>
                    Result.map(stagedView(path, portion, buffer, from), (dst): Move => ({ dst, src: portion.tensor }))
                  )
                  yield* engine.copy(yield* Effect.fromResult(Result.all(moves)))
                  const bytes = buffer.bytes.subarray(0, byteLength)
                  yield* show(at, bytes)
                  yield* put(first, bytes)
                  counts.stagedBytes += byteLength
                })
              )
            }
            yield* done(
              parts.map(({ portion }) => portion),
              byteLength
            )
          })
        yield* Effect.forEach(packs, writePack, { concurrency: inFlight, discard: true })
        return report()
      }).pipe(Effect.scoped)
    let report: StreamReport = { bytes: 0, fileBytes: 0, stagedBytes: 0, ringBytes: 0 }
    const staged = yield* stageFile(path, header.fileSize, (handle) =>
      Effect.map(write(handle), (made) => {
        report = made
      })
    )
    return { ...staged, report }
  })

/** Writes tensors to `path` in one step. Nothing changes under that name unless all of it succeeds. */
export const saveTensors = (
  path: string,
  tensors: ReadonlyArray<NamedTensor>,
  metadata?: ReadonlyMap<string, string>,
  options?: SaveOptions
): Effect.Effect<StreamReport, CheckpointError | TensorError, TensorEngine> =>
  Effect.scoped(
    Effect.flatMap(stageTensors(path, tensors, metadata, options), (staged) => Effect.as(staged.commit, staged.report))
  )
