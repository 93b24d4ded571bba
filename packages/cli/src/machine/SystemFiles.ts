// SPDX-License-Identifier: Apache-2.0
/**
 * The system's files below a root folder: /proc, /sys and /dev of this machine, or a copy of another's.
 *
 * Invariant: what is absent or may not be read is `undefined` or empty, never a failure; nothing is written.
 */
import { accessSync, constants, readdirSync, readFileSync, realpathSync, statfsSync, statSync } from "node:fs"
import * as path from "node:path"
import * as Result from "effect/Result"

/** What this process may do with a file. */
export type Access = "read-write" | "denied" | "absent"

export interface SystemFiles {
  /** The text without the white space around it. */
  readonly read: (file: string) => string | undefined
  /** Sorted names; numbers in them count as numbers. */
  readonly list: (folder: string) => ReadonlyArray<string>
  readonly access: (file: string) => Access
  /** Where a file really is, through all links. */
  readonly realPath: (file: string) => string | undefined
  /** Bytes of the file system that a folder is on. */
  readonly space: (folder: string) => { readonly total: number; readonly available: number } | undefined
}

const attempt = <A>(call: () => A): A | undefined => Result.getOrUndefined(Result.try(call))

export const systemFiles = (root = "/"): SystemFiles => {
  const at = (file: string): string => path.join(root, file)
  return {
    read: (file) => attempt(() => readFileSync(at(file), "utf8").trim()),
    list: (folder) =>
      [...(attempt(() => readdirSync(at(folder))) ?? [])].sort((a, b) => a.localeCompare(b, "en", { numeric: true })),
    access: (file) => {
      if (attempt(() => statSync(at(file))) === undefined) return "absent"
      const allowed = Result.try(() => accessSync(at(file), constants.R_OK | constants.W_OK))
      return Result.isSuccess(allowed) ? "read-write" : "denied"
    },
    realPath: (file) => attempt(() => realpathSync(at(file))),
    space: (folder) => {
      const found = attempt(() => statfsSync(at(folder)))
      return found === undefined
        ? undefined
        : { total: found.blocks * found.bsize, available: found.bavail * found.bsize }
    }
  }
}

/** `key: value` lines as /proc writes them, keys trimmed. */
export const parseFields = (text: string): ReadonlyMap<string, string> =>
  new Map(
    text.split("\n").flatMap((line) => {
      const at = line.indexOf(":")
      return at < 0 ? [] : [[line.slice(0, at).trim(), line.slice(at + 1).trim()] as const]
    })
  )

/** How many numbers a list like `0-3,8` names. */
export const countList = (list: string): number =>
  list
    .split(",")
    .filter((part) => part.trim() !== "")
    .reduce((count, part) => {
      const [first, last = first] = part.split("-").map(Number)
      return count + (last! - first! + 1)
    }, 0)
