// SPDX-License-Identifier: Apache-2.0
/** Interfaces by which this machine reaches others: state, speed and longest packet, as the kernel states them. */
import { type Fact, fact } from "./Fact.ts"
import type { SystemFiles } from "./SystemFiles.ts"

const folder = "/sys/class/net"

/** Of loopback and of what has no hardware the kernel states no speed, or a negative one. */
const numberIn = (text: string | undefined): number | undefined => {
  const value = text === undefined || text === "" ? Number.NaN : Number(text)
  return Number.isFinite(value) && value > 0 ? value : undefined
}

const speedText = (megabits: number): string => (megabits >= 1000 ? `${megabits / 1000} Gbit/s` : `${megabits} Mbit/s`)

const isUp = (files: SystemFiles, name: string): boolean =>
  ["up", "unknown"].includes(files.read(`${folder}/${name}/operstate`) ?? "")

const interfaceFact = (files: SystemFiles, name: string, isAlone: boolean): Fact => {
  const at = `${folder}/${name}`
  const state = files.read(`${at}/operstate`) ?? "unknown"
  const mtu = numberIn(files.read(`${at}/mtu`))
  const megabits = numberIn(files.read(`${at}/speed`))
  const isLoopback = name === "lo"
  const parts = [
    isLoopback ? "this machine alone" : state,
    ...(megabits === undefined ? (isLoopback ? [] : ["speed not stated"]) : [speedText(megabits)]),
    ...(mtu === undefined ? [] : [`packets of ${mtu} bytes`])
  ]
  return fact(
    name,
    parts.join(", "),
    { state, mtu: mtu ?? null, bitsPerSecond: megabits === undefined ? null : megabits * 1e6 },
    isAlone && !isLoopback ? `ip link set ${name} up, if ranks of other machines are to be reached by it.` : undefined
  )
}

/** One fact for each interface, loopback last; remedies where none leads out of this machine. */
export const networkFacts = (files: SystemFiles): ReadonlyArray<Fact> => {
  const names = files.list(folder).filter((name) => files.read(`${folder}/${name}/operstate`) !== undefined)
  const others = names.filter((name) => name !== "lo")
  const isAlone = !others.some((name) => isUp(files, name))
  return [...others, ...names.filter((name) => name === "lo")].map((name) => interfaceFact(files, name, isAlone))
}
