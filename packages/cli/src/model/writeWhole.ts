// SPDX-License-Identifier: Apache-2.0
/**
 * Writes the files that commands leave behind besides models: traces, records, pages, plans, reports.
 *
 * Invariant: a file of that name holds all of it, or what it held before. What was begun on a full disk is taken away again.
 */
import { randomBytes } from "node:crypto"
import { realpath, rename, rm, stat, writeFile } from "node:fs/promises"
import type { CheckpointError } from "@tensorferry/model/checkpoint/CheckpointError"
import { systemCall } from "@tensorferry/model/checkpoint/FileAccess"
import type * as Effect from "effect/Effect"

const writeBeside = async (file: string, text: string | ReadonlyArray<string>): Promise<void> => {
  const target = await realpath(file).catch(() => file)
  const isOrdinary = await stat(target).then(
    (found) => found.isFile(),
    () => true
  )
  // A pipe or a device has no place beside it.
  if (!isOrdinary) return writeFile(target, text)
  const temporary = `${target}.tmp-${randomBytes(8).toString("hex")}`
  await writeFile(temporary, text, { flag: "wx" })
    .then(() => rename(temporary, target))
    .catch((cause) => rm(temporary, { force: true }).then(() => Promise.reject(cause)))
}

/** Fails with DiskFull, or with WriteFailed and what the system said; `what` names the file's kind, as "the trace". */
export const writeWhole = (
  file: string,
  what: string,
  text: string | ReadonlyArray<string>
): Effect.Effect<void, CheckpointError> =>
  systemCall("WriteFailed", file, `write ${what}`, () => writeBeside(file, text))
