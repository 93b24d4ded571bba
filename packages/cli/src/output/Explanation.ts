// SPDX-License-Identifier: Apache-2.0
/** What one rank does by a plan of either planner, in words: each transfer, grouped by the ranks at the other end. */
import type { Rank } from "@tensorferry/core/base/Ids"
import { formatRegion, formatShape, type Region } from "@tensorferry/core/base/Region"
import type { ReshardPlan } from "@tensorferry/core/ir/ReshardPlan"
import type { TransferOp } from "@tensorferry/core/ir/TransferOp"
import { type AnyPlan, opsOf } from "@tensorferry/core/planner/MeshOps"
import { opByteLength } from "@tensorferry/core/planner/PlanCheck"
import { isContribution, travelShape } from "@tensorferry/core/planner/Waves"
import { formatBytes } from "../text/Table.ts"
import { plainLine, terminalWidth, wrapped } from "../text/terminal.ts"

export interface Step {
  readonly action: "copy" | "send" | "receive"
  readonly name: string
  /** Sent to several ranks, of all of them together. */
  readonly bytes: number
  /** Of this rank's tensor: of the destination where it is written, else of the source. */
  readonly region: Region
  /** Of the tensor at the other end; null for a part that is reduced there, or here. */
  readonly peerRegion: Region | null
  /** The tensors that it comes out of and becomes part of, where these have other names. */
  readonly tensors?: { readonly source: string; readonly destination: string }
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

/** What is sent alike to several ranks is one step with all of them. */
const steps = (plan: ReshardPlan): Iterable<readonly [peers: Array<Rank>, op: TransferOp]> => {
  // A local copy is in both lists; its send says what is reduced.
  const ops = [...plan.sendOps, ...plan.recvOps.filter((op) => op.peerRank !== plan.rank)]
  const alike = new Map<string, readonly [peers: Array<Rank>, op: TransferOp]>()
  for (const [at, op] of ops.entries()) {
    const { paramName, isSend, peerRank, mySlice, peerSlice, reduction } = op
    const shared = `${paramName} ${formatRegion(mySlice)} ${formatRegion(peerSlice)} ${reduction}`
    const key = isSend && peerRank !== plan.rank ? shared : String(at)
    const known = alike.get(key)
    if (known === undefined) alike.set(key, [[peerRank], op])
    else known[0].push(peerRank)
  }
  return alike.values()
}

/** The tensor in which a side has a parameter, where that has another name. */
export type TensorOf = (side: "source" | "destination", rank: Rank, paramName: string) => string | undefined

/** What a rank does by a plan of either planner. */
export const explainPlan = (given: AnyPlan, tensorOf?: TensorOf): Explanation => {
  const plan = opsOf(given)
  const { rank } = plan
  const stepOf = ([peers, op]: readonly [ReadonlyArray<Rank>, TransferOp]): readonly [ReadonlyArray<Rank>, Step] => {
    const box = `(${op.wireDtype}${formatShape(travelShape(op))})`
    const [own, other] = [formatRegion(op.mySlice), formatRegion(op.peerSlice)]
    const contributes = isContribution(plan, op)
    const places = contributes
      ? { region: op.mySlice, peerRegion: null }
      : { region: op.mySlice, peerRegion: op.peerSlice }
    const reduction = contributes || op.reduction === undefined ? undefined : plan.reductions?.[op.reduction]
    const reduced = reduction === undefined ? "" : `, ${reduction.op} over ranks ${reduction.ranks.join(", ")}`
    const [sender, receiver] = op.isSend ? [rank, peers[0]!] : [op.peerRank, rank]
    const [source, destination] = [
      tensorOf?.("source", sender, op.paramName) ?? op.paramName,
      tensorOf?.("destination", receiver, op.paramName) ?? op.paramName
    ]
    const isOwn = source === destination && (op.paramName === source || op.paramName.startsWith(`${source}[`))
    const tensors = isOwn ? {} : { tensors: { source, destination } }
    const common = { name: op.paramName, bytes: opByteLength(op) * peers.length, ...places, ...tensors }
    if (op.peerRank === rank) {
      const words = `rank ${rank} copies ${op.paramName}${own} ${box}${reduced} into ${other} of its own destination`
      return [[], { ...common, region: op.peerSlice, peerRegion: op.mySlice, action: "copy", words }]
    }
    const [from, to] = op.isSend ? [rank, peers.join(", ")] : [op.peerRank, `${rank}`]
    const [sent, into] = op.isSend ? [own, other] : [other, own]
    const what = `${op.paramName}${sent} ${box}${reduced}`
    const words = contributes
      ? `rank ${from} contributes ${what} to the reduction on rank ${to}`
      : `rank ${from} sends ${what} to rank${peers.length === 1 ? "" : "s"} ${to} into ${into}`
    return [peers, { ...common, action: op.isSend ? "send" : "receive", words }]
  }
  return grouped(rank, [...steps(plan)].map(stepOf))
}

const shownGroups = 24
const shownSteps = 8
const shownPeers = 16
const shownCharacters = 500

const ranksOf = (peers: ReadonlyArray<Rank>): string =>
  `${peers.slice(0, shownPeers).join(", ")}${peers.length > shownPeers ? ` and ${peers.length - shownPeers} more` : ""}`

/** Names in it are the checkpoint's. */
const inShort = (words: string): string =>
  plainLine(words.length > shownCharacters ? `${words.slice(0, shownCharacters)} …` : words)

const more = (count: number, what: string): ReadonlyArray<string> =>
  count <= 0 ? [] : [`… and ${count} more ${what}${count === 1 ? "" : "s"}; --json lists all`]

const fusionOf = ({ source, destination }: NonNullable<Step["tensors"]>): string =>
  source === destination
    ? `in ${inShort(source)} on both sides`
    : `out of ${inShort(source)}, part of ${inShort(destination)}`

const linesOf = ({ words, bytes, tensors }: Step): ReadonlyArray<string> => [
  `${inShort(words)}, ${formatBytes(bytes)}`,
  ...(tensors === undefined ? [] : [`    ${fusionOf(tensors)}`])
]

/** A bounded text; it says how much it leaves out. */
export const describeExplanation = ({ rank, groups }: Explanation): string => {
  const total = (steps: ReadonlyArray<Step>, action: Step["action"]): number =>
    steps.reduce((sum, step) => (step.action === action ? sum + step.bytes : sum), 0)
  const titleOf = ({ peers, steps }: Steps): string => {
    if (peers.length === 0) return `within rank ${rank}: ${formatBytes(total(steps, "copy"))}`
    const [sent, received] = [total(steps, "send"), total(steps, "receive")]
    return [
      `with rank${peers.length === 1 ? "" : "s"} ${ranksOf(peers)}: `,
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
        ...[...group.steps.slice(0, shownSteps).flatMap(linesOf), ...more(group.steps.length - shownSteps, "step")].map(
          (line) => `  ${line}`
        )
      ].join("\n")
    )
  return wrapped([...texts, ...more(groups.length - shownGroups, "peer")].join("\n\n"), terminalWidth())
}
