// SPDX-License-Identifier: Apache-2.0
/**
 * Makes the reports in docs/backends: runs `tensorferry backends conformance` on each backend, those of GPUs over the
 * drivers of packages/simulators. Arguments name backends; all by default. Run scripts/backends-doc.ts afterwards.
 */
import { spawnSync } from "node:child_process"
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { gpuSimulator, nvshmemSimulator } from "@tensorferry/simulators/libraries"

const root = path.resolve(import.meta.dirname, "..")
const folder = path.join(root, "docs/backends")
const scratch = mkdtempSync(path.join(tmpdir(), "tensorferry-reports-"))

interface Subject {
  readonly note: string
  readonly environment?: NodeJS.ProcessEnv
  readonly options?: object
  /** Where the simulated driver has means of its own to hold copies back. */
  readonly hooks?: string
}

/** Every library of the vendor's is the simulator. */
const simulated = (library: string): NodeJS.ProcessEnv => ({
  TENSORFERRY_CUDA_RUNTIME: library,
  TENSORFERRY_CUDA_DRIVER: library,
  TENSORFERRY_CUDA_NVRTC: library,
  TENSORFERRY_NCCL: library,
  TENSORFERRY_NVSHMEM: library,
  TENSORFERRY_GPU_SIMULATOR: "devices=4 pace=1 seed=1 name=Simulated-GPU",
  XDG_CACHE_HOME: scratch
})
const gpu = simulated(gpuSimulator)
const shmem = simulated(nvshmemSimulator)
/** So that little data passes through every way. */
const small = { arenaBytes: 2 ** 20, copyEngineBytes: 2 ** 15 }
const cuda: Subject = {
  note: "Simulated: over the simulated driver of packages/simulators, not on a GPU.",
  environment: gpu,
  options: { ...small, stagingBytes: 2 ** 18, directBytes: 2 ** 14 }
}

const subjects: { readonly [backend: string]: Subject } = {
  "torch-copy": { note: "Real: processes of one host." },
  cuda: { ...cuda, hooks: "packages/backend-cuda/test/replayHooks.ts" },
  "cuda-ipc": cuda,
  nccl: cuda,
  nvshmem: { ...cuda, environment: shmem, options: { ...small, slotBytes: 2 ** 14, slots: 2 } },
  tcp: { note: "Real: processes of one host, by loopback." },
  ucx: { note: "Real: processes of one host, by TCP over loopback." },
  xpu: { note: "On a processor: OpenCL by PoCL, not on an Intel GPU.", options: { driver: "opencl" } }
}

const named = process.argv.slice(2)
const unknown = named.filter((name) => !(name in subjects))
if (unknown.length > 0) {
  console.error(
    `No subject of this script: ${unknown.join(", ")}. Add an entry to subjects, or name ${Object.keys(subjects).join(", ")}.`
  )
  process.exit(2)
}
for (const [name, { note, environment = {}, options = {}, hooks }] of Object.entries(subjects)) {
  if (named.length > 0 && !named.includes(name)) continue
  const file = path.join(folder, `${name}.json`)
  const args = ["--options", JSON.stringify(options), "--note", note, "--report", file]
  if (hooks !== undefined) args.push("--hooks", path.join(root, hooks))
  const { status, stdout } = spawnSync(
    process.execPath,
    [path.join(root, "packages/cli/src/main.ts"), "backends", "conformance", name, ...args],
    { encoding: "utf8", env: { ...process.env, ...environment }, stdio: ["ignore", "pipe", "inherit"] }
  )
  const lines = stdout.trim().split("\n")
  for (const line of lines) if (/ failed /.test(line)) console.log(line)
  console.log(lines.at(-1))
  if (status !== 0) process.exitCode = 1
  // Reports hold paths relative to the checkout.
  writeFileSync(file, readFileSync(file, "utf8").replaceAll(`${root}/`, ""))
  spawnSync(path.join(root, "node_modules/.bin/biome"), ["format", "--write", file], { cwd: root, stdio: "ignore" })
}
rmSync(scratch, { recursive: true, force: true })
