// SPDX-License-Identifier: Apache-2.0
/** What the tests of this package share: scratch folders, the Python client, and why a test is skipped. */
import { spawnSync } from "node:child_process"
import { existsSync, mkdtempSync, readdirSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { basename, join } from "node:path"
import { fileURLToPath } from "node:url"
import * as Effect from "effect/Effect"

export { isSoak } from "@tensorferry/testing/testLevel"

const client = fileURLToPath(new URL("./fixtures/bus_client.py", import.meta.url))

/** For programs that are none of ours: what a sanitizer wants of this one is not their business. */
export const plain = { ...process.env, LD_PRELOAD: undefined }

const chosenPython = process.env.TENSORFERRY_PYTHON

/** A Python that has these modules, or undefined. One that is chosen by TENSORFERRY_PYTHON comes first. */
export const pythonWith = (...modules: ReadonlyArray<string>): string | undefined =>
  [...(chosenPython === undefined ? [] : [chosenPython]), "python3", "/usr/bin/python3"].find(
    (python) => spawnSync(python, ["-c", `import ${modules.join(", ")}`], { env: plain }).status === 0
  )

export const hasLmdb = ["/usr/lib", "/usr/lib64", "/lib"].some(
  (folder) =>
    existsSync(join(folder, "liblmdb.so.0")) ||
    (existsSync(folder) && readdirSync(folder).some((name) => existsSync(join(folder, name, "liblmdb.so.0"))))
)

export const lmdbMissing = "liblmdb.so.0 is not installed (apt-get install liblmdb0)"
export const pythonLmdb = hasLmdb ? pythonWith("lmdb") : undefined
export const pythonLmdbMissing = "no Python with lmdb (apt-get install python3-lmdb)"

export const runPython = (python: string, ...args: ReadonlyArray<string>): string => {
  const ended = spawnSync(python, [client, ...args], { encoding: "utf8", timeout: 60_000, env: plain })
  return ended.status === 0 ? ended.stdout : `exit ${ended.status}: ${ended.stderr}`
}

/** A folder that is gone with the scope, with a name that no other test's semaphores have. */
export const scratch = Effect.acquireRelease(
  Effect.sync(() => mkdtempSync(join(tmpdir(), "bus-"))),
  (folder) => Effect.sync(() => rmSync(folder, { recursive: true, force: true }))
)

/** A file in the folder whose stem is unique on the machine, as the names of semaphores come from it. */
export const uniqueFile = (folder: string, name: string): string => join(folder, `${basename(folder)}_${name}.lmdb`)

/** Semaphores of the machine whose names contain the text. */
export const semaphoresOf = (text: string): ReadonlyArray<string> =>
  readdirSync("/dev/shm").filter((name) => name.startsWith("sem.") && name.includes(text))
