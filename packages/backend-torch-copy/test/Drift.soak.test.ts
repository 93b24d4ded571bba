// SPDX-License-Identifier: Apache-2.0
/**
 * A thousand runs in one set of processes leave time, memory and descriptors as they were.
 */

import { spawn } from "node:child_process"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { median } from "@tensorferry/core/base/Numbers"
import type { PathName } from "../src/memoryPath.ts"
import type { SoakInput, SoakSample } from "./fixtures/soak-rank.ts"

const runs = 1000
const block = 20

/** Lines of one rank; the first of rank 0 tells its port. */
const startRank = (input: SoakInput) => {
  const script = fileURLToPath(new URL("fixtures/soak-rank.ts", import.meta.url))
  const child = spawn(process.execPath, ["--expose-gc", script, JSON.stringify(input)], {
    stdio: ["ignore", "pipe", "inherit"]
  })
  const lines: Array<unknown> = []
  let tellFirst: (line: unknown) => void = () => {}
  const first = new Promise<unknown>((resolve) => {
    tellFirst = resolve
  })
  createInterface({ input: child.stdout }).on("line", (line) => {
    lines.push(JSON.parse(line))
    tellFirst(lines[0])
  })
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve))
  return { first, ended, lines }
}

/** The median slope over all pairs of samples, as a share of the median, per 100 runs (Theil-Sen). */
const driftPer100 = (values: ReadonlyArray<number>): number => {
  const slopes: Array<number> = []
  for (let i = 0; i < values.length; i++) {
    for (let j = i + 1; j < values.length; j++) slopes.push((values[j]! - values[i]!) / (j - i))
  }
  return (median(slopes) / median(values)) * (100 / block)
}

describe.skipIf(process.platform !== "linux")("1000 runs", () => {
  const ladder: ReadonlyArray<readonly [string, ReadonlyArray<PathName>]> = [
    ["shared-map", []],
    ["tcp", ["shared-map", "process-vm-readv"]]
  ]
  for (const [name, forbid] of ladder) {
    it(`by ${name} drift by less than 1% per 100`, async () => {
      const first = startRank({ rank: 0, port: 0, runs, block, forbid })
      const { port } = (await first.first) as { readonly port: number }
      const second = startRank({ rank: 1, port, runs, block, forbid })
      assert.deepStrictEqual(await Promise.all([first.ended, second.ended]), [0, 0])
      for (const lines of [first.lines.slice(1), second.lines]) {
        assert.strictEqual(lines.length, runs / block)
        // Compilers and pools settle in the first part.
        const samples = (lines as ReadonlyArray<SoakSample>).slice(10)
        for (const field of ["heapBytes", "residentBytes", "descriptors"] as const) {
          const values = samples.map((sample) => sample[field])
          assert.isBelow(driftPer100(values), 0.01, `${field}: ${values.join(" ")}`)
        }
        // Work that piles up slows both; a machine that gets busy meanwhile seldom does.
        const times = (["seconds", "processorSeconds"] as const).map((field) => samples.map((sample) => sample[field]))
        assert.isBelow(Math.min(...times.map(driftPer100)), 0.01, times.map((values) => values.join(" ")).join("; "))
      }
    }, 300_000)
  }
})
