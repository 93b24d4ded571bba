// SPDX-License-Identifier: Apache-2.0
/** Program, processors and memory nodes. */
import { formatBytes } from "../text/Table.ts"
import { type Fact, fact } from "./Fact.ts"
import { countList, parseFields, type SystemFiles } from "./SystemFiles.ts"

export interface NumaNode {
  readonly node: number
  readonly processors: string
  readonly memory: number | undefined
}

export const numaNodes = (files: SystemFiles): ReadonlyArray<NumaNode> =>
  files.list("/sys/devices/system/node").flatMap((name) => {
    const number = /^node(\d+)$/.exec(name)?.[1]
    if (number === undefined) return []
    const folder = `/sys/devices/system/node/${name}`
    const memory = /MemTotal:\s+(\d+) kB/.exec(files.read(`${folder}/meminfo`) ?? "")?.[1]
    return [
      {
        node: Number(number),
        processors: files.read(`${folder}/cpulist`) ?? "",
        memory: memory === undefined ? undefined : Number(memory) * 1024
      }
    ]
  })

/** Program and kernel, as the running process knows them. */
export interface ProgramFacts {
  readonly version: string
  readonly file: string
  readonly platform: string
  readonly architecture: string
  readonly kernel: string
}

export const topologyFacts = (files: SystemFiles, program: ProgramFacts): ReadonlyArray<Fact> => {
  const status = parseFields(files.read("/proc/self/status") ?? "")
  const information = parseFields(files.read("/proc/cpuinfo") ?? "")
  const model = information.get("model name") ?? "model unknown"
  const allowed = status.get("Cpus_allowed_list") ?? ""
  const present = files.read("/sys/devices/system/cpu/online") ?? allowed
  const nodes = numaNodes(files)
  const memoryNodes = status.get("Mems_allowed_list") ?? ""
  const few = nodes.length > 0 && countList(memoryNodes) < nodes.length ? `, memory only from node ${memoryNodes}` : ""
  return [
    fact("node", `${program.version} (${program.file})`, { ...program }),
    fact("platform", `${program.platform} ${program.architecture}, kernel ${program.kernel}`, {
      platform: program.platform,
      architecture: program.architecture,
      kernel: program.kernel
    }),
    fact("processors", `${countList(allowed)} of ${countList(present)}, ${model}`, { allowed, present, model }),
    fact(
      "memory nodes",
      nodes.length === 0
        ? "unknown: the system does not say"
        : `${nodes
            .map(({ node, processors, memory }) => {
              const size = memory === undefined ? "" : `, ${formatBytes(memory)}`
              return `${node} (processors ${processors || "none"}${size})`
            })
            .join(", ")}${few}`,
      { nodes, allowed: memoryNodes }
    )
  ]
}
