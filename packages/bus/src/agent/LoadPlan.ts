// SPDX-License-Identifier: Apache-2.0
/**
 * Which reads of a checkpoint fill a rank's tensors, under the checkpoint's names or under those of another system.
 *
 * Invariant: names, shapes and types of all tensors are checked here, before any byte is written; what does not fit is named.
 */
import { isCastable } from "@tensorferry/core/base/DType"
import { equalShapes, formatShape, fullRegion, type Interval, type Region } from "@tensorferry/core/base/Region"
import type { DeviceMesh } from "@tensorferry/core/layout/DeviceMesh"
import { meshLayout, type Placement, replicate } from "@tensorferry/core/layout/Placement"
import { type LocalShard, localShard } from "@tensorferry/core/layout/ShardIntervals"
import { isContiguous, sliceTensor, type Tensor } from "@tensorferry/core/tensor/Tensor"
import { boundedRegions } from "@tensorferry/model/BoundedRegions"
import type { FamilyChoice } from "@tensorferry/model/Cutting"
import type { CheckpointError } from "@tensorferry/model/checkpoint/CheckpointError"
import type { LayoutError, ModelTensor } from "@tensorferry/model/layout/ModelLayout"
import { placeOf } from "@tensorferry/model/layout/ParallelConfig"
import type { Model } from "@tensorferry/model/Model"
import type { ModelError } from "@tensorferry/model/ModelError"
import { checkTied } from "@tensorferry/model/names/checkTied"
import { type RankTensor, rankReads } from "@tensorferry/model/names/files/rankReads"
import type { MappingError } from "@tensorferry/model/names/MappingError"
import { mapModel } from "@tensorferry/model/names/mapModel"
import type { NamedSide } from "@tensorferry/model/names/NamedSide"
import { sideOf } from "@tensorferry/model/names/namedLayouts"
import { structureOf } from "@tensorferry/model/placement/cutModel"
import type { StreamRead } from "@tensorferry/model/stream/CheckpointStream"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { type BusError, busError } from "../BusError.ts"

/** A tensor of this rank, under all its names; the first is the one that its client states. */
export interface LoadedTensor {
  readonly names: readonly [string, ...ReadonlyArray<string>]
  readonly tensor: Tensor
  /** On the mesh of its side; whole on every rank where absent. */
  readonly placements: ReadonlyArray<Placement> | undefined
}

/** What need not fit exactly. */
export interface Allowances {
  readonly cast: boolean
  readonly missing: boolean
  readonly unexpected: boolean
}

/** The rank among those of its side. */
export interface SidePlace {
  readonly mesh: DeviceMesh
  readonly rank: number
}

/** Reads of one source. */
export interface SourceReads {
  readonly source: Model
  readonly reads: ReadonlyArray<StreamRead>
}

/** All that fills the tensors of a rank, and the names of what does not fit and is allowed. */
export interface LoadPlan {
  readonly sources: ReadonlyArray<SourceReads>
  /** Padding, which is zero. */
  readonly zeros: ReadonlyArray<Tensor>
  /** Tensors whose values are converted. */
  readonly cast: ReadonlyArray<string>
  /** Tensors that keep their contents. */
  readonly missing: ReadonlyArray<string>
  /** Tensors of the checkpoint that nobody wants. */
  readonly unexpected: ReadonlyArray<string>
}

/** Why a plan could not be made. */
export type LoadFault = BusError | CheckpointError | ModelError | MappingError | LayoutError

export const loadOp = "LoadTensors"

/** Faults of one kind that a message lists. */
const shownFaults = 3
const mostPieces = 2 ** 16

/** What does not fit, by what to do about it. */
class Faults {
  readonly #found = new Map<string, Array<readonly [name: string, detail: string]>>()

  add(name: string, detail: string, remedy: string): void {
    const kind = this.#found.get(remedy) ?? []
    this.#found.set(remedy, kind)
    kind.push([name, detail])
  }

  /** Fails where there are some. */
  check(path: string): Result.Result<void, BusError> {
    const kinds = [...this.#found.values()]
    const [first] = kinds
    if (first === undefined) return Result.void
    const said = kinds.map((kind) => {
      const shown = kind.slice(0, shownFaults).map(([name, detail]) => `${name} ${detail}`)
      const more = kind.length - shown.length
      return `${shown.join("; ")}${more > 0 ? `; and ${more} more` : ""}.`
    })
    return Result.fail(
      busError("CheckpointMismatch", {
        op: loadOp,
        paramName: first[0]![0],
        file: path,
        detail: `${said.join(" ")} Nothing was written.`,
        remedy: [...this.#found.keys()].join(" ")
      })
    )
  }
}

const lacking =
  "Allow missing tensors (strict=False in Python), or state the convention where names are another system's."
const leftOver = "Allow unexpected tensors (strict=False in Python), or state the convention of the tensors here."

/** Whether the values of a stored type may fill memory of another; notes what is converted. */
const checkType = (
  stored: ModelTensor,
  name: string,
  { dtype }: Tensor,
  { cast }: Allowances,
  found: { readonly faults: Faults; readonly cast: Array<string> }
): void => {
  if (stored.dtype === dtype) return
  if (!isCastable(stored.dtype, dtype))
    found.faults.add(
      name,
      `is ${stored.dtype} in the checkpoint and ${dtype} here, and there is no conversion`,
      "Load a checkpoint of another form, or make the tensors of its type."
    )
  else if (cast) found.cast.push(name)
  else
    found.faults.add(
      name,
      `is ${stored.dtype} in the checkpoint and ${dtype} here`,
      "Allow casts (cast=True in Python), or use one type."
    )
}

/** Reads of a rank's part, piece by piece where it holds several intervals of a dimension. */
const partReads = (
  stored: ModelTensor,
  { intervals }: LocalShard,
  tensor: Tensor
): Result.Result<ReadonlyArray<StreamRead>, string> =>
  Result.gen(function* () {
    const pieces = intervals.reduce((product, held) => product * held.length, 1)
    if (pieces > mostPieces) return yield* Result.fail(`falls into ${pieces} pieces here`)
    let regions: ReadonlyArray<{ readonly global: Region; readonly local: Region }> = [{ global: [], local: [] }]
    for (const held of intervals) {
      let at = 0
      const along = held.map(([from, to]): readonly [Interval, Interval] => {
        at += to - from
        return [
          [from, to],
          [at - (to - from), at]
        ]
      })
      regions = regions.flatMap(({ global, local }) =>
        along.map(([whole, own]) => ({ global: [...global, whole], local: [...local, own] }))
      )
    }
    const reads: Array<StreamRead> = []
    for (const { global, local } of regions) {
      const into = yield* Result.mapError(sliceTensor(tensor, local), ({ detail }) => `cannot be addressed: ${detail}`)
      reads.push({ name: stored.name, region: global, into, storedAs: stored.dtype })
    }
    return reads
  })

/** What of a stored tensor a rank holds. */
const shardOf = (
  { shape }: ModelTensor,
  { placements }: LoadedTensor,
  { mesh, rank }: SidePlace
): Result.Result<LocalShard, string> => {
  const stated = placements ?? mesh.shape.map(() => replicate)
  if (stated.some(({ _tag }) => _tag === "Partial")) return Result.fail("holds contributions to a sum")
  return Result.mapError(
    Result.flatMap(meshLayout(mesh, stated), (layout) => localShard(layout, shape, rank)),
    ({ message }) => `cannot lie so: ${message}`
  )
}

/** Two tensors of a checkpoint that are one in memory must be equal. */
const checkEqual = Effect.fnUntraced(function* (model: Model, one: ModelTensor, other: ModelTensor) {
  const differ = busError("CheckpointMismatch", {
    op: loadOp,
    paramName: other.name,
    file: model.path,
    detail: `${one.name} and ${other.name} are one tensor here, and differ in the checkpoint. Nothing was written.`,
    remedy: "Untie them in the model, or remove one from the checkpoint."
  })
  if (one.dtype !== other.dtype || !equalShapes(one.shape, other.shape)) return yield* differ
  for (const { region, start, end } of boundedRegions(one.dtype, fullRegion(one.shape))) {
    const [own, its] = [new Uint8Array(end - start), new Uint8Array(end - start)]
    yield* model.readRegion(one.name, region, own)
    yield* model.readRegion(other.name, region, its)
    if (Buffer.compare(own, its) !== 0) return yield* differ
  }
})

const noteRest = (
  model: Model,
  used: ReadonlySet<string>,
  { unexpected }: Allowances,
  faults: Faults
): ReadonlyArray<string> => {
  const left = model.tensors.flatMap(({ name }) => (used.has(name) ? [] : [name]))
  if (!unexpected) for (const name of left) faults.add(name, "is in the checkpoint and not here", leftOver)
  return left
}

/** By the checkpoint's own names; tensors lie on the mesh as each says. */
export const planByName = Effect.fnUntraced(function* (
  model: Model,
  tensors: ReadonlyArray<LoadedTensor>,
  place: SidePlace,
  allowed: Allowances
): Effect.fn.Return<LoadPlan, LoadFault> {
  const stored = new Map(model.tensors.map((tensor) => [tensor.name, tensor]))
  const found = { faults: new Faults(), cast: [] as string[] }
  const missing: Array<string> = []
  const used = new Set<string>()
  const reads: Array<StreamRead> = []
  const twice: Array<readonly [ModelTensor, ModelTensor]> = []
  for (const loaded of tensors) {
    const [name] = loaded.names
    const own = loaded.names.flatMap((each) => stored.get(each) ?? [])
    const [first] = own
    for (const one of own) used.add(one.name)
    for (const other of own.slice(1)) twice.push([first!, other])
    if (first === undefined) {
      if (!allowed.missing) found.faults.add(name, "is not in the checkpoint", lacking)
      missing.push(name)
      continue
    }
    checkType(first, name, loaded.tensor, allowed, found)
    const shard = shardOf(first, loaded, place)
    if (Result.isFailure(shard)) {
      found.faults.add(name, shard.failure, "Redistribute it to Shard or Replicate.")
    } else if (!equalShapes(shard.success.shape, loaded.tensor.shape)) {
      const part = equalShapes(shard.success.shape, first.shape)
        ? ""
        : `, of which rank ${place.rank} has ${formatShape(shard.success.shape)}`
      found.faults.add(
        name,
        `is ${formatShape(first.shape)} in the checkpoint${part}, and ${formatShape(loaded.tensor.shape)} here`,
        "Load a checkpoint of this model, and state how its tensors lie."
      )
    } else {
      const own = partReads(first, shard.success, loaded.tensor)
      if (Result.isFailure(own)) found.faults.add(name, own.failure, "Redistribute it.")
      else for (const read of own.success) reads.push(read)
    }
  }
  const unexpected = noteRest(model, used, allowed, found.faults)
  yield* Effect.fromResult(found.faults.check(model.path))
  for (const [one, other] of twice) yield* checkEqual(model, one, other)
  return { sources: [{ source: model, reads }], zeros: [], cast: found.cast, missing, unexpected }
})

/** By the names of a system: joined, stacked and cut as it has them. */
export const planByConvention = Effect.fnUntraced(function* (
  model: Model,
  family: FamilyChoice,
  side: NamedSide,
  tensors: ReadonlyArray<LoadedTensor>,
  { rank }: SidePlace,
  allowed: Allowances
): Effect.fn.Return<LoadPlan, LoadFault> {
  const structure = yield* Effect.fromResult(structureOf(model.tensors, family))
  yield* checkTied(model, structure, side)
  const stated = yield* Effect.fromResult(sideOf(side, structure, family, 0))
  const mapped = yield* Effect.fromResult(mapModel({ ...stated, tensors: model.tensors }))
  const own = yield* Effect.fromResult(mapped.rankAt(placeOf(side.config, 0, rank)))
  const held = new Map(tensors.flatMap((loaded) => loaded.names.map((name) => [name, loaded] as const)))
  const aliasesOf = new Map<string, Array<string>>()
  for (const [alias, of] of own.aliases) aliasesOf.set(of, [...(aliasesOf.get(of) ?? []), alias])
  const found = { faults: new Faults(), cast: [] as string[] }
  const used = new Set<LoadedTensor>()
  const unexpected: Array<string> = []
  const filled: Array<RankTensor> = []
  const by = side.mapping === undefined ? side.convention : "the mapping"
  for (const made of own.tensors) {
    const loaded = [made.name, ...(aliasesOf.get(made.name) ?? [])].flatMap((name) => held.get(name) ?? [])[0]
    if (loaded === undefined) {
      if (!allowed.unexpected) found.faults.add(made.name, `is a tensor by ${by}, and not here`, leftOver)
      unexpected.push(made.name)
      continue
    }
    used.add(loaded)
    checkType(made, made.name, loaded.tensor, allowed, found)
    if (!equalShapes(made.shape, loaded.tensor.shape))
      found.faults.add(
        made.name,
        `is ${formatShape(made.shape)} by ${by}, and ${formatShape(loaded.tensor.shape)} here`,
        "Check the degrees of the convention, and that the checkpoint is of this model."
      )
    else if (!isContiguous(loaded.tensor))
      found.faults.add(made.name, "does not lie densely", "Load into tensors as they are allocated, not views of them.")
    else filled.push({ made, into: loaded.tensor })
  }
  const missing = tensors.flatMap((loaded) => (used.has(loaded) ? [] : [loaded.names[0]]))
  if (!allowed.missing) for (const name of missing) found.faults.add(name, `is no tensor by ${by}`, lacking)
  yield* Effect.fromResult(found.faults.check(model.path))
  const reads = yield* Effect.fromResult(
    Result.mapError(rankReads(model, filled), ({ detail }) =>
      busError("UnsupportedTensor", { op: loadOp, detail: `${detail}.`, remedy: "Share the tensors again." })
    )
  )
  return {
    sources: [
      { source: model, reads: reads.plain },
      { source: reads.assembled, reads: reads.scattered }
    ],
    zeros: reads.zeros,
    cast: found.cast,
    missing,
    unexpected
  }
})
