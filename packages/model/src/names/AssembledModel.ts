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
import { boundedRegions } from "../BoundedRegions.ts"
import type { CheckpointError } from "../checkpoint/CheckpointError.ts"
import type { Model } from "../Model.ts"
import { type ModelError, modelError } from "../ModelError.ts"
import { toFloats, type WrittenType, writeFloats, writtenTypes } from "../values/codes.ts"
import { turnedStrip } from "./atoms.ts"
import type { TypedAssembly } from "./materialize.ts"
import { type Assembly, type Scalar, type Strip, take } from "./Strips.ts"

/** A box of a source, and where its elements belong: element, then elements per step along each of its dimensions. */
interface Box {
  readonly region: Region
  readonly at: number
  readonly strides: ReadonlyArray<number>
}

/** A strip of a tensor as boxes of its source: loops that step over rows are walked. */
const boxesOf = (strip: Strip, shape: Shape, source: Shape): ReadonlyArray<Box> | undefined => {
  const turned = turnedStrip(strip, { name: "", shape }, source)
  if (turned === undefined) return undefined
  const isDense = (loop: Strip["loops"][number]): boolean =>
    loop.step === 1 && turned.loops.every((other) => other === loop || other.dim !== loop.dim || other.step !== 1)
  const dense = turned.loops.filter(isDense)
  const walked = turned.loops.filter((loop) => !isDense(loop))
  const boxes: Array<Box> = []
  const strides = source.map((_, dim) => dense.find((loop) => loop.dim === dim)?.source ?? 0)
  const counts = source.map((_, dim) => dense.find((loop) => loop.dim === dim)?.count ?? 1)
  const visit = (depth: number, corner: ReadonlyArray<number>, at: number): void => {
    const loop = walked[depth]
    if (loop === undefined) {
      boxes.push({ region: corner.map((from, dim) => [from, from + counts[dim]!] as const), at, strides })
      return
    }
    for (let index = 0; index < loop.count; index++) {
      const moved = corner.map((from, dim) => (dim === loop.dim ? from + index * loop.step : from))
      visit(depth + 1, moved, at + index * loop.source)
    }
  }
  visit(0, turned.at, turned.offset)
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

/** Copies dense elements to places with steps. */
const place = (
  dense: Uint8Array,
  shape: Shape,
  into: Uint8Array,
  at: number,
  strides: ReadonlyArray<number>,
  size: number
) => {
  const own = rowMajorStrides(shape)
  // What lies densely on both sides is one run.
  let split = shape.length
  let run = 1
  while (split > 0 && (shape[split - 1] === 1 || strides[split - 1] === run)) {
    run *= shape[split - 1]!
    split--
  }
  const visit = (dim: number, from: number, to: number): void => {
    if (dim === split) {
      if (run === 1) for (let byte = 0; byte < size; byte++) into[to * size + byte] = dense[from * size + byte]!
      else into.set(dense.subarray(from * size, (from + run) * size), to * size)
      return
    }
    for (let index = 0; index < shape[dim]!; index++)
      visit(dim + 1, from + index * own[dim]!, to + index * strides[dim]!)
  }
  visit(0, 0, at)
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
      const boxes = source === undefined ? undefined : boxesOf(strip, shape, source.shape)
      const size = bitsOf(tensor.dtype) / 8
      if (source === undefined || boxes === undefined)
        return yield* refuse(tensor.name, `It is made of ${strip.source}, which cannot be read so.`)
      if (!Number.isInteger(size)) return yield* refuse(tensor.name, `${tensor.dtype} is cut inside a byte.`)
      for (const box of boxes) {
        for (const portion of boundedRegions(source.dtype, box.region)) {
          const bytes = new Uint8Array(portion.end - portion.start)
          yield* model.readRegion(source.name, portion.region, bytes)
          const values = converted(bytes, source.dtype, tensor.dtype, strip.scalar)
          if (values === undefined)
            return yield* refuse(tensor.name, `Values of ${source.dtype} cannot become ${tensor.dtype} here.`)
          const at = portion.region.reduce(
            (sum, [from], dim) => sum + (from - box.region[dim]![0]) * box.strides[dim]!,
            box.at
          )
          place(values, regionShape(portion.region), into, at, box.strides, size)
        }
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
        into.fill(0)
        for (const strip of part.strips) if (strip.source !== undefined) yield* readStrip(tensor, strip, shape, into)
      })
  }
}
