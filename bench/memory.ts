// SPDX-License-Identifier: Apache-2.0
/**
 * Memory of a whole reshard of a real model's shapes: every process of the job, sampled while it runs.
 *
 * A page that several ranks map is counted once, by its proportional share (PSS): resident sizes would count the memory of
 * a peer that is read in place again in each reader.
 */
import { spawn } from "node:child_process"
import { readdirSync, readFileSync } from "node:fs"
import { fileURLToPath } from "node:url"
import type { BenchResult } from "./measure.ts"

const main = fileURLToPath(new URL("../packages/cli/src/main.ts", import.meta.url))
const shapes = fileURLToPath(new URL("./shapes/llama-3.2-1b.json.gz", import.meta.url))

/** Milliseconds between samples. */
const interval = 50

const textOf = (file: string): string => {
  try {
    return readFileSync(file, "utf8")
  } catch {
    // The process has ended.
    return ""
  }
}

/** Bytes that the processes of a group use now. */
const usedBy = (group: number): number =>
  readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      const stat = textOf(`/proc/${pid}/stat`)
      return Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[2]) === group
    })
    .reduce((sum, pid) => {
      const share = /^Pss:\s+(\d+) kB/m.exec(textOf(`/proc/${pid}/smaps_rollup`))
      return sum + 1024 * Number(share?.[1] ?? 0)
    }, 0)

export const memory = async (): Promise<ReadonlyArray<BenchResult>> => {
  const flags = ["--preset", "llama", "--from", "tp=2", "--to", "tp=4", "--json"]
  const child = spawn(process.execPath, [main, "reshard", `synthetic:${shapes}`, ...flags], {
    detached: true,
    stdio: ["ignore", "pipe", "inherit"]
  })
  let output = ""
  child.stdout.on("data", (chunk) => {
    output += String(chunk)
  })
  let peak = 0
  const timer = setInterval(() => {
    peak = Math.max(peak, usedBy(child.pid!))
  }, interval)
  await new Promise((resolve) => child.once("close", resolve))
  clearInterval(timer)
  const { ok, bytes } = JSON.parse(output) as {
    readonly ok: boolean
    readonly bytes: { readonly source: number; readonly destination: number }
  }
  if (!ok) throw new Error(output)
  return [
    {
      case: `peak memory of llama-3.2-1b TP2 -> TP4, five processes, ${((bytes.source + bytes.destination) / 1e9).toFixed(3)} GB of source and destination`,
      unit: "GB",
      ours: peak / 1e9,
      target: (1.15 * (bytes.source + bytes.destination) + 256 * 2 ** 20) / 1e9,
      lowerIsBetter: true
    }
  ]
}
