// SPDX-License-Identifier: Apache-2.0
/**
 * Moves tensors between a checkpoint and memory, host or device, a few portions at a time: while some are read, others are
 * copied. Only the bytes of the regions that are asked for are read.
 *
 * Invariants: host memory that a portion fits as it lies is read into directly; everything else passes through a ring of a
 * few buffers, so that memory beside the tensors is bounded. Reads into the caller's memory are never left to themselves.
 */
import { bitsOf, byteLengthOf, type DType, isSubByte } from "@tensorferry/core/base/DType"
import {
  elementCount,
  equalRegions,
  equalShapes,
  formatRegion,
  formatShape,
  intersect,
  isInside,
  lengthOf,
  type Region,
  regionShape,
  type Shape
} from "@tensorferry/core/base/Region"
import { splitPart } from "@tensorferry/core/planner/Bucketing"
import { endsWithin } from "@tensorferry/core/service/endsWithin"
import { TensorEngine, type TensorError } from "@tensorferry/core/service/TensorEngine"
import { sliceTensor, type Tensor, tensorBytes, tensorView, type ViewFault } from "@tensorferry/core/tensor/Tensor"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type CheckpointError, checkpointError } from "../checkpoint/CheckpointError.ts"
import { writeFully } from "../checkpoint/FileAccess.ts"
import { encodeHeader } from "../checkpoint/SafetensorsHeader.ts"
import { type StagedFile, stageFile } from "../checkpoint/SafetensorsWriter.ts"
import { makeStagingRing, type Staged, type StagingRing } from "./stagingRing.ts"

/** What is read from: a checkpoint, one of its files, or a model whatever its form. */
export interface StreamSource<E> {
  /** The path that was opened, for errors. */
  readonly path: string
  /** Fills `into` with the dense row-major bytes of a region of a tensor; may be called again before it has ended. */
  readonly readRegion: (name: string, region: Region, into: Uint8Array) => Effect.Effect<void, E>
  /**
   * The shape of a tensor whose regions are read as they lie in a file: then what lies between short runs is read with them,
   * and the engine picks them out. Each region is read by itself where this is absent.
   */
  readonly storedShape?: (name: string) => Shape | undefined
}

/** A region of a stored tensor, and the memory that it is to fill. */
export interface StreamRead {
  /** Name of the stored tensor. */
  readonly name: string
  /** Region of the whole tensor. */
  readonly region: Region
  /** Memory of the region's shape, of any device and any strides. */
  readonly into: Tensor
  /** Element type in the file; that of the memory by default. Others are cast by the engine. */
  readonly storedAs?: DType
}

/** How much is under way at once, and how long it may take. */
export interface StreamOptions {
  /** Portions under way at once; 4 by default, which is as many threads as Node reads files with. */
  readonly inFlight?: number
  /** Bytes of a portion at most, 16 MiB by default. The ring has as many buffers of this size as portions are under way. */
  readonly portionBytes?: number
  /** How long the read or the write of one portion may take, 60 s by default. */
  readonly deadline?: Duration.Input
  /** Called after each portion with its bytes. */
  readonly onProgress?: (bytes: number) => Effect.Effect<void>
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

const usualInFlight = 4
const usualPortionBytes = 16 << 20
const usualDeadline = Duration.seconds(60)

interface Portion {
  readonly name: string
  /** What is read or written. */
  readonly region: Region
  /** The part of it that is asked for, where that is not all. */
  readonly within?: Region
  /** Memory of what is asked for. */
  readonly tensor: Tensor
  readonly stored: DType
  /** Bytes of the region. */
  readonly byteLength: number
}

/** As the reader of regions has them: runs of so many bytes have calls of their own, and fewer between two are read too. */
const longRunBytes = 64 * 1024
const gapBytes = 64 * 1024

const invalid = (file: string, paramName: string, detail: string) =>
  checkpointError("InvalidRequest", { detail, remedy: "Correct the region, the type or the memory.", file, paramName })

const viewFault = (file: string, name: string) => (fault: ViewFault) => invalid(file, name, `${fault.detail}.`)

/** A region seen from where another begins, or back. */
const moved = (region: Region, from: Region, sign: 1 | -1): Region =>
  region.map(([start, end], dim) => [start + sign * from[dim]![0], end + sign * from[dim]![0]] as const)

/** A region with what lies between its runs, where they are short and near to each other. */
const coveringRegion = (whole: Shape, region: Region, bits: number, limit: number): Region => {
  const covering = [...region]
  let inner = bits / 8
  for (let dim = whole.length - 1; dim >= 0; dim--) {
    const length = lengthOf(region[dim]!)
    const isOne = covering.slice(0, dim).every((interval) => lengthOf(interval) === 1)
    const gap = (whole[dim]! - length) * inner
    if (length < whole[dim]!) {
      const isWorth = !isOne && length * inner < longRunBytes && gap <= gapBytes && whole[dim]! * inner <= limit
      if (!isWorth) return covering
      covering[dim] = [0, whole[dim]!]
    }
    inner *= whole[dim]!
  }
  return covering
}

/** A read in portions that follow one another in the file as far as its shape allows. */
const portionsOf = (
  file: string,
  { into, name, region, storedAs: stored = into.dtype }: StreamRead,
  limit: number,
  whole?: Shape
): Result.Result<ReadonlyArray<Portion>, CheckpointError> => {
  const shape = regionShape(region)
  if (!equalShapes(shape, into.shape)) {
    const detail = `Region ${formatRegion(region)} has the shape ${formatShape(shape)}, the memory ${formatShape(into.shape)}.`
    return Result.fail(invalid(file, name, detail))
  }
  if (stored !== into.dtype && isSubByte(stored)) {
    return Result.fail(invalid(file, name, `There is no conversion from ${stored} to ${into.dtype}.`))
  }
  if (shape.includes(0)) return Result.succeed([])
  const covering =
    whole === undefined || isSubByte(stored) || !isInside(region, whole)
      ? region
      : coveringRegion(whole, region, bitsOf(stored), limit)
  const portions: Array<Portion> = []
  for (const local of splitPart({ dtype: stored, shape: regionShape(covering) }, limit)) {
    const read = moved(local, covering, 1)
    const wanted = intersect(read, region)
    if (wanted === undefined) continue
    const tensor = sliceTensor(into, moved(wanted, region, -1))
    if (Result.isFailure(tensor)) return Result.fail(viewFault(file, name)(tensor.failure))
    portions.push({
      ...{ name, stored, region: read, tensor: tensor.success },
      ...(equalRegions(wanted, read) ? {} : { within: moved(wanted, read, -1) }),
      byteLength: byteLengthOf(stored, elementCount(regionShape(read)))
    })
  }
  return Result.succeed(portions)
}

const late = (file: string, name: string, what: string, deadline: Duration.Duration) =>
  checkpointError("Unreadable", {
    detail: `${what} has not ended within ${Duration.format(deadline)}.`,
    remedy: "Look whether the file system answers, or give a longer deadline.",
    file,
    paramName: name
  })

/** The bytes of memory that a portion can be read into, or written from, as they lie. */
const ownBytes = ({ stored, tensor, within }: Portion): Uint8Array | undefined =>
  within === undefined && stored === tensor.dtype ? tensorBytes(tensor) : undefined

/** What is asked for of a portion that lies in a buffer. */
const stagedView = (file: string, { name, region, stored, within }: Portion, buffer: Staged) =>
  Effect.fromResult(
    Result.mapError(
      Result.flatMap(tensorView(buffer.storage, stored, regionShape(region), buffer), (view) =>
        within === undefined ? Result.succeed(view) : sliceTensor(view, within)
      ),
      viewFault(file, name)
    )
  )

const neededBytes = ({ stored, tensor }: Portion): number => byteLengthOf(stored, elementCount(tensor.shape))

interface Settings {
  readonly inFlight: number
  readonly portionBytes: number
  readonly deadline: Duration.Duration
  readonly onProgress: NonNullable<StreamOptions["onProgress"]>
}

const settingsOf = (file: string, options: StreamOptions): Result.Result<Settings, CheckpointError> => {
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

/** A ring for portions of these lengths, and counts of what passes. */
const makeStream = Effect.fnUntraced(function* (portions: ReadonlyArray<Portion>, { inFlight, onProgress }: Settings) {
  const largest = portions.reduce((most, portion) => Math.max(most, portion.byteLength), 0)
  const ring: StagingRing = yield* makeStagingRing(inFlight, largest)
  const counts = { bytes: 0, fileBytes: 0, stagedBytes: 0 }
  const done = (portion: Portion) => {
    const bytes = neededBytes(portion)
    counts.bytes += bytes
    counts.fileBytes += portion.byteLength
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
  options: StreamOptions = {}
): Effect.Effect<StreamReport, E | CheckpointError | TensorError, TensorEngine> =>
  Effect.gen(function* () {
    const file = source.path
    const settings = yield* Effect.fromResult(settingsOf(file, options))
    const { deadline, inFlight, portionBytes } = settings
    const all = yield* Effect.fromResult(
      Result.all(reads.map((read) => portionsOf(file, read, portionBytes, source.storedShape?.(read.name))))
    )
    const portions = all.flat()
    const engine = yield* TensorEngine
    const { counts, done, report, ring } = yield* makeStream(portions, settings)

    const direct = (portion: Portion, bytes: Uint8Array) => {
      const error = late(file, portion.name, "The read of a portion", deadline)
      // The caller's memory must not be freed under a read: one that is late is waited for, and says so.
      const orElse = () => Effect.andThen(Effect.logWarning(error.message), Effect.fail(error))
      const read = source.readRegion(portion.name, portion.region, bytes)
      return Effect.timeoutOrElse(read, { duration: deadline, orElse })
    }
    const staged = (portion: Portion) =>
      ring.use((buffer) =>
        Effect.gen(function* () {
          const bytes = buffer.bytes.subarray(0, portion.byteLength)
          const src = yield* stagedView(file, portion, buffer)
          const read = source.readRegion(portion.name, portion.region, bytes)
          yield* endsWithin(read, deadline, Effect.fail(late(file, portion.name, "The read of a portion", deadline)))
          yield* engine.copy([{ dst: portion.tensor, src }])
          counts.stagedBytes += portion.byteLength
        })
      )
    const move = (portion: Portion) =>
      Effect.gen(function* () {
        const bytes = ownBytes(portion)
        yield* bytes === undefined ? staged(portion) : direct(portion, bytes)
        yield* done(portion)
      })
    yield* Effect.forEach(portions, move, { concurrency: inFlight, discard: true })
    return report()
  }).pipe(Effect.scoped)

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
  options: StreamOptions = {}
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
    const portions: Array<Portion & { readonly position: number }> = []
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
        const { counts, done, report, ring } = yield* makeStream(portions, settings)
        const put = (portion: Portion & { readonly position: number }, bytes: Uint8Array) =>
          Effect.timeoutOrElse(writeFully(path, handle, bytes, portion.position), {
            duration: deadline,
            orElse: () =>
              Effect.fail(
                checkpointError("WriteFailed", {
                  ...late(path, portion.name, "The write of a portion", deadline).reason
                })
              )
          })
        yield* writeFully(path, handle, header.bytes, 0)
        yield* Effect.forEach(
          portions,
          (portion) =>
            Effect.gen(function* () {
              const bytes = ownBytes(portion)
              if (bytes !== undefined) yield* put(portion, bytes)
              else {
                yield* ring.use((buffer) =>
                  Effect.gen(function* () {
                    const dst = yield* stagedView(path, portion, buffer)
                    yield* engine.copy([{ dst, src: portion.tensor }])
                    yield* put(portion, buffer.bytes.subarray(0, portion.byteLength))
                    counts.stagedBytes += portion.byteLength
                  })
                )
              }
              yield* done(portion)
            }),
          { concurrency: inFlight, discard: true }
        )
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
  options?: StreamOptions
): Effect.Effect<StreamReport, CheckpointError | TensorError, TensorEngine> =>
  Effect.scoped(
    Effect.flatMap(stageTensors(path, tensors, metadata, options), (staged) => Effect.as(staged.commit, staged.report))
  )
