// SPDX-License-Identifier: Apache-2.0
/**
 * Reads the recorded sets that lie beside this package, one folder per set.
 */
import { readFileSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { gunzipSync } from "node:zlib"

/** The path of a recorded file: `mxfp8/mxfp8.json.gz`. */
export const goldenPath = (file: string): string => fileURLToPath(new URL(`../${file}`, import.meta.url))

/** The content of `SET/FILE.json.gz`; the file is called as the set unless stated. */
export const readGolden = (set: string, file = set): unknown =>
  JSON.parse(gunzipSync(readFileSync(goldenPath(`${set}/${file}.json.gz`))).toString("utf8"))
