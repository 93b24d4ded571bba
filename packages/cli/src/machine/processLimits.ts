// SPDX-License-Identifier: Apache-2.0
/**
 * Limits that the system puts on this process, and which of them stand in the way of moving tensors.
 */
import { formatBytes } from "../text/Table.ts"
import { type Fact, fact } from "./Fact.ts"
import type { SystemFiles } from "./SystemFiles.ts"

/** A soft and a hard limit; infinity where there is none. */
export interface Limit {
  readonly soft: number
  readonly hard: number
}

/** /proc/self/limits by the names used there. */
export const parseLimits = (text: string): ReadonlyMap<string, Limit> => {
  const value = (word: string): number => (word === "unlimited" ? Number.POSITIVE_INFINITY : Number(word))
  return new Map(
    text.split("\n").flatMap((line) => {
      const match = /^(Max .+?)\s{2,}(\d+|unlimited)\s+(\d+|unlimited)/.exec(line)
      return match === null ? [] : [[match[1]!, { soft: value(match[2]!), hard: value(match[3]!) }] as const]
    })
  )
}

/** A process opens one file per large tensor and per mapped tensor of a peer. */
const fewFiles = 4096
/** Below this, memory cannot be registered with a device in useful amounts. */
const littleLocked = 2 ** 30

const unlimited = "unlimited"
const bytes = (value: number): string => (Number.isFinite(value) ? formatBytes(value) : unlimited)
const asData = ({ soft, hard }: Limit) => ({
  soft: Number.isFinite(soft) ? soft : null,
  hard: Number.isFinite(hard) ? hard : null
})

/** `hasDevices`: memory is registered with devices only where there are some. */
export const limitFacts = (files: SystemFiles, hasDevices: boolean): ReadonlyArray<Fact> => {
  const limits = parseLimits(files.read("/proc/self/limits") ?? "")
  const of = (
    name: string,
    label: string,
    judge: (limit: Limit) => readonly [summary: string, remedy: string | undefined]
  ) => {
    const limit = limits.get(name)
    if (limit === undefined) return [fact(label, "unknown: /proc/self/limits does not say", {})]
    const [summary, remedy] = judge(limit)
    return [fact(label, summary, asData(limit), remedy)]
  }
  return [
    ...of("Max open files", "open files", ({ soft, hard }) => [
      Number.isFinite(soft) ? String(soft) : unlimited,
      soft >= fewFiles
        ? undefined
        : `Raise the limit of open files: ulimit -n ${hard > fewFiles && Number.isFinite(hard) ? hard : 65_536}.`
    ]),
    ...of("Max address space", "address space", ({ soft }) => [
      bytes(soft),
      soft === Number.POSITIVE_INFINITY
        ? undefined
        : "Every rank maps its own tensors and those of its peers: ulimit -v unlimited."
    ]),
    ...of("Max locked memory", "locked memory", ({ soft }) => [
      hasDevices ? bytes(soft) : `${bytes(soft)} (only backends for devices lock memory)`,
      hasDevices && soft < littleLocked
        ? "Registering host memory with a device needs more: ulimit -l unlimited, or --ulimit memlock=-1 for a container."
        : undefined
    ])
  ]
}
