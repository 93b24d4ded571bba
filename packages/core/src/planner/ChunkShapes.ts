// SPDX-License-Identifier: Apache-2.0
/**
 * The boxes that one rank sends, keeps, receives or reduces for a tensor of one shape, without its name and element type,
 * so that tensors of equal shapes share them.
 *
 * Invariant: chunks under one bucket key come in the same order on every rank that makes them.
 */
import type { Rank } from "../base/Ids.ts"
import { regionShape, type Shape } from "../base/Region.ts"
import type { Chunk, PartialGroup } from "../ir/Chunk.ts"
import type { RouteKind } from "../ir/Route.ts"
import { boxRegions, rangeBoxes, type SharedRegion } from "./CellBoxes.ts"
import { type MeshIndex, pairsOfShard, type ShardPair, shardIndices } from "./MeshIndex.ts"
import type { Shipment, ShipmentsOf } from "./SourceShares.ts"

/** A chunk of any tensor of the shape. */
export type ChunkShape = Omit<Chunk, "tensor" | "transferDtype">

const noGroups: ReadonlyArray<PartialGroup> = []

const groupText = (groups: ReadonlyArray<PartialGroup>): string =>
  groups.map(({ ranks, op }) => ` ${op}[${ranks.join(",")}]`).join("")

interface Way {
  readonly kind: RouteKind
  readonly from: Rank
  readonly to: ReadonlyArray<Rank>
  readonly groups: ReadonlyArray<PartialGroup>
  /** A name for what may share a bucket; reduce-only chunks add their cell. */
  readonly key: string
}

const wayOf = (kind: RouteKind, from: Rank, to: ReadonlyArray<Rank>, groups: ReadonlyArray<PartialGroup>): Way => ({
  kind,
  from,
  to,
  groups,
  key: `${kind} ${from}>${to.join(",")}${groupText(groups)}`
})

/** The chunks that one rank takes part in. */
export const chunkShapesOf = (
  index: MeshIndex,
  shipmentsOf: ShipmentsOf,
  shape: Shape,
  rank: Rank
): ReadonlyArray<ChunkShape> => {
  const { source, target, map } = index
  const [sourceRanks, targetRanks] = [source.layout.mesh.ranks, target.layout.mesh.ranks]
  const grid = index.gridsOf(shape)
  const made: Array<ChunkShape> = []

  const groupsOf = (holder: number): ReadonlyArray<PartialGroup> => {
    const reduction = map.sourcePartialReductions[0]
    return reduction === undefined
      ? noGroups
      : [{ ranks: index.groupOf(holder).map((member) => sourceRanks[member]!), op: reduction[1] }]
  }
  const regionsOf = (pair: ShardPair, shipment: Shipment): ReadonlyArray<SharedRegion> =>
    rangeBoxes(
      pair.overlaps.map((overlap) => overlap.cells),
      shipment.cells
    ).flatMap((box) => boxRegions(pair.overlaps, box))

  const add = ({ kind, from, to, groups, key }: Way, region: SharedRegion): void => {
    const isReduction = kind === "none"
    const cell = isReduction ? region.sourceCell : region.targetCell
    made.push({
      kind,
      chunkShape: regionShape(region.source),
      srcIdx: { rank: from, cell: region.sourceCell },
      dstIdx: to.map((dst) => ({ rank: dst, cell })),
      sliceTuples: isReduction ? null : region.target,
      srcSliceTuples: region.source,
      sourcePartialGroups: groups,
      bucketKey: isReduction ? `${key} cell[${cell.join(",")}]` : key
    })
  }
  const destinationsOf = (shipment: Shipment): readonly [remote: ReadonlyArray<Rank>, isLocal: boolean] => {
    const shipper = sourceRanks[shipment.holder]!
    const all = shipment.targets.map((position) => targetRanks[position]!)
    return [all.filter((to) => to !== shipper).sort((a, b) => a - b), all.includes(shipper)]
  }

  /** Everything that a shipment makes this rank do as a source: contribute, reduce, ship, keep. */
  const addAsSource = (own: number, pair: ShardPair, shipment: Shipment): void => {
    const isShipper = shipment.holder === own
    const isMember = index.isPartial && index.groupOf(shipment.holder).includes(own)
    if (!isShipper && !isMember) return
    const groups = groupsOf(shipment.holder)
    const shipper = sourceRanks[shipment.holder]!
    const [remote, isLocal] = destinationsOf(shipment)
    const ways = (groups[0]?.ranks ?? [])
      .filter((member) => member !== shipper && (isShipper || member === rank))
      .map((member) => wayOf("none", member, [shipper], groups))
    if (isShipper && remote.length > 0) {
      ways.push(wayOf(remote.length > 1 ? "broadcast" : "p2p", shipper, remote, groups))
    }
    if (isShipper && isLocal) ways.push(wayOf("local", shipper, [shipper], groups))
    for (const region of regionsOf(pair, shipment)) for (const way of ways) add(way, region)
  }

  const own = source.positionOf.get(rank)
  if (own !== undefined) {
    const shard = shardIndices(source, own, shape.length)
    for (const pair of pairsOfShard(index, grid, shard, "bySource")) {
      for (const shipment of shipmentsOf(grid, pair)) addAsSource(own, pair, shipment)
    }
  }
  const place = target.positionOf.get(rank)
  if (place !== undefined) {
    const shard = shardIndices(target, place, shape.length)
    for (const pair of pairsOfShard(index, grid, shard, "byTarget")) {
      for (const shipment of shipmentsOf(grid, pair)) {
        // What the rank ships to itself was found above.
        if (!shipment.targets.includes(place) || shipment.holder === own) continue
        const [remote] = destinationsOf(shipment)
        const kind = remote.length > 1 ? "broadcast" : "p2p"
        const way = wayOf(kind, sourceRanks[shipment.holder]!, remote, groupsOf(shipment.holder))
        for (const region of regionsOf(pair, shipment)) add(way, region)
      }
    }
  }
  return made
}
