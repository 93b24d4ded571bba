// SPDX-License-Identifier: Apache-2.0
/**
 * What the tests of checkpoints share: scratch folders, file images built by hand, and recognisable bytes.
 */
import { mkdtemp, readdir, rm, writeFile } from "node:fs/promises"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type { CheckpointError } from "../../src/checkpoint/CheckpointError.ts"

/** A folder that the test's scope removes. */
export const scratchFolder = Effect.acquireRelease(
  Effect.promise(() => mkdtemp(join(tmpdir(), "checkpoint-"))),
  (folder) => Effect.promise(() => rm(folder, { recursive: true, force: true }))
)

export const list = (folder: string) => Effect.promise(async () => (await readdir(folder)).sort())

export const put = (path: string, bytes: Uint8Array | string) => Effect.promise(() => writeFile(path, bytes))

/** The bytes of a file: length field, header as given, data. */
export const image = (header: string | Uint8Array, data: Uint8Array | number = 0, length?: bigint): Uint8Array => {
  const text = typeof header === "string" ? new TextEncoder().encode(header) : header
  const tail = typeof data === "number" ? new Uint8Array(data) : data
  const bytes = new Uint8Array(8 + text.length + tail.length)
  new DataView(bytes.buffer).setBigUint64(0, length ?? BigInt(text.length), true)
  bytes.set(text, 8)
  bytes.set(tail, 8 + text.length)
  return bytes
}

export const expectReason = (
  error: CheckpointError,
  tag: CheckpointError["reason"]["_tag"],
  parameter?: string
): void => {
  assert.strictEqual(error.reason._tag, tag, error.message)
  assert.strictEqual(error.reason.paramName, parameter, error.message)
  assert.isNotEmpty(error.reason.remedy)
}
