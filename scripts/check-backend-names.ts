// SPDX-License-Identifier: Apache-2.0
/** Core names no backend and no vendor: what it knows of them, descriptors tell it. */
import { readdirSync, readFileSync } from "node:fs"
import * as path from "node:path"

const root = path.resolve(import.meta.dirname, "../packages/core/src")
const forbidden = /\b(torch-copy|nccl|cuda|cuda-ipc|nvshmem|xpu|rocm|nvidia|amd|intel|hip|rccl|level.zero|opencl)\b/i
/** A new backend is a name too. */
const backends = readdirSync(path.resolve(import.meta.dirname, "../packages")).flatMap((folder) =>
  folder.startsWith("backend-") ? [folder.slice("backend-".length)] : []
)
const shipped = new RegExp(`\\b(${backends.join("|")})\\b`, "i")
/**
 * The contract's own vocabulary: examples of device texts, attribute values fixed by the replay contract. In capitals TCP is
 * the protocol by which ranks meet, and no backend.
 */
const allowed = [/`cuda:[01]`/, /`xpu:0`/, /"xpu_copy_stream"/, /\bTCP\b/]

const faults: Array<string> = []
for (const file of readdirSync(root, { recursive: true, encoding: "utf8" })) {
  if (!file.endsWith(".ts")) continue
  for (const [at, line] of readFileSync(path.join(root, file), "utf8").split("\n").entries()) {
    const text = allowed.reduce((rest, pattern) => rest.replaceAll(new RegExp(pattern, "g"), ""), line)
    const found = forbidden.exec(text) ?? shipped.exec(text)
    if (found !== null) faults.push(`${file}:${at + 1}: names ${found[0]}`)
  }
}
if (faults.length > 0) {
  console.error(faults.join("\n"))
  process.exitCode = 1
} else console.log("backend names: core names none")
