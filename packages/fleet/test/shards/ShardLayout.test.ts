// SPDX-License-Identifier: Apache-2.0
/**
 * Layouts of generated models: what a bundle is on a holder and on a wanter are the same bytes, however they are cut, and what the
 * ranks of a group answer for adds up to each tensor once. Bytes are real: every rank's shard is filled from one whole model.
 */
import { afterAll, assert, describe, it } from "@effect/vitest"
import { bitsOf } from "@tensorferry/core/base/DType"
import type { PlanTensor } from "@tensorferry/core/ir/ReshardPlan"
import type { Roster } from "@tensorferry/core/layout/Roster"
import { indexRosters, planRank } from "@tensorferry/core/planner/RosterPlanner"
import type { DigestPart } from "@tensorferry/core/service/TensorEngine"
import { cpu } from "@tensorferry/core/tensor/Device"
import { type ElementDigest, sumOfDigests } from "@tensorferry/core/tensor/ElementDigest"
import { type Tensor, tensorBytes } from "@tensorferry/core/tensor/Tensor"
import { expertPair, fusedPair, layoutsOf, modelPair } from "@tensorferry/testing/planning/arbitraries"
import { make } from "@tensorferry/testing/ReferenceEngine"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Weights } from "../../src/edges/Pieces.ts"
import { indexLayout, type ShardLayout, shardBytes } from "../../src/shards/ShardLayout.ts"
import { digestParts } from "../../src/shards/ShareDigests.ts"
import { sharesOf } from "../../src/shards/Shares.ts"
import { byteRuns } from "./byteRuns.ts"

const hostTensor = ({ dtype, shape }: Pick<PlanTensor, "dtype" | "shape">): Tensor => {
  const elements = shape.reduce((product, length) => product * length, 1)
  const bytes = new Uint8Array((elements * bitsOf(dtype)) / 8)
  const strides = shape.map((_, at) => shape.slice(at + 1).reduce((product, length) => product * length, 1))
  const storage = { device: cpu, bytes, byteLength: bytes.length, isFreed: () => false } as unknown as Tensor["storage"]
  return { device: cpu, dtype, shape, strides, byteOffset: 0, storage }
}

/** A byte of a whole tensor, by its name and place. */
const valueAt = (name: string, at: number): number => (name.length * 31 + at * 7 + (at >> 8) * 13) & 255

const bytesOfView = (view: Tensor): ReadonlyArray<number> => {
  const bytes = view.storage.bytes!
  const walk = (dim: number, at: number): ReadonlyArray<number> =>
    dim === view.shape.length
      ? [bytes[at]!]
      : Array.from({ length: view.shape[dim]! }, (_, index) => walk(dim + 1, at + index * view.strides[dim]!)).flat()
  return walk(0, view.byteOffset)
}

/** What a rank holds, filled from the whole model. */
const shardsOf = ({ shares, tensors }: ShardLayout): Weights =>
  new Map(
    tensors.map((tensor) => {
      const filled = hostTensor(tensor)
      const share = shares.find(({ name }) => name === tensor.name)!
      const bytes = tensorBytes(filled)!
      for (const { local, global, bytes: length } of byteRuns(share, share.held))
        for (let at = 0; at < length; at++) bytes[local + at] = valueAt(tensor.resolvedName, global + at)
      return [tensor.name, filled]
    })
  )

const engine = make()
const digestsOf = (parts: ReadonlyArray<DigestPart>): ReadonlyArray<ElementDigest> =>
  Effect.runSync(engine.digest(parts))

/** Layouts that share ranks are none of a fleet. */
let judged = 0

/** Replicas of as many ranks as come together in one data-parallel copy are not known here: all are one. */
const holds = (source: Roster, destination: Roster, what: unknown): void => {
  const text = JSON.stringify(what).slice(0, 2000)
  const shift = Math.max(...source.members.map(({ rank }) => rank)) + 1
  if (!destination.members.every(({ rank }) => rank >= shift)) return
  judged += 1
  const replicas = [destination.members.map(({ rank }) => rank)]
  const layout = { source, destination, replicas }
  const sides = [
    ...source.members.map(({ rank }) => [rank, "source"] as const),
    ...destination.members.map(({ rank }) => [rank, "replica"] as const)
  ]
  const ranks = new Map(
    sides.map(([rank, role]) => [rank, Result.getOrThrow(indexLayout(layout, rank, role))] as const)
  )
  const weights = new Map([...ranks].map(([rank, each]) => [rank, shardsOf(each)] as const))
  const { demand, keyOf } = ranks.get(sides[0]![0])!.fromSource
  for (const [at, { bytes, holders, wanters }] of demand.bundles.entries()) {
    let expected: string | undefined
    for (const rank of new Set([...holders, ...wanters])) {
      const piecesOf = shardBytes(ranks.get(rank)!.regions, weights.get(rank)!)
      const step = Math.max(1, Math.ceil(bytes / (2 + (rank % 3))))
      const found: Array<number> = []
      for (let start = 0; start < bytes; start += step) {
        const pieces = piecesOf(keyOf(at), start, Math.min(bytes, start + step)).flatMap(bytesOfView)
        assert.strictEqual(pieces.length, Math.min(bytes, start + step) - start, text)
        found.push(...pieces)
      }
      const all = Buffer.from(found).toString("hex")
      expected ??= all
      assert.strictEqual(all, expected, `${text} rank ${rank} bundle ${at}`)
    }
  }
  const index = Result.getOrThrow(indexRosters(source, destination))
  for (const [members, side] of [
    [source.members, "sourceTensors"],
    [destination.members, "destinationTensors"]
  ] as const) {
    const sums = new Map<string, ElementDigest>()
    const wholes = new Map<string, ElementDigest>()
    const group = members.map(({ rank }) => rank)
    for (const [rank, shares] of sharesOf(group, (each) => planRank(index, each)[side])) {
      for (const share of shares) {
        const parts = digestParts(weights.get(rank)!.get(share.name)!, share, share.counted)
        const before = sums.get(share.resolvedName) ?? 0n
        sums.set(share.resolvedName, sumOfDigests([before, ...digestsOf(parts)]))
        const whole = hostTensor(share)
        tensorBytes(whole)!.forEach((_, byte, bytes) => {
          bytes[byte] = valueAt(share.resolvedName, byte)
        })
        wholes.set(share.resolvedName, digestsOf([{ tensor: whole }])[0]!)
      }
    }
    for (const [name, whole] of wholes) assert.strictEqual(sums.get(name), whole, `${text} ${name}`)
  }
}

afterAll(() => assert.isAbove(judged, 50))

const arbitrary = { runs: isSoak ? 2000 : 40, seed: isSoak ? `${Date.now()}` : "shards" }
const options = { arbitrary, timeout: isSoak ? 900_000 : 60_000 }

describe("a version that is cut over ranks", () => {
  it.effect.prop(
    "has the same bytes in a bundle on all who hold or want it, and is answered for once, of models cut alike",
    { pair: modelPair() },
    ({ pair }) =>
      Effect.sync(() => {
        const layouts = Result.getOrThrow(layoutsOf({ ...pair, placement: "disjoint" }))
        holds(layouts.source.roster, layouts.destination.roster, pair)
      }),
    options
  )
  it.effect.prop(
    "has the same bytes in a bundle on all who hold or want it, and is answered for once, of fused tensors",
    { pair: fusedPair },
    ({ pair }) => Effect.sync(() => holds(pair.source, pair.destination, pair)),
    options
  )
  it.effect.prop(
    "has the same bytes in a bundle on all who hold or want it, and is answered for once, of experts",
    { pair: expertPair },
    ({ pair }) => Effect.sync(() => holds(pair.source, pair.destination, pair)),
    options
  )
})
