// SPDX-License-Identifier: Apache-2.0
/**
 * Reads the recorded sets that lie beside this package, one folder per set.
 */
import { readFileSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { gunzipSync } from "node:zlib"

/** The path of a recorded file: `mxfp8/mxfp8.json.gz`. */
export const goldenPath = (file: string): string => fileURLToPath(new URL(`../${file}`, import.meta.url))

/** The content of `SET/SET.json.gz`. */
export const readGolden = (set: string): unknown =>
  JSON.parse(gunzipSync(readFileSync(goldenPath(`${set}/${set}.json.gz`))).toString("utf8"))
