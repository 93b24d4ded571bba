// SPDX-License-Identifier: Apache-2.0
/** Estimates of plans as text for people: who sends how much to whom, and what each rank needs for it. */
import type { Rank } from "@tensorferry/core/base/Ids"
import type { PlanEstimate, Traffic } from "@tensorferry/core/planner/Estimate"
import type { JobMemory } from "../device/jobMemory.ts"
import { type Align, counted, formatBytes, formatSeconds, table } from "../text/Table.ts"

/** Largest matrix that is drawn; larger jobs list their busiest pairs. */
const drawnRanks = 16

const trafficMatrix = (ranks: ReadonlyArray<Rank>, traffic: ReadonlyArray<Traffic>): string => {
  if (ranks.length > drawnRanks) {
    const busiest = [...traffic].sort((a, b) => b.bytes - a.bytes).slice(0, drawnRanks)
    return table(
      ["from", "to", "bytes", "ops"],
      busiest.map((pair) => [`${pair.from}`, `${pair.to}`, formatBytes(pair.bytes), `${pair.ops}`]),
      ["right", "right", "right", "right"]
    )
  }
  const cell = new Map(traffic.map(({ from, to, bytes }) => [`${from}/${to}`, bytes]))
  return table(
    ["from \\ to", ...ranks.map(String)],
    ranks.map((from) => [
      String(from),
      ...ranks.map((to) => {
        const bytes = cell.get(`${from}/${to}`)
        return bytes === undefined ? "·" : formatBytes(bytes)
      })
    ]),
    ["right", ...ranks.map(() => "right" as const)]
  )
}

/** A table of numbers: all columns to the right. */
const numbers = (header: ReadonlyArray<string>, rows: ReadonlyArray<ReadonlyArray<string>>): string =>
  table(
    header,
    rows,
    header.map((): Align => "right")
  )

const speeds = "on one host (4 GB/s per rank between processes, 8 GB/s within one)"

const sharesOf = (rank: PlanEstimate["ranks"][number]): ReadonlyArray<string> => [
  `${rank.rank}`,
  formatBytes(rank.sourceBytes),
  formatBytes(rank.destinationBytes),
  formatBytes(rank.sentBytes),
  formatBytes(rank.receivedBytes),
  formatBytes(rank.localBytes)
]

/** What each rank takes where its tensors lie on a device. */
export type RankMemory = JobMemory & { readonly rank: Rank }

const describeMemory = (memory: ReadonlyArray<RankMemory>): ReadonlyArray<string> => [
  "",
  numbers(
    ["rank", "host", "pinned", "device"],
    memory.map(({ device, host, pinned, rank }) => [
      `${rank}`,
      formatBytes(host),
      formatBytes(pinned),
      formatBytes(device)
    ])
  ),
  "peaks beside the program itself; ranks that share a device need theirs together"
]

export const describeEstimate = (estimate: PlanEstimate, memory: ReadonlyArray<RankMemory> = []): string => {
  const reduces = estimate.ranks.some(({ reducedBytes }) => reducedBytes > 0)
  return [
    trafficMatrix(
      estimate.ranks.map(({ rank }) => rank),
      estimate.traffic
    ),
    "",
    numbers(
      [
        ...["rank", "source", "destination", "sends", "receives", "local"],
        ...(reduces ? ["reduces"] : []),
        ...["buffers", "peak memory"]
      ],
      estimate.ranks.map((rank) => [
        ...sharesOf(rank),
        ...(reduces ? [formatBytes(rank.reducedBytes)] : []),
        formatBytes(rank.bufferBytes),
        formatBytes(rank.peakBytes)
      ])
    ),
    ...(memory.length === 0 ? [] : describeMemory(memory)),
    "",
    `${counted(estimate.ops, "operation")}, ${formatBytes(estimate.totalBytes)} in all, ${formatBytes(estimate.remoteBytes)} between ranks`,
    // Devices have other links than hosts.
    ...(memory.length === 0 ? [`predicted time ${formatSeconds(estimate.seconds)} ${speeds}`] : [])
  ].join("\n")
}
