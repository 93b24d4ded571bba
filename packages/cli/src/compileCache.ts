// SPDX-License-Identifier: Apache-2.0
/**
 * Where Node keeps compiled code between starts of the command and of the processes it starts: a folder of the user's
 * own. A folder that others can write to would let them run code here, so without one of our own nothing is kept.
 */
import { mkdir, stat } from "node:fs/promises"
import { enableCompileCache } from "node:module"
import * as path from "node:path"

/** `XDG_CACHE_HOME` where it is set, else `.cache` in the user's home. */
const cacheHome = (): string | undefined => {
  const { HOME: home, XDG_CACHE_HOME: stated } = process.env
  if (stated !== undefined && path.isAbsolute(stated)) return stated
  return home !== undefined && path.isAbsolute(home) ? path.join(home, ".cache") : undefined
}

/** Whether the folder belongs to this user and nobody else may write to it. */
const isOwn = (folder: string): Promise<boolean> =>
  stat(folder).then(
    (found) => found.isDirectory() && found.uid === process.getuid?.() && (found.mode & 0o022) === 0,
    () => false
  )

/**
 * Keeps what is imported from now on. Nothing happens where `NODE_COMPILE_CACHE` already says where to keep it, or where
 * the folder cannot be made: the command only starts slower then.
 */
export const keepCompiled = async (): Promise<void> => {
  const home = cacheHome()
  if (home === undefined || process.env.NODE_COMPILE_CACHE !== undefined) return
  const own = path.join(home, "tensorferry")
  const folder = path.join(own, "compiled")
  const isMade = await mkdir(folder, { recursive: true, mode: 0o700 }).then(
    () => true,
    () => false
  )
  if (!isMade || !(await isOwn(own)) || !(await isOwn(folder))) return
  enableCompileCache(folder)
  // Rank processes and collectors inherit it.
  process.env.NODE_COMPILE_CACHE = folder
}
