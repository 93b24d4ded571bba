// SPDX-License-Identifier: Apache-2.0
/**
 * Reads regions of the tensors of one safetensors file.
 *
 * Memory stays bounded whatever the region: long runs go straight into the caller's buffer, short ones are picked from
 * blocks of a few MiB. A file whose size changes while it is open is refused, not read past its end.
 */
import { createHash } from "node:crypto"
import { type Digest, digestOf } from "@tensorferry/core/base/Digest"
import { bitsOf, byteLengthOf } from "@tensorferry/core/base/DType"
import {
  elementCount,
  formatRegion,
  formatShape,
  fullRegion,
  isInside,
  type Region,
  regionShape
} from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type CheckpointError, checkpointError } from "./CheckpointError.ts"
import { checkUnchanged, type OpenFile, openForReading, readFully } from "./FileAccess.ts"
import { type RegionRuns, regionRuns } from "./RegionRuns.ts"
import { lengthFieldBytes, parseHeader, parseHeaderLength, type TensorInfo } from "./SafetensorsHeader.ts"

/** Runs of at least this many bytes are read one by one, each with its own call. */
const longRunBytes = 64 * 1024
/** Unwanted bytes between two runs that are cheaper to read than a call of their own. */
const gapBytes = 64 * 1024
/** Scratch memory of one read. */
const blockBytes = 4 * 1024 * 1024

/** An open file: its header, and reading of its tensors. */
export interface SafetensorsFile {
  /** Of the file. */
  readonly path: string
  /** As `OpenFile.identity`, and a digest of the header. */
  readonly identity: string
  /** Of the header's bytes: names, types, shapes and places. */
  readonly headerDigest: Digest
  /** In the order of their data. */
  readonly tensors: ReadonlyMap<string, TensorInfo>
  /** The header's own texts by name. */
  readonly metadata: ReadonlyMap<string, string>
  /** First byte of the data section. */
  readonly dataOffset: number
  /** False where the data section begins at an odd byte: such a file cannot be used in place. Reads copy in any case. */
  readonly isAligned: boolean
  /**
   * Reads `region` of the tensor `name` into `into`, dense and row-major; `into` must have exactly the bytes of the region.
   * Fails with TensorMissing, InvalidRequest (region, buffer, or a region that is cut inside a byte), Truncated, Unreadable.
   */
  readonly readRegion: (name: string, region: Region, into: Uint8Array) => Effect.Effect<void, CheckpointError>
  /** Fills `into` from a byte of the file on. Fails with Truncated where the file ends before, Changed, Unreadable. */
  readonly readBytes: (start: number, into: Uint8Array) => Effect.Effect<void, CheckpointError>
}

/** Copies the runs of one block out of it. `behind` is at the first of them. */
const pick = (
  runs: RegionRuns,
  behind: ReturnType<RegionRuns["walk"]>,
  count: number,
  block: Uint8Array,
  into: Uint8Array,
  start: number
): void => {
  const first = behind.offset()
  const { runBytes } = runs
  let target = start
  for (let run = 0; run < count; run++) {
    const from = behind.offset() - first
    // A view per run costs more than the bytes of a short one.
    if (runBytes <= 16) for (let byte = 0; byte < runBytes; byte++) into[target + byte] = block[from + byte]!
    else into.set(block.subarray(from, from + runBytes), target)
    target += runBytes
    behind.advance()
  }
}

/** Reads the runs of a region, counted from byte `base` of the file, one behind the other into `into`. */
export const readRuns = (
  file: OpenFile,
  base: number,
  runs: RegionRuns,
  into: Uint8Array
): Effect.Effect<void, CheckpointError> =>
  Effect.gen(function* () {
    const { runBytes, runCount } = runs
    const ahead = runs.walk()
    const behind = runs.walk()
    let scratch: Uint8Array | undefined
    let done = 0
    while (done < runCount) {
      const first = ahead.offset()
      let end = first + runBytes
      let count = 1
      ahead.advance()
      while (
        runBytes < longRunBytes &&
        done + count < runCount &&
        ahead.offset() - end <= gapBytes &&
        ahead.offset() + runBytes - first <= blockBytes
      ) {
        end = ahead.offset() + runBytes
        count += 1
        ahead.advance()
      }
      const target = done * runBytes
      if (count === 1) {
        yield* readFully(file, into.subarray(target, target + runBytes), base + first)
        behind.advance()
      } else {
        scratch ??= new Uint8Array(blockBytes)
        const block = scratch.subarray(0, end - first)
        yield* readFully(file, block, base + first)
        pick(runs, behind, count, block, into, target)
      }
      done += count
    }
  })

const invalidRequest = (file: string, paramName: string, detail: string) =>
  checkpointError("InvalidRequest", { detail, remedy: "Correct the region or the buffer.", file, paramName })

const readRegion = (
  file: OpenFile,
  tensor: TensorInfo,
  region: Region,
  into: Uint8Array
): Effect.Effect<void, CheckpointError> =>
  Effect.gen(function* () {
    const { dtype, name, shape } = tensor
    if (!isInside(region, shape) || !region.flat().every(Number.isSafeInteger)) {
      return yield* invalidRequest(
        file.path,
        name,
        `Region ${formatRegion(region)} is not inside shape ${formatShape(shape)}.`
      )
    }
    const runs = regionRuns(shape, region, bitsOf(dtype))
    if (Result.isFailure(runs)) return yield* invalidRequest(file.path, name, `The ${dtype} ${runs.failure}.`)
    const needed = byteLengthOf(dtype, elementCount(regionShape(region)))
    if (into.length !== needed) {
      return yield* invalidRequest(
        file.path,
        name,
        `Region ${formatRegion(region)} has ${needed} bytes, the buffer ${into.length}.`
      )
    }
    yield* checkUnchanged(file)
    yield* readRuns(file, tensor.byteOffset, runs.success, into)
  })

/**
 * Opens a file and checks its whole header; the file is closed by the scope. Fails with NotFound, Unreadable, Truncated,
 * InvalidHeader, TensorInvalid.
 */
export const openSafetensors = (path: string): Effect.Effect<SafetensorsFile, CheckpointError, Scope.Scope> =>
  Effect.gen(function* () {
    const file = yield* openForReading(path)
    const prefix = new Uint8Array(Math.min(lengthFieldBytes, file.size))
    yield* readFully(file, prefix, 0)
    const length = yield* Effect.fromResult(parseHeaderLength(prefix, file.size, path))
    const bytes = new Uint8Array(lengthFieldBytes + length)
    yield* readFully(file, bytes, 0)
    const header = yield* Effect.fromResult(parseHeader(bytes, file.size, path))
    return {
      path,
      identity: file.identity,
      headerDigest: digestOf([file.size, createHash("sha256").update(bytes).digest("hex")]),
      ...header,
      isAligned: header.dataOffset % 8 === 0,
      readBytes: (start, into) => Effect.andThen(checkUnchanged(file), readFully(file, into, start)),
      readRegion: (name, region, into) => {
        const tensor = header.tensors.get(name)
        return tensor === undefined
          ? Effect.fail(
              checkpointError("TensorMissing", {
                detail: "The file has no such tensor.",
                remedy: "Check the name.",
                file: path,
                paramName: name
              })
            )
          : readRegion(file, tensor, region, into)
      }
    }
  })

/** All bytes of one tensor, for tensors that fit in memory. */
export const readTensor = (
  file: Pick<SafetensorsFile, "readRegion">,
  tensor: { readonly name: string } & Pick<TensorInfo, "shape" | "byteLength">
) =>
  Effect.suspend(() => {
    const into = new Uint8Array(tensor.byteLength)
    return Effect.as(file.readRegion(tensor.name, fullRegion(tensor.shape), into), into)
  })
