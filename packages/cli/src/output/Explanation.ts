// SPDX-License-Identifier: Apache-2.0
/**
 * What one rank does by a plan, in words: each chunk of a plan between meshes, each operation of a plan between parallel
 * layouts, grouped by the ranks at the other end.
 */
import { byteLengthOf } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import { elementCount, formatRegion, formatShape, type Region, regionShape } from "@tensorferry/core/base/Region"
import { type Chunk, describeChunk } from "@tensorferry/core/ir/Chunk"
import type { MeshPlan } from "@tensorferry/core/ir/MeshPlan"
import type { ReshardPlan } from "@tensorferry/core/ir/ReshardPlan"
import type { TransferOp } from "@tensorferry/core/ir/TransferOp"
import { opByteLength } from "@tensorferry/core/planner/PlanCheck"
import { formatBytes } from "../text/Table.ts"

export interface Step {
  readonly action: "copy" | "send" | "receive"
  readonly name: string
  /** Sent to several ranks, of all of them together. */
  readonly bytes: number
  /** Of this rank's tensor: of the destination where it is written, else of the source. */
  readonly region: Region
  /** Of the tensor at the other end; null for a part that is reduced there, or here. */
  readonly peerRegion: Region | null
  readonly words: string
}

/** What is done with the same other ranks; with nobody for local copies. */
export interface Steps {
  readonly peers: ReadonlyArray<Rank>
  readonly steps: ReadonlyArray<Step>
}

export interface Explanation {
  readonly rank: Rank
  /** Local copies first, then by the first of the other ranks. */
  readonly groups: ReadonlyArray<Steps>
}

const grouped = (rank: Rank, steps: Iterable<readonly [peers: ReadonlyArray<Rank>, step: Step]>): Explanation => {
  const groups = new Map<string, { readonly peers: ReadonlyArray<Rank>; readonly steps: Array<Step> }>()
  for (const [peers, step] of steps) {
    const key = peers.join()
    const group = groups.get(key)
    if (group === undefined) groups.set(key, { peers, steps: [step] })
    else group.steps.push(step)
  }
  const first = ({ peers }: Steps): Rank => peers[0] ?? -1
  return {
    rank,
    groups: [...groups.values()].sort((a, b) => first(a) - first(b) || a.peers.length - b.peers.length)
  }
}

export const explainMeshPlan = (plan: MeshPlan): Explanation => {
  const { rank } = plan
  const stepOf = (chunk: Chunk, bytes: number): readonly [ReadonlyArray<Rank>, Step] => {
    const { name } = plan.tensors[chunk.tensor]!
    const { dstIdx, kind, sliceTuples, srcIdx, srcSliceTuples } = chunk
    const common = { name, words: describeChunk(chunk, name) }
    if (kind !== "local" && srcIdx.rank === rank) {
      const send = { action: "send", region: srcSliceTuples, peerRegion: sliceTuples } as const
      return [dstIdx.map((to) => to.rank), { ...send, ...common, bytes: bytes * dstIdx.length }]
    }
    const places =
      sliceTuples === null
        ? { region: srcSliceTuples, peerRegion: null }
        : { region: sliceTuples, peerRegion: srcSliceTuples }
    return kind === "local"
      ? [[], { action: "copy", ...places, ...common, bytes }]
      : [[srcIdx.rank], { action: "receive", ...places, ...common, bytes }]
  }
  return grouped(rank, [
    ...plan.localChunks.map((chunk) =>
      stepOf(chunk, byteLengthOf(chunk.transferDtype, elementCount(chunk.chunkShape)))
    ),
    ...plan.buckets.flatMap(({ entries }) => entries.map(({ chunk, nbytes }) => stepOf(chunk, nbytes)))
  ])
}

export const explainReshardPlan = (plan: ReshardPlan): Explanation => {
  const { rank } = plan
  const stepOf = (op: TransferOp): readonly [ReadonlyArray<Rank>, Step] => {
    const box = `(${op.wireDtype}${formatShape(regionShape(op.mySlice))})`
    const [own, other] = [formatRegion(op.mySlice), formatRegion(op.peerSlice)]
    const common = { name: op.paramName, bytes: opByteLength(op), region: op.mySlice, peerRegion: op.peerSlice }
    if (op.peerRank === rank) {
      const words = `rank ${rank} copies ${op.paramName}${other} ${box} into ${own} of its own destination`
      return [[], { ...common, action: "copy", words }]
    }
    return op.isSend
      ? [
          [op.peerRank],
          {
            ...common,
            action: "send",
            words: `rank ${rank} sends ${op.paramName}${own} ${box} to rank ${op.peerRank} into ${other}`
          }
        ]
      : [
          [op.peerRank],
          {
            ...common,
            action: "receive",
            words: `rank ${op.peerRank} sends ${op.paramName}${other} ${box} to rank ${rank} into ${own}`
          }
        ]
  }
  // A local copy is in both lists.
  const sends = plan.sendOps.filter((op) => op.peerRank !== rank)
  return grouped(rank, [...plan.recvOps, ...sends].map(stepOf))
}

const shownGroups = 24
const shownSteps = 8

const more = (count: number, what: string): ReadonlyArray<string> =>
  count <= 0 ? [] : [`… and ${count} more ${what}${count === 1 ? "" : "s"}; --json lists all`]

/** A bounded text; it says how much it leaves out. */
export const describeExplanation = ({ rank, groups }: Explanation): string => {
  const total = (steps: ReadonlyArray<Step>, action: Step["action"]): number =>
    steps.reduce((sum, step) => (step.action === action ? sum + step.bytes : sum), 0)
  const titleOf = ({ peers, steps }: Steps): string => {
    if (peers.length === 0) return `within rank ${rank}: ${formatBytes(total(steps, "copy"))}`
    const [sent, received] = [total(steps, "send"), total(steps, "receive")]
    return [
      `with rank${peers.length === 1 ? "" : "s"} ${peers.join(", ")}: `,
      [
        ...(sent > 0 || received === 0 ? [`${formatBytes(sent)} sent`] : []),
        ...(received > 0 ? [`${formatBytes(received)} received`] : [])
      ].join(", ")
    ].join("")
  }
  if (groups.length === 0) return `rank ${rank} has nothing to do`
  const texts = groups
    .slice(0, shownGroups)
    .map((group) =>
      [
        titleOf(group),
        ...[
          ...group.steps.slice(0, shownSteps).map(({ words, bytes }) => `${words}, ${formatBytes(bytes)}`),
          ...more(group.steps.length - shownSteps, "step")
        ].map((line) => `  ${line}`)
      ].join("\n")
    )
  return [...texts, ...more(groups.length - shownGroups, "peer")].join("\n\n")
}
