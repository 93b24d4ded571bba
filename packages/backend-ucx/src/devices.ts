// SPDX-License-Identifier: Apache-2.0
/**
 * Devices of UCX for network interfaces: the interface itself for TCP, and the adapter behind it, where it has one that writes
 * to memory by itself.
 */
import { readdirSync, readFileSync } from "node:fs"
import * as Result from "effect/Result"

const list = (folder: string): ReadonlyArray<string> =>
  Result.getOrElse(
    Result.try(() => readdirSync(folder)),
    () => []
  )

/** Adapters have ports from 1 on, the kernel counts them from 0; several interfaces may share a function of the bus. */
const portOf = (at: string): number => {
  const text = Result.getOrElse(
    Result.try(() => readFileSync(`${at}/dev_port`, "latin1")),
    () => "0"
  )
  return 1 + Number(text.trim() || 0)
}

/** The devices of these interfaces as UCX_NET_DEVICES takes them, or what is wrong with a name. */
export const devicesOf = (
  interfaces: ReadonlyArray<string>,
  root = "/sys/class/net"
): Result.Result<string, string> => {
  const known = list(root)
  const missing = interfaces.find((name) => !known.includes(name))
  if (missing !== undefined) {
    return Result.fail(`There is no interface ${missing}; this host has ${known.join(", ") || "none"}`)
  }
  const devices = interfaces.flatMap((name) => [
    name,
    ...list(`${root}/${name}/device/infiniband`).map((adapter) => `${adapter}:${portOf(`${root}/${name}`)}`)
  ])
  return Result.succeed([...new Set(devices)].join(","))
}
