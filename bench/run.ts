// SPDX-License-Identifier: Apache-2.0
/**
 * `pnpm bench [NAME] [--json]`: runs the benches side by side with what they are compared with, names the machine, and
 * prints a table, or one JSON document for machines.
 */
import * as os from "node:os"
import type { BenchResult } from "./measure.ts"

/** Loaded when chosen, so that one suite runs where another's needs are missing. */
const suites: Readonly<Record<string, () => Promise<ReadonlyArray<BenchResult>>>> = {
  planning: async () => (await import("./planning.ts")).planning(),
  mesh: async () => (await import("./mesh.ts")).mesh(),
  fleet: async () => (await import("./fleet.ts")).fleet(),
  "fleet-hosts": async () => (await import("./fleet-hosts.ts")).fleetHosts(),
  schedule: async () => (await import("./schedule.ts")).schedule(),
  cpu: async () => (await import("./cpu.ts")).cpu(),
  collectives: async () => (await import("./collectives.ts")).collectives(),
  "two-process": async () => (await import("./two-process.ts")).twoProcess(),
  tcp: async () => (await import("./tcp.ts")).tcp(),
  ucx: async () => (await import("./ucx.ts")).ucx(),
  repeat: async () => (await import("./repeat.ts")).repeat(),
  bus: async () => (await import("./bus.ts")).bus(),
  store: async () => (await import("./store.ts")).store(),
  memory: async () => (await import("./memory.ts")).memory(),
  imports: async () => (await import("./imports.ts")).imports(),
  "rank-start": async () => (await import("./rank-start.ts")).rankStart(),
  delta: async () => (await import("./delta.ts")).delta(),
  "delta-hosts": async () => (await import("./delta-hosts.ts")).deltaHosts(),
  stream: async () => (await import("./stream.ts")).stream(),
  replay: async () => (await import("./replay.ts")).replay(),
  push: async () => (await import("./push.ts")).push()
}

const args = process.argv.slice(2)
const asJson = args.includes("--json")
const chosen = args.filter((arg) => !arg.startsWith("--"))
const unknown = chosen.find((name) => suites[name] === undefined)
if (unknown !== undefined) {
  console.error(`There is no bench "${unknown}"; there are ${Object.keys(suites).join(", ")}.`)
  process.exit(2)
}
const machine = {
  date: new Date().toISOString().slice(0, 10),
  processor: os.cpus()[0]?.model ?? "unknown",
  cores: os.availableParallelism(),
  node: process.version
}
const results: Array<BenchResult & { readonly suite: string; readonly ratio?: number; readonly met?: boolean }> = []
for (const [suite, run] of Object.entries(suites)) {
  if (chosen.length > 0 && !chosen.includes(suite)) continue
  for (const result of await run()) {
    const { ours, reference, target, lowerIsBetter } = result
    results.push({
      suite,
      ...result,
      ...(reference === undefined ? {} : { ratio: lowerIsBetter ? reference / ours : ours / reference }),
      ...(target === undefined ? {} : { met: lowerIsBetter ? ours <= target : ours >= target })
    })
  }
}
if (asJson) console.log(JSON.stringify({ machine, results }, null, 2))
else {
  const format = (value: number | undefined): string => (value === undefined ? "" : value.toPrecision(3))
  console.log(`${machine.date}, ${machine.processor}, ${machine.cores} cores, Node ${machine.node}\n`)
  for (const { case: name, unit, ours, reference, ratio, target, met } of results) {
    const against = reference === undefined ? "" : `  reference ${format(reference)} ${unit} (${format(ratio)}x)`
    const goal = target === undefined ? "" : `  target ${format(target)} ${unit} ${met ? "met" : "MISSED"}`
    console.log(`${name}\n    ${format(ours)} ${unit}${against}${goal}`)
  }
}
