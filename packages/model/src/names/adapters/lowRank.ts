// SPDX-License-Identifier: Apache-2.0
/**
 * The two factors of each adapted matrix, found among an adapter's tensors and held against the shape of the base's.
 *
 * Whether a base has its inputs first is no part of a file of tensors. Lengths say it of most matrices; of square ones the
 * config says it, unless lengths of others have shown that the config is wrong.
 */
import { elementCount, equalShapes, formatShape, type Shape } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import { type MappingError, mappingError } from "../MappingError.ts"
import type { AdapterBase, LowRank, NamedShape } from "./Adapter.ts"
import type { AdapterConfig } from "./AdapterConfig.ts"
import { type AdapterSlot, adapterName } from "./AdapterNames.ts"
import type { AdapterTarget, BaseModules } from "./adapterTargets.ts"

type Outcome<A> = Result.Result<A, MappingError>

/** The tensors of an adapter by what they are; what is looked up is taken. */
export interface AdapterParts {
  readonly part: (module: string, depth: number, slot: AdapterSlot) => NamedShape | undefined
  readonly take: (tensor: NamedShape) => void
}

/** What the two factors of a matrix must look like. */
interface Fit {
  readonly a: Shape
  readonly b: Shape
}

const completeIt = "Complete the adapter's file, or correct its config."

/** A tensor that there must be. */
export const neededPart = (parts: AdapterParts, module: string, slot: AdapterSlot, depth = 0): Outcome<NamedShape> => {
  const found = parts.part(module, depth, slot)
  if (found === undefined)
    return mappingError(
      "missing_source",
      adapterName(module, slot, depth),
      undefined,
      "The config adapts its module.",
      completeIt
    )
  parts.take(found)
  return Result.succeed(found)
}

/** A tensor's shape as it must be. */
export const shapeFault = ({ name, shape }: NamedShape, wanted: Shape, why: string): Outcome<never> =>
  mappingError(
    "shape_mismatch",
    name,
    undefined,
    `It is ${formatShape(shape)} and not ${formatShape(wanted)}: ${why}`,
    "Check that the adapter is for this model, and its config's ranks."
  )

/** Experts, rows and columns of a matrix or a stack of them. */
const matrixOf = (shape: Shape): { readonly experts: number; readonly rows: number; readonly columns: number } =>
  shape.length === 3
    ? { experts: shape[0]!, rows: shape[1]!, columns: shape[2]! }
    : { experts: 1, rows: shape[0]!, columns: shape[1]! }

const fitOf = (shape: Shape, rank: number, isTransposed: boolean): Fit => {
  const { experts, rows, columns } = matrixOf(shape)
  const [out, input] = isTransposed ? [columns, rows] : [rows, columns]
  return { a: [experts * rank, input], b: [out, rank * experts] }
}

const isFit = (fit: Fit, a: NamedShape, b: NamedShape): boolean =>
  equalShapes(fit.a, a.shape) && equalShapes(fit.b, b.shape)

/** Two factors with the base's shape, before it is known which way round the base is. */
interface Draft {
  readonly target: AdapterTarget
  readonly tensor: string
  readonly shape: Shape
  readonly kind: LowRank["kind"]
  readonly a: NamedShape
  readonly b: NamedShape
  readonly magnitude: NamedShape | undefined
}

const looksEmbedding = (module: string): boolean =>
  /(^|\.)(wte|wpe|\w*embed\w*)$/.test(module) && !/embed_out$/.test(module)

/** The factors of a module's weight. */
const moduleDraft = (
  target: AdapterTarget,
  config: AdapterConfig,
  base: BaseModules,
  parts: AdapterParts
): Outcome<Draft> =>
  Result.gen(function* () {
    const { module } = target
    const tensor = `${module}.weight`
    const shape = base.tensors.get(tensor)
    if (shape === undefined || shape.length !== 2) {
      const detail =
        shape === undefined ? "The module has no weight of its own." : `Its weight is ${formatShape(shape)}.`
      return yield* mappingError("unsupported", module, undefined, detail, "Adapt modules with a matrix only.")
    }
    const has = (slot: AdapterSlot): boolean => parts.part(module, 0, slot) !== undefined
    const isEmbedding =
      has("lora_embedding_A") ||
      has("lora_embedding_B") ||
      (!has("lora_A.weight") && !has("lora_B.weight") && looksEmbedding(module))
    const a = yield* neededPart(parts, module, isEmbedding ? "lora_embedding_A" : "lora_A.weight")
    const b = yield* neededPart(parts, module, isEmbedding ? "lora_embedding_B" : "lora_B.weight")
    const magnitude = config.magnitudes ? yield* neededPart(parts, module, "lora_magnitude_vector") : undefined
    return { target, tensor, shape, kind: isEmbedding ? "embedding" : "linear", a, b, magnitude }
  })

/** Most parameters of a module that are told apart by their shapes. */
const mostParameters = 6

const permutations = (count: number): ReadonlyArray<ReadonlyArray<number>> =>
  count === 0
    ? [[]]
    : permutations(count - 1).flatMap((one) =>
        Array.from({ length: count }, (_, at) => [...one.slice(0, at), count - 1, ...one.slice(at)])
      )

/** The factors of the bare parameters of one module. The parameter that the module declares last is wrapped last. */
const parameterDrafts = (
  targets: ReadonlyArray<AdapterTarget>,
  isDeclared: boolean,
  base: BaseModules,
  parts: AdapterParts
): Outcome<ReadonlyArray<Draft>> =>
  Result.gen(function* () {
    const [{ module }] = targets as readonly [AdapterTarget]
    const factors: Array<readonly [NamedShape, NamedShape]> = []
    for (const [depth] of targets.entries())
      factors.push([
        yield* neededPart(parts, module, "lora_A.weight", depth),
        yield* neededPart(parts, module, "lora_B.weight", depth)
      ])
    const known = targets.map((target) => {
      const tensor = `${module}.${target.parameter}`
      return { target, tensor, shape: base.tensors.get(tensor)! }
    })
    const flat = known.find(({ shape }) => shape.length !== 2 && shape.length !== 3)
    if (flat !== undefined) {
      const detail = `It is ${formatShape(flat.shape)}.`
      return yield* mappingError("unsupported", flat.tensor, undefined, detail, "Adapt parameters with matrices only.")
    }
    const drafts = (order: ReadonlyArray<number>): ReadonlyArray<Draft> =>
      known.map((one, at) => {
        const [a, b] = factors[order[at]!]!
        return { ...one, kind: "parameter", a, b, magnitude: undefined }
      })
    const isPossible = (order: ReadonlyArray<number>): boolean =>
      drafts(order).every((draft) => fitsOf(draft).length > 0)
    const declared = known.map((_, at) => known.length - 1 - at)
    if (known.length === 1 || (isDeclared && isPossible(declared))) return drafts(declared)
    if (known.length > mostParameters) {
      const detail = `${known.length} parameters of it are adapted, and their order is not known.`
      return yield* mappingError("unsupported", module, undefined, detail, "State the parameters in the model's order.")
    }
    const possible = permutations(known.length).filter(isPossible)
    if (possible.length > 1) {
      const detail = "Its parameters have the same shapes, so the adapter's tensors fit several of them."
      return yield* mappingError("unsupported", module, undefined, detail, "State the parameters in the model's order.")
    }
    return drafts(possible[0] ?? declared)
  })

/** Which ways round the base may be: inputs first or not. */
const fitsOf = ({ kind, shape, target, a, b }: Draft): ReadonlyArray<boolean> =>
  [false, true].filter(
    (isTransposed) =>
      (kind !== "embedding" || isTransposed) &&
      // A bare matrix is never the other way round.
      (kind !== "parameter" || shape.length === 3 || !isTransposed) &&
      isFit(fitOf(shape, target.rank, isTransposed), a, b)
  )

const finished = (draft: Draft, isTransposed: boolean): Outcome<LowRank> => {
  const { target, tensor, shape, kind, a, b, magnitude } = draft
  const { rank, alpha, scale, module, parameter } = target
  if (fitsOf(draft).length === 0) {
    const wanted = fitOf(shape, rank, kind === "embedding" || isTransposed)
    const why = `rank ${rank} of ${tensor} ${formatShape(shape)}.`
    return equalShapes(a.shape, wanted.a) ? shapeFault(b, wanted.b, why) : shapeFault(a, wanted.a, why)
  }
  const out = b.shape[0]!
  if (magnitude !== undefined && elementCount(magnitude.shape) !== out)
    return shapeFault(magnitude, [out], "one for each output.")
  return Result.succeed({
    _tag: "LowRank",
    target: tensor,
    shape,
    module,
    parameter,
    kind,
    rank,
    alpha,
    scale,
    a: a.name,
    b: b.name,
    experts: shape.length === 3 ? shape[0]! : undefined,
    isTransposed,
    magnitude: magnitude?.name
  })
}

/** The way round of each draft: as lengths say, else as stated, unless all lengths that say it say otherwise. */
const decided = (drafts: ReadonlyArray<Draft>, stated: boolean): ReadonlyArray<boolean> => {
  const ways = drafts.map(fitsOf)
  const sure = new Set(ways.flatMap((one) => (one.length === 1 ? one : [])))
  const otherwise = sure.size === 1 ? [...sure][0]! : stated
  return ways.map((one) => (one.length === 1 ? one[0]! : otherwise))
}

/** The factors of all targets. */
export const lowRanks = (
  targets: ReadonlyArray<AdapterTarget>,
  config: AdapterConfig,
  source: AdapterBase,
  base: BaseModules,
  parts: AdapterParts
): Outcome<ReadonlyArray<LowRank>> =>
  Result.gen(function* () {
    const modules: Array<Draft> = []
    const bare = new Map<string, Array<AdapterTarget>>()
    for (const target of targets) {
      if (target.parameter === undefined) modules.push(yield* moduleDraft(target, config, base, parts))
      else bare.set(target.module, [...(bare.get(target.module) ?? []), target])
    }
    const parameters: Array<Draft> = []
    for (const of of bare.values())
      parameters.push(...(yield* parameterDrafts(of, source.isDeclared === true, base, parts)))
    const linear = modules.filter(({ kind }) => kind === "linear")
    const found: Array<LowRank> = []
    const groups: ReadonlyArray<readonly [ReadonlyArray<Draft>, boolean]> = [
      [linear, config.fanInFanOut],
      [modules.filter(({ kind }) => kind === "embedding"), true],
      [parameters.filter(({ shape }) => shape.length === 2), false],
      [parameters.filter(({ shape }) => shape.length === 3), source.hasInputsFirst === true]
    ]
    for (const [drafts, stated] of groups) {
      const ways = decided(drafts, stated)
      for (const [at, draft] of drafts.entries()) found.push(yield* finished(draft, ways[at]!))
    }
    return found
  })
