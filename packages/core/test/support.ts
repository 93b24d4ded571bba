/** Shared by tests of this package: reads compressed reference data. */
import { readFileSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { gunzipSync } from "node:zlib"

export const dataPath = (name: string): string => fileURLToPath(new URL(`./data/${name}`, import.meta.url))

/** A recorded set, from the folder that all packages share. */
export const readGolden = (set: string): unknown =>
  readGzipJson(fileURLToPath(new URL(`../../../golden/${set}/${set}.json.gz`, import.meta.url)))

export const readGzipJson = (path: string): unknown => JSON.parse(gunzipSync(readFileSync(path)).toString("utf8"))
