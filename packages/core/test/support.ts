/** Shared by tests of this package: reads compressed reference data. */
import { readFileSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { gunzipSync } from "node:zlib"

export const dataPath = (name: string): string => fileURLToPath(new URL(`./data/${name}`, import.meta.url))

export const readGzipJson = (path: string): unknown => JSON.parse(gunzipSync(readFileSync(path)).toString("utf8"))
