// SPDX-License-Identifier: Apache-2.0
/**
 * Makes one folder that runs on a machine with GPUs and nothing else: `node bench/gpu/bundle.ts [FOLDER]`, `gpu-bundle` by
 * default. It holds this version of Node (compressed), the programs of this folder in one file each, the addons, and data.
 *
 * There: `bash FOLDER/run.sh [--out FOLDER] ...` for the checks, `bash FOLDER/tensorferry ...` for the command. The simulated driver comes along, for a rehearsal without GPUs.
 */
import { execFileSync } from "node:child_process"
import {
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync
} from "node:fs"
import { createRequire } from "node:module"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { formSets } from "@tensorferry/golden/engineForms"
import { gpuSimulator, nvshmemSimulator } from "@tensorferry/simulators/libraries"
import { type Plugin, rolldown } from "rolldown"

const root = fileURLToPath(new URL("../..", import.meta.url))
const folder = path.resolve(process.argv[2] ?? path.join(root, "gpu-bundle"))
/** Of all packages alike. */
const { version } = JSON.parse(readFileSync(path.join(root, "packages/cli/package.json"), "utf8")) as {
  readonly version: string
}
const sizeLimit = 60 * 2 ** 20

rmSync(folder, { recursive: true, force: true })
mkdirSync(path.join(folder, "data"), { recursive: true })

/** A package finds its addon from where its module lies; bundled, all modules lie at one place, from which this is the way. */
const addonFolders = (packages: string): Plugin => ({
  name: "addon-folders",
  transform: (code, id) => {
    const [, name] = /packages\/([^/]+)\/src\/Addon\.ts$/.exec(id) ?? []
    if (name === undefined) return null
    return code.replaceAll("import.meta.url", `new URL("${packages}/${name}/src/Addon.js", import.meta.url).href`)
  }
})

const build = await rolldown({
  input: path.join(root, "bench/gpu/main.ts"),
  platform: "node",
  plugins: [addonFolders("./packages")]
})
await build.write({
  file: path.join(folder, "main.js"),
  format: "esm",
  codeSplitting: false,
  minify: { mangle: false }
})

// The command and the processes that it starts, which it finds beside itself.
const command = await rolldown({
  input: Object.fromEntries(
    [
      "command",
      "job/rankMain",
      "machine/processProbeMain",
      "replay/collectorMain",
      "backends/benchMain",
      "backends/conformanceMain"
    ].map((file) => [path.basename(file), path.join(root, "packages/cli/src", `${file}.ts`)])
  ),
  platform: "node",
  plugins: [addonFolders("../packages")]
})
await command.write({ dir: path.join(folder, "command"), format: "esm", minify: { mangle: false } })

const addon = (name: string): void => {
  const from = path.join(root, "packages", name, "build/Release")
  const to = path.join(folder, "packages", name, "build/Release")
  mkdirSync(to, { recursive: true })
  for (const file of readdirSync(from)) {
    if (!/\.(node|so)$/.test(file)) continue
    copyFileSync(path.join(from, file), path.join(to, file))
    execFileSync("strip", ["--strip-unneeded", path.join(to, file)])
  }
}
addon("backend-torch-copy")
addon("backend-tcp")
addon("gpu")
addon("backend-nvshmem")
addon("bus")
// The addon of measurements, which is in no package.
const measuring = path.join(root, "bench/gpu/native")
execFileSync("cmake", ["-S", measuring, "-B", path.join(measuring, "build"), "-DCMAKE_BUILD_TYPE=Release"])
execFileSync("cmake", ["--build", path.join(measuring, "build"), "-j2"])
const measuringTo = path.join(folder, "native/build/Release")
mkdirSync(measuringTo, { recursive: true })
copyFileSync(path.join(measuring, "build/Release/raw_copies.node"), path.join(measuringTo, "raw_copies.node"))
for (const library of [gpuSimulator, nvshmemSimulator]) {
  copyFileSync(library, path.join(folder, path.basename(library)))
}
for (const set of ["megatron_plans", "dtype_casts", "mxfp8", ...Object.keys(formSets)]) {
  copyFileSync(path.join(root, "golden", set, `${set}.json.gz`), path.join(folder, "data", `${set}.json.gz`))
}
// The Python side of the bus, and the library that its queues need, which machines with GPUs seldom have.
const busData = path.join(folder, "data/bus")
mkdirSync(busData)
for (const file of readdirSync(path.join(root, "bench/gpu")).filter((name) => name.endsWith(".py"))) {
  copyFileSync(path.join(root, "bench/gpu", file), path.join(busData, file))
}
for (const file of ["bus_client.py", "lmdb_fallback.py"]) {
  copyFileSync(path.join(root, "packages/bus/test/fixtures", file), path.join(busData, file))
}
cpSync(path.join(root, "python/src"), path.join(folder, "data/python"), {
  recursive: true,
  filter: (file) => !file.includes("__pycache__")
})
const lmdb = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"]
  .map((place) => path.join(place, "liblmdb.so.0"))
  .find(existsSync)
if (lmdb === undefined) console.warn("liblmdb.so.0 is not installed here, so the bundle has none for the bus.")
else copyFileSync(lmdb, path.join(busData, "liblmdb.so.0"))
// Addons are found by a package that looks for files, and so cannot become part of the program.
const required = createRequire(path.join(root, "packages/gpu/package.json"))
const finder = path.dirname(required.resolve("node-gyp-build/package.json"))
cpSync(finder, path.join(folder, "node_modules/node-gyp-build"), { recursive: true, dereference: true })
writeFileSync(path.join(folder, "package.json"), `${JSON.stringify({ type: "module", version })}\n`)
/** Compressing takes minutes, so it is done once per version. */
const compressedNode = (): string => {
  const kept = path.join(root, "node_modules/.cache", `node-${process.version}.xz`)
  if (!existsSync(kept)) {
    mkdirSync(path.dirname(kept), { recursive: true })
    writeFileSync(`${kept}.part`, execFileSync("xz", ["-6", "-T2", "-c", process.execPath], { maxBuffer: 2 ** 28 }))
    renameSync(`${kept}.part`, kept)
  }
  return kept
}
copyFileSync(compressedNode(), path.join(folder, "node.xz"))
writeFileSync(
  path.join(folder, "run.sh"),
  `#!/usr/bin/env bash
# Unpacks Node next to this script where that has not been done, and starts the checks.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
node=\${TENSORFERRY_NODE:-/tmp/tensorferry-node-${process.version}}
if [ ! -x "$node" ]; then
  xz -dc "$here/node.xz" > "$node.part"
  chmod 755 "$node.part"
  mv "$node.part" "$node"
fi
if [ "$(basename "$0")" = tensorferry ]; then exec "$node" "$here/command/command.js" "$@"; fi
exec "$node" --expose-gc "$here/main.js" "$@"
`,
  { mode: 0o755 }
)
// The same, for the command line: what is asked for is in the name.
copyFileSync(path.join(folder, "run.sh"), path.join(folder, "tensorferry"))

const sizeOf = (place: string): number =>
  readdirSync(place, { withFileTypes: true }).reduce((sum, entry) => {
    const inner = path.join(place, entry.name)
    return sum + (entry.isDirectory() ? sizeOf(inner) : statSync(inner).size)
  }, 0)
const size = sizeOf(folder)
console.log(`${folder}: ${(size / 2 ** 20).toFixed(1)} MiB`)
if (size > sizeLimit) {
  console.error(`The bundle exceeds ${sizeLimit / 2 ** 20} MiB.`)
  process.exitCode = 1
}
