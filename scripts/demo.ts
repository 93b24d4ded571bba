// SPDX-License-Identifier: Apache-2.0
/**
 * The demonstration of `make demo`: a real checkpoint and a llama in miniature go from two tensor-parallel ranks to a
 * 4 x 2 layout of tensor and pipeline parallelism and back to one, through separate processes, and come back bit by bit.
 */
import { spawnSync } from "node:child_process"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"

const root = path.resolve(import.meta.dirname, "..")
const command = path.join(root, "packages/cli/src/main.ts")
const work = mkdtempSync(path.join(tmpdir(), "tensorferry-demo-"))

const node = (args: ReadonlyArray<string>): void => {
  const { status } = spawnSync(process.execPath, args, { stdio: "inherit", cwd: root })
  if (status !== 0) {
    rmSync(work, { recursive: true, force: true })
    process.exit(status ?? 1)
  }
}

const tensorferry = (...args: ReadonlyArray<string>): void => {
  console.log(`\n$ tensorferry ${args.map((arg) => arg.replace(`${root}/`, "").replace(work, "$WORK")).join(" ")}`)
  node([command, ...args])
}

const thereAndBack = (title: string, checkpoint: string, rules: ReadonlyArray<string>): void => {
  console.log(`\n━━━ ${title} ━━━`)
  const name = path.basename(checkpoint, ".safetensors")
  const sharded = path.join(work, `${name}-tp4-pp2`)
  const whole = path.join(work, `${name}-tp1`)
  tensorferry("plan", checkpoint, "--from", "tp=2", "--to", "tp=4,pp=2", ...rules)
  tensorferry("reshard", checkpoint, "--from", "tp=2", "--to", "tp=4,pp=2", "--out", sharded, ...rules)
  tensorferry("reshard", sharded, "--to", "tp=1", "--out", whole)
  tensorferry("verify", checkpoint, whole)
}

const started = performance.now()
const llama = path.join(work, "llama-small")
node([path.join(root, "examples/llama-small/make.ts"), llama])
thereAndBack(
  "MNIST: a real checkpoint, shards of uneven length",
  path.join(root, "examples/mnist/mnist-tinygrad.safetensors"),
  ["--rules", path.join(root, "examples/mnist/rules.yaml")]
)
thereAndBack("llama in miniature: the family's names, rules from its config.json", llama, [])
rmSync(work, { recursive: true, force: true })
console.log(`\nBoth models came back bit-identical, in ${((performance.now() - started) / 1000).toFixed(1)} s.`)
