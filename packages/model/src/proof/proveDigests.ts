// SPDX-License-Identifier: Apache-2.0
/**
 * Proves what ranks hold of a model by digests of what others hold of it: each destination shard is compared with the parts of
 * source shards that make it up. What sources hold was compared with the files when it was read, so no file is read again.
 *
 * Invariant: which parts make up a shard follows from the layouts of both sides alone, and not from the plan that moved them.
 */
import {
  elementCount,
  intersect,
  isEmptyRegion,
  type Region,
  regionShape,
  type Shape
} from "@tensorferry/core/base/Region"
import { exchange } from "@tensorferry/core/group/Exchange"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import type { DigestPart } from "@tensorferry/core/service/TensorEngine"
import { type ElementDigest, formatElementDigest, sumOfDigests } from "@tensorferry/core/tensor/ElementDigest"
import { sliceTensor, type Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { digestParts, type HeldTensor, viewFault } from "../HeldTensors.ts"
import type { LocalTensor, ModelLayout, Piece } from "../layout/ModelLayout.ts"
import { type ModelError, modelError } from "../ModelError.ts"
import { moveRegion } from "../ShardedModel.ts"

/** A side of a job: what each of its ranks holds. */
export type ProvenSide = Pick<ModelLayout, "ranks" | "tensors" | "tensorsOf">

/** A part of a tensor, and the one rank that vouches for it; replicas of it are not asked. */
interface Owned {
  readonly rank: number
  /** Name of the rank's tensor. */
  readonly name: string
  readonly piece: Piece
}

/** Who vouches for what, the same on every rank. */
export interface DigestProof {
  readonly destination: ProvenSide
  readonly shapes: ReadonlyMap<string, Shape>
  /** By the tensor of the model. */
  readonly owners: ReadonlyMap<string, ReadonlyArray<Owned>>
}

const held = (side: ProvenSide, rank: number): ReadonlyArray<LocalTensor> =>
  side.tensorsOf(rank).filter(({ aliasOf }) => aliasOf === undefined)

/**
 * Who vouches for each part of a model. Undefined where sources do not hold each element of every tensor once, replicas left
 * aside: then a proof reads the files.
 */
export const planDigestProof = (source: ProvenSide, destination: ProvenSide): DigestProof | undefined => {
  const shapes = new Map(source.tensors.map(({ name, shape }) => [name, shape]))
  const owners = new Map<string, Map<string, Owned>>(source.tensors.map(({ name }) => [name, new Map()]))
  for (const rank of source.ranks) {
    for (const { name, pieces, storedAs } of held(source, rank)) {
      const known = owners.get(storedAs)
      if (known === undefined) return undefined
      for (const piece of pieces) {
        const key = JSON.stringify(piece.global)
        if (!known.has(key)) known.set(key, { rank, name, piece })
      }
    }
  }
  for (const [name, known] of owners) {
    let elements = 0
    for (const { piece } of known.values()) elements += elementCount(regionShape(piece.global))
    if (elements !== elementCount(shapes.get(name)!)) return undefined
  }
  return {
    destination,
    shapes,
    owners: new Map([...owners].map(([name, known]) => [name, [...known.values()]]))
  }
}

/** Digests that a source has made for a shard of a rank: the rank, the number of its tensor, and the digest. */
const Sent = Schema.Array(Schema.Tuple([Schema.Int, Schema.Int, Schema.String]))

type Labelled<Label> = DigestPart & { readonly label: Label }

/** The sum of digests under each label. */
const sumsOf = Effect.fnUntraced(function* (group: ProcessGroupShape, parts: ReadonlyArray<Labelled<string>>) {
  const sums = new Map<string, ElementDigest>()
  for (const [place, digest] of (yield* digestParts(group, parts)).entries()) {
    const { label } = parts[place]!
    sums.set(label, sumOfDigests([sums.get(label) ?? 0n, digest]))
  }
  return sums
})

const partOf = (
  rank: number,
  { local, tensor }: HeldTensor,
  [within, global, whole]: readonly [Region, Region, Shape],
  label: string
): Result.Result<Labelled<string>, ModelError> =>
  Result.match(sliceTensor(tensor, within), {
    onFailure: ({ detail }) => Result.fail(viewFault(rank, local.name, detail)),
    onSuccess: (view: Tensor) => Result.succeed({ tensor: view, whole, origin: global.map(([start]) => start), label })
  })

/** What this rank holds of the shards of all. */
const ownParts = (
  { destination, owners, shapes }: DigestProof,
  rank: number,
  source: ReadonlyMap<string, HeldTensor>
): Result.Result<ReadonlyArray<Labelled<string>>, ModelError> =>
  Result.all(
    destination.ranks.flatMap((receiver) =>
      held(destination, receiver).flatMap(({ pieces, storedAs }, at) =>
        pieces.flatMap(({ global }) =>
          (owners.get(storedAs) ?? []).flatMap(({ name, piece, rank: owner }) => {
            if (owner !== rank) return []
            const common = intersect(global, piece.global)
            if (common === undefined || isEmptyRegion(common)) return []
            const within = moveRegion(common, piece.global, piece.local)
            return [partOf(rank, source.get(name)!, [within, common, shapes.get(storedAs)!], `${receiver} ${at}`)]
          })
        )
      )
    )
  )

/**
 * The tensors of this rank whose memory is not what the sources hold of them; collective. Fails where an engine does, or where
 * a rank of another version takes part.
 */
export const differingByDigests = Effect.fnUntraced(function* (
  proof: DigestProof,
  group: ProcessGroupShape,
  source: ReadonlyArray<HeldTensor>,
  destination: ReadonlyArray<HeldTensor>
) {
  const { rank } = group
  const byName = (tensors: ReadonlyArray<HeldTensor>) => new Map(tensors.map((one) => [one.local.name, one]))
  const sums = yield* sumsOf(group, yield* Effect.fromResult(ownParts(proof, rank, byName(source))))
  const own = [...sums].map(([label, digest]) => {
    const [receiver, at] = label.split(" ").map(Number)
    return [receiver!, at!, formatElementDigest(digest)] as const
  })
  const all = yield* exchange(group, "digests of sources", Sent, own).pipe(
    Effect.catchTag("UnreadableAnswer", ({ rank: other }) =>
      Effect.fail(
        modelError("Different", {
          rank,
          op: "verify",
          detail: `Rank ${other} described what it holds in a form that this version cannot read.`,
          remedy: "Run the same version on all ranks."
        })
      )
    )
  )
  const expected = new Map<number, ElementDigest>()
  for (const [receiver, at, digest] of all.flat()) {
    if (receiver !== rank || !/^[0-9a-f]{32}$/.test(digest)) continue
    expected.set(at, sumOfDigests([expected.get(at) ?? 0n, BigInt(`0x${digest}`)]))
  }
  const into = byName(destination)
  const locals = held(proof.destination, rank)
  const parts = yield* Effect.fromResult(
    Result.all(
      locals.flatMap(({ name, pieces, storedAs }, at) =>
        pieces.map(({ global, local }) =>
          partOf(rank, into.get(name)!, [local, global, proof.shapes.get(storedAs)!], String(at))
        )
      )
    )
  )
  const found = yield* sumsOf(group, parts)
  return locals.flatMap(({ name }, at) =>
    (found.get(String(at)) ?? 0n) === (expected.get(at) ?? 0n) ? [] : [into.get(name)!]
  )
})
