// SPDX-License-Identifier: Apache-2.0
/**
 * How much memory this process may use: the machine's, and the tightest limit of the control groups above it, in both
 * versions of them.
 *
 * Invariant: the group asked is the process's own and its ancestors', as far as this mount shows them.
 */
import * as path from "node:path"
import { formatBytes } from "../text/Table.ts"
import { type Fact, fact } from "./Fact.ts"
import { parseFields, type SystemFiles } from "./SystemFiles.ts"

/** A folder of the group, and the mount above which nothing is visible. */
export interface GroupFolder {
  readonly version: 1 | 2
  readonly mount: string
  readonly folder: string
}

/** Mount points, and the part of the group tree that each shows. Lines of /proc/self/mountinfo. */
const parseMounts = (text: string) =>
  text.split("\n").flatMap((line) => {
    const [before = "", after = ""] = line.split(" - ")
    const [, , , root, mount] = before.split(" ")
    const [type, , options = ""] = after.split(" ")
    return root === undefined || mount === undefined ? [] : [{ root, mount, type, options: options.split(",") }]
  })

/** Where the process's group for memory is, from /proc/self/cgroup and /proc/self/mountinfo. */
export const memoryGroup = (groups: string, mountInfo: string): GroupFolder | undefined => {
  const entries = groups.split("\n").map((line) => {
    const [id = "", controllers = "", ...rest] = line.split(":")
    return { id, controllers: controllers.split(","), path: rest.join(":") }
  })
  const mounts = parseMounts(mountInfo)
  const place = (version: 1 | 2, own: string, seen: (typeof mounts)[number] | undefined): GroupFolder | undefined => {
    if (seen === undefined) return undefined
    // A mount shows one part of the tree; a path from outside of it, as /../x, leaves only the mount itself.
    const inside =
      seen.root === "/" ? own : own === seen.root || own.startsWith(`${seen.root}/`) ? own.slice(seen.root.length) : "/"
    return { version, mount: seen.mount, folder: inside.includes("..") ? seen.mount : path.join(seen.mount, inside) }
  }
  const first = entries.find(({ controllers }) => controllers.includes("memory"))
  const second = entries.find(({ id, controllers }) => id === "0" && controllers[0] === "")
  return first !== undefined
    ? place(
        1,
        first.path,
        mounts.find(({ type, options }) => type === "cgroup" && options.includes("memory"))
      )
    : second !== undefined
      ? place(
          2,
          second.path,
          mounts.find(({ type }) => type === "cgroup2")
        )
      : undefined
}

export interface GroupLimit {
  /** Bytes. */
  readonly limit: number
  readonly used: number | undefined
  /** The file that states the limit. */
  readonly file: string
}

/** Version 1 writes the largest number of pages where there is no limit. */
const noLimit = 2 ** 62

/** The tightest limit from the group's folder up to its mount. */
export const groupLimit = (files: SystemFiles, group: GroupFolder): GroupLimit | undefined => {
  const [limitName, usedName] =
    group.version === 1 ? ["memory.limit_in_bytes", "memory.usage_in_bytes"] : ["memory.max", "memory.current"]
  let tightest: GroupLimit | undefined
  for (let folder = group.folder; ; folder = path.dirname(folder)) {
    const file = path.join(folder, limitName!)
    const limit = Number(files.read(file) ?? "max")
    if (limit < noLimit && (tightest === undefined || limit < tightest.limit)) {
      const used = files.read(path.join(folder, usedName!))
      tightest = { limit, used: used === undefined ? undefined : Number(used), file }
    }
    if (folder === group.mount || folder === path.dirname(folder)) return tightest
  }
}

const kibibytes = (fields: ReadonlyMap<string, string>, name: string): number | undefined => {
  const text = /^(\d+) kB$/.exec(fields.get(name) ?? "")?.[1]
  return text === undefined ? undefined : Number(text) * 1024
}

export const memoryFacts = (files: SystemFiles): ReadonlyArray<Fact> => {
  const fields = parseFields(files.read("/proc/meminfo") ?? "")
  const [total, available] = [kibibytes(fields, "MemTotal"), kibibytes(fields, "MemAvailable")]
  const memory = fact(
    "memory",
    total === undefined || available === undefined
      ? "unknown: /proc/meminfo does not say"
      : `${formatBytes(available)} available of ${formatBytes(total)}`,
    { total, available }
  )
  const group = memoryGroup(files.read("/proc/self/cgroup") ?? "", files.read("/proc/self/mountinfo") ?? "")
  if (group === undefined) return [memory, fact("memory limit", "none: no control group for memory", { limit: null })]
  const found = groupLimit(files, group)
  if (found === undefined) {
    return [memory, fact("memory limit", `none (control group version ${group.version})`, { limit: null, ...group })]
  }
  const used = found.used === undefined ? "" : `, ${formatBytes(found.used)} used`
  return [memory, fact("memory limit", `${formatBytes(found.limit)}${used} (${found.file})`, { ...found, ...group })]
}
