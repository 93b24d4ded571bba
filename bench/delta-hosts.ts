// SPDX-License-Identifier: Apache-2.0
/**
 * Updates of changes between two network namespaces over a cable of 1 Gbit/s, beside whole updates of the same weights over the
 * same cable: how long each takes until both ranks have it, and what the cable carried beside what the model states. At 1%
 * changed, also what checks of lists and of regions add.
 */
import { median } from "@tensorferry/core/base/Numbers"
import { expectedListBytes } from "@tensorferry/model/delta/DeltaSize"
import { type Host, makeHosts, noHosts } from "@tensorferry/simulators/hosts"
import * as Effect from "effect/Effect"
import { startRanks } from "./child.ts"
import type { DeltaRankInput, DeltaRankRequest } from "./delta-rank.ts"
import type { BenchResult } from "./measure.ts"

/** What of the options of updates is compared. */
export interface BenchOptions {
  readonly checksums?: boolean
  readonly verify?: boolean
}

const rounds = 5
const warmUps = 2
const shape = { tensors: 32, elements: 2 ** 22 }
const allElements = shape.tensors * shape.elements
const shares = [0.0005, 0.01, 0.03, 0.1]
/** Of the time of a whole update, at 1% changed. */
const targetAtOnePercent = 0.06

/** Bytes that have left a host by its first cable. */
const sentBytes = (host: Host): number => {
  const [link] = JSON.parse(host.run("ip", ["-s", "-j", "link", "show", "dev", "eth0"]))
  return link.stats64.tx.bytes
}

const measure = async (hosts: readonly [Host, Host]): Promise<ReadonlyArray<BenchResult>> => {
  for (const host of hosts) host.limit(1e9)
  const address = (rank: number) => hosts[rank]!.addresses[0]!
  const { ask, close } = await startRanks<DeltaRankRequest>(
    hosts,
    "delta-rank.ts",
    (rank, port): DeltaRankInput => ({ ...shape, rank, port, host: address(0), address: address(rank) })
  )
  const update = async (request: DeltaRankRequest) => {
    const before = sentBytes(hosts[0])
    const answers = await ask(request)
    const of = (name: string) => answers.map((answer) => Number(answer[name]))
    return {
      millis: 1000 * (Math.max(...of("ended")) - Math.min(...of("begun"))),
      bytes: sentBytes(hosts[0]) - before,
      changed: of("changedElements")[0]!,
      whole: of("whole")[0]!
    }
  }
  const medianOf = <K extends string>(all: ReadonlyArray<Readonly<Record<K, number>>>, key: K) =>
    median(all.map((one) => one[key]))

  const results: Array<BenchResult> = []
  const versions: ReadonlyArray<BenchOptions> = [{}, { checksums: false }, { verify: true }]
  // The first update is a whole one; of the others each has copies of its own.
  await update({ update: "whole" })
  for (const options of versions) await update({ update: "changes", options })
  const wholeMillis = async () => (await update({ update: "whole" })).millis
  for (const share of shares) {
    const [ours, theirs]: [Array<Awaited<ReturnType<typeof update>>>, Array<number>] = [[], []]
    for (let round = -warmUps; round < rounds; round++) {
      await ask({ change: share })
      const one = await update({ update: "changes", options: {} })
      if (round < 0) continue
      ours.push(one)
      theirs.push(await wholeMillis())
    }
    const whole = median(theirs)
    const percent = `${100 * share}% changed`
    const fastest = Math.min(...ours.map(({ millis }) => millis)).toFixed(0)
    if (ours.some((one) => one.whole > 0)) throw new Error(`an update of ${percent} sent whole regions`)
    results.push({
      case: `1 Gbit/s, ${(2 * allElements) / 2 ** 20} MiB of bfloat16, ${percent}, fastest ${fastest} ms; reference is the whole update`,
      unit: "ms",
      ours: medianOf(ours, "millis"),
      reference: whole,
      ...(share === 0.01 ? { target: targetAtOnePercent * whole } : {}),
      lowerIsBetter: true
    })
    const stated = expectedListBytes(allElements, 2, share)
    results.push({
      case: `bytes on the cable, headers of packets included, ${percent}; reference is the stated model`,
      unit: "MB",
      ours: medianOf(ours, "bytes") / 1e6,
      reference: stated / 1e6,
      target: (1.05 * stated) / 1e6,
      lowerIsBetter: true
    })
  }
  for (const options of versions) {
    const millis: Array<number> = []
    await update({ update: "changes", options })
    for (let round = 0; round < rounds; round++) {
      await ask({ change: 0.01 })
      millis.push((await update({ update: "changes", options })).millis)
    }
    const checks = options.verify ? "lists and regions" : options.checksums === false ? "nothing" : "lists"
    results.push({ case: `1% changed, checking ${checks}`, unit: "ms", ours: median(millis), lowerIsBetter: true })
  }
  await close()
  return results
}

/** Nothing, with a message, where this machine makes no hosts. */
export const deltaHosts = (): Promise<ReadonlyArray<BenchResult>> => {
  const reason = noHosts()
  if (reason !== undefined) {
    console.error(`The bench of changes between hosts is skipped: ${reason}.`)
    return Promise.resolve([])
  }
  return Effect.runPromise(
    Effect.scoped(
      Effect.flatMap(makeHosts({ count: 2, isDirect: true }), ([a, b]) => Effect.promise(() => measure([a!, b!])))
    )
  )
}
