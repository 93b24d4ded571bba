// SPDX-License-Identifier: Apache-2.0
/**
 * A model whose tensors are made of another model's: read region by region, from where its strips lie. Whatever reads,
 * plans, writes or proves models takes it as any other.
 *
 * Invariant: beside what is asked for, memory for one box of a bounded size is in use.
 */
import { bitsOf, byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import {
  elementCount,
  isInside,
  type Region,
  regionShape,
  rowMajorStrides,
  type Shape
} from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import { boundedBytes } from "../BoundedRegions.ts"
import type { CheckpointError } from "../checkpoint/CheckpointError.ts"
import type { Model } from "../Model.ts"
import { type ModelError, modelError } from "../ModelError.ts"
import { toFloats, type WrittenType, writeFloats, writtenTypes } from "../values/codes.ts"
import type { TypedAssembly } from "./materialize.ts"
import { type Assembly, type Loop, type Scalar, type Strip, take } from "./Strips.ts"
import { turnedStrips } from "./turnedStrips.ts"

/** What is read of a source at once, and where its elements belong. */
interface Box {
  readonly region: Region
  /** Element of the made tensor for the first one. */
  readonly at: number
  readonly loops: ReadonlyArray<BoxLoop>
}

/** Equal steps, in elements of what was read and of the made tensor. */
interface BoxLoop {
  readonly count: number
  readonly from: number
  readonly to: number
}

/** Most elements that are read for one that is wanted, rather than in many reads. */
const mostSpare = 8

/** A loop of a strip, and how many of its iterations belong to one box. */
interface Share {
  readonly loop: Loop
  readonly count: number
}

/** Which loops a box takes in, the closest steps of the source first: as many as one bounded read can serve. */
const sharesOf = (loops: ReadonlyArray<Loop>, source: Shape, dtype: DType): ReadonlyArray<Share> => {
  const strides = rowMajorStrides(source)
  const extents = source.map(() => 1)
  const limit = (boundedBytes * 8) / bitsOf(dtype)
  let elements = 1
  return [...loops]
    .sort((a, b) => a.step * strides[a.dim]! - b.step * strides[b.dim]!)
    .map((loop) => {
      const others = elementCount(extents) / extents[loop.dim]!
      const room = Math.floor((limit / others - extents[loop.dim]!) / loop.step) + 1
      const count = Math.max(1, Math.min(loop.count, room))
      const extent = extents[loop.dim]! + (count - 1) * loop.step
      if (count === 1 || extent * others > mostSpare * elements * count) return { loop, count: 1 }
      extents[loop.dim] = extent
      elements *= count
      return { loop, count }
    })
}

/** A strip of a tensor as boxes of its source. */
const boxesOf = (strip: Strip, shape: Shape, source: Shape, dtype: DType): ReadonlyArray<Box> | undefined => {
  const turned = turnedStrips(strip, { name: "", shape }, source)
  return turned?.flatMap((one) => boxesOfTurned(one, source, dtype))
}

/** A strip of the source as boxes; its own source is the made tensor. */
const boxesOfTurned = (turned: Strip, source: Shape, dtype: DType): ReadonlyArray<Box> => {
  const shares = sharesOf(turned.loops, source, dtype)
  const boxes: Array<Box> = []
  const visit = (depth: number, corner: ReadonlyArray<number>, at: number, own: ReadonlyArray<Share>): void => {
    const share = shares[depth]
    if (share === undefined) {
      const ends = [...corner]
      for (const { loop, count } of own) ends[loop.dim]! += (count - 1) * loop.step
      const region = corner.map((from, dim) => [from, ends[dim]! + 1] as const)
      const strides = rowMajorStrides(regionShape(region))
      const loops = own.map(({ loop, count }) => ({ count, from: loop.step * strides[loop.dim]!, to: loop.source }))
      boxes.push({ region, at, loops: loops.sort((a, b) => Math.abs(b.to) - Math.abs(a.to)) })
      return
    }
    const { loop } = share
    for (let index = 0; index < loop.count; index += share.count) {
      const count = Math.min(share.count, loop.count - index)
      const moved = corner.map((from, dim) => (dim === loop.dim ? from + index * loop.step : from))
      visit(depth + 1, moved, at + index * loop.source, count === 1 ? own : [...own, { loop, count }])
    }
  }
  visit(0, turned.at, turned.offset, [])
  return boxes
}

const calculate = (scalar: Scalar, value: number): number =>
  scalar === "negExp" ? -Math.exp(value) : scalar === "logNeg" ? Math.log(-value) : value + scalar.add

/** Bytes in the type of the made tensor, after the strip's function; undefined where values cannot be changed so. */
const converted = (bytes: Uint8Array, from: DType, to: DType, scalar: Scalar | undefined): Uint8Array | undefined => {
  if (from === to && scalar === undefined) return bytes
  const isWritten = (dtype: DType): dtype is WrittenType => writtenTypes.some((one) => one === dtype)
  if (!isWritten(from) || !isWritten(to)) return undefined
  const floats = toFloats(from, bytes)
  const values = scalar === undefined ? floats : floats.map((value) => calculate(scalar, value))
  const into = new Uint8Array(byteLengthOf(to, values.length))
  writeFloats(to, values, into)
  return into
}

/** Elements of a size, where a view of them can begin. */
const elementsOf = (bytes: Uint8Array, size: number): Uint8Array | Uint16Array | Uint32Array | undefined => {
  const { buffer, byteOffset, byteLength } = bytes
  if (size === 1) return bytes
  if (byteOffset % size !== 0) return undefined
  if (size === 2) return new Uint16Array(buffer, byteOffset, byteLength / 2)
  return size === 4 ? new Uint32Array(buffer, byteOffset, byteLength / 4) : undefined
}

/** What of a box lies densely on both sides is one run; loops up to `depth` go from run to run. */
const runOf = ({ loops }: Box): { readonly run: number; readonly depth: number } => {
  let depth = loops.length
  let run = 1
  while (depth > 0 && loops[depth - 1]!.from === run && loops[depth - 1]!.to === run) {
    run *= loops[depth - 1]!.count
    depth--
  }
  return { run, depth }
}

/** Copies the elements of a box to where they belong. */
const place = (read: Uint8Array, box: Box, into: Uint8Array, size: number) => {
  const { at, loops } = box
  const { run, depth } = runOf(box)
  const [own, other] = [elementsOf(into, size), elementsOf(read, size)]
  const copy = (from: number, to: number): void => {
    if (run > 1) into.set(read.subarray(from * size, (from + run) * size), to * size)
    else if (own !== undefined && other !== undefined) own[to] = other[from]!
    else for (let byte = 0; byte < size; byte++) into[to * size + byte] = read[from * size + byte]!
  }
  const visit = (level: number, first: number, target: number): void => {
    const { count, from, to } = loops[level]!
    const next = level + 1 === depth ? copy : (source: number, place: number) => visit(level + 1, source, place)
    for (let index = 0; index < count; index++) next(first + index * from, target + index * to)
  }
  if (depth === 0) copy(0, at)
  else visit(0, 0, at)
}

const restricted = (assembly: Assembly, region: Region): Assembly =>
  region.reduce((part, interval, dim) => take(part, dim, interval), assembly)

/** A model of the tensors that are made of another's. Types of fewer than eight bits must stay whole. */
export const assembledModel = (model: Model, made: ReadonlyArray<TypedAssembly>): Model => {
  const known = new Map(made.map((tensor) => [tensor.name, tensor]))
  const sources = new Map(model.tensors.map((tensor) => [tensor.name, tensor]))
  const refuse = (paramName: string, detail: string): ModelError =>
    modelError("Unsupported", {
      file: model.path,
      paramName,
      detail,
      remedy: "Go through the checkpoint's own names, or leave the tensor out."
    })
  const readStrip = (
    tensor: TypedAssembly,
    strip: Strip,
    shape: Shape,
    into: Uint8Array
  ): Effect.Effect<void, CheckpointError | ModelError> =>
    Effect.gen(function* () {
      const source = sources.get(strip.source!)
      const boxes = source === undefined ? undefined : boxesOf(strip, shape, source.shape, source.dtype)
      const size = bitsOf(tensor.dtype) / 8
      if (source === undefined || boxes === undefined)
        return yield* refuse(tensor.name, `It is made of ${strip.source}, which cannot be read so.`)
      if (!Number.isInteger(size)) return yield* refuse(tensor.name, `${tensor.dtype} is cut inside a byte.`)
      for (const box of boxes) {
        const elements = elementCount(regionShape(box.region))
        const isPlain = source.dtype === tensor.dtype && strip.scalar === undefined
        if (isPlain && runOf(box).run === elements) {
          const end = (box.at + elements) * size
          yield* model.readRegion(source.name, box.region, into.subarray(box.at * size, end))
          continue
        }
        // Every byte is read over.
        const bytes = new Uint8Array(Buffer.allocUnsafeSlow(byteLengthOf(source.dtype, elements)).buffer)
        yield* model.readRegion(source.name, box.region, bytes)
        const values = converted(bytes, source.dtype, tensor.dtype, strip.scalar)
        if (values === undefined)
          return yield* refuse(tensor.name, `Values of ${source.dtype} cannot become ${tensor.dtype} here.`)
        place(values, box, into, size)
      }
    })
  return {
    ...model,
    tensors: made.map(({ name, dtype, shape }) => ({ name, dtype, shape })),
    digestOf: () => undefined,
    readRegion: (name, region, into) =>
      Effect.gen(function* () {
        const tensor = known.get(name)
        if (tensor === undefined || !isInside(region, tensor.shape))
          return yield* refuse(name, "It has no such tensor, or not such a region of it.")
        const shape = regionShape(region)
        if (into.length !== byteLengthOf(tensor.dtype, elementCount(shape)))
          return yield* refuse(name, "The buffer has another size.")
        const part = restricted(tensor, region)
        if (part.strips.some(({ source }) => source === undefined)) into.fill(0)
        for (const strip of part.strips) if (strip.source !== undefined) yield* readStrip(tensor, strip, shape, into)
      })
  }
}
