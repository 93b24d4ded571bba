// SPDX-License-Identifier: Apache-2.0
/**
 * A trainer and an engine as processes of their own, each with its agent, whose tensors have the names that recordings of
 * Megatron-Core and vLLM give them: in TypeScript, and with PyTorch on either side.
 */
import { spawn } from "node:child_process"
import { readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { elementCount } from "@tensorferry/core/base/Region"
import { type RecordedSide, type RecordedTensor, recordedSide, writeModel } from "@tensorferry/golden/recordedSides"
import * as Effect from "effect/Effect"
import { placeOf } from "../src/bootstrap.ts"
import type { ModelClientSpec } from "./fixtures/model-client.ts"
import { all, firstRank, inScope, script, startAgents } from "./processes.ts"
import { hasLmdb, lmdbMissing, plain, pythonWith } from "./support.ts"

const poison = -7

const torchPython = hasLmdb ? pythonWith("torch") : undefined

const ended = (program: string, args: ReadonlyArray<string>) =>
  Effect.callback<{ readonly code: number | null; readonly output: string }>((resume) => {
    const child = spawn(program, args, { env: plain })
    let output = ""
    for (const stream of [child.stdout, child.stderr]) stream.on("data", (chunk) => (output += String(chunk)))
    child.once("close", (code) => resume(Effect.succeed({ code, output })))
    return Effect.sync(() => child.kill("SIGKILL"))
  })

const numbersOf = (tensors: ReadonlyArray<RecordedTensor>): Float32Array =>
  Float32Array.from(tensors.flatMap(({ numbers }) => [...numbers]))

type Runner = "TypeScript" | "PyTorch"

const move = (runners: readonly [Runner, Runner], from: RecordedSide, to: RecordedSide) =>
  inScope((folder) =>
    Effect.gen(function* () {
      yield* startAgents(from.ranks.length + to.ranks.length, folder, 60_000)
      const model = writeModel(folder, from.sources, from.config)
      const ranks = [from, to].flatMap((side, which) => side.ranks.map((tensors) => ({ side, which, tensors })))
      const outcomes = yield* all(
        ranks.map(({ side, which, tensors }, rank) => {
          const [values, out] = [join(folder, `${rank}.in`), join(folder, `${rank}.out`)]
          const count = tensors.reduce((sum, { shape }) => sum + elementCount(shape), 0)
          writeFileSync(values, which === 0 ? numbersOf(tensors) : new Float32Array(count).fill(poison))
          const { commandPath, statePath } = placeOf(firstRank + rank, folder)
          const spec: ModelClientSpec = {
            ...{ commandPath, statePath, model, values, out },
            ...(which === 0
              ? { local: "train", remote: "infer", type: "send" }
              : { local: "infer", remote: "train", type: "recv" }),
            size: side.ranks.length,
            names: side.names,
            placement: side.placement,
            tensors: tensors.map(({ name, shape }) => [name, shape] as const)
          }
          const file = join(folder, `${rank}.json`)
          writeFileSync(file, JSON.stringify(spec))
          return runners[which] === "PyTorch"
            ? ended(torchPython!, [script("model_client.py"), file])
            : ended(process.execPath, [script("model-client.ts"), file])
        })
      )
      for (const [rank, { code, output }] of outcomes.entries()) {
        assert.strictEqual(code, 0, output)
        const { which, tensors } = ranks[rank]!
        if (which === 0) continue
        const bytes = readFileSync(join(folder, `${rank}.out`))
        const held = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4)
        const wanted = numbersOf(tensors).map((number) => (number > 0 ? number : poison))
        assert.strictEqual(held.length, wanted.length)
        const wrong = wanted.findIndex((number, at) => held[at] !== number)
        assert.strictEqual(wrong, -1, `rank ${rank}: ${held[wrong]} is not ${wanted[wrong]}`)
      }
    })
  )

describe.skipIf(!hasLmdb)(`a model between processes${hasLmdb ? "" : ` (skipped: ${lmdbMissing})`}`, () => {
  it.live("llama, Megatron tp=2 to vLLM tp=4", () =>
    move(["TypeScript", "TypeScript"], recordedSide("megatron", "llama", "tp2"), recordedSide("vllm", "llama", "tp4"))
  )
  const noTorch = torchPython === undefined ? " (skipped: no Python with torch; TENSORFERRY_PYTHON names one)" : ""
  it.live.skipIf(torchPython === undefined)(
    `qwen3_moe, a trainer in TypeScript and an engine in PyTorch${noTorch}`,
    () =>
      move(
        ["TypeScript", "PyTorch"],
        recordedSide("megatron", "qwen3_moe", "tp1ep2etp1"),
        recordedSide("vllm", "qwen3_moe", "tp2-ep")
      )
  )
  it.live.skipIf(torchPython === undefined)(`deepseek_v3, PyTorch on both sides, and back again${noTorch}`, () =>
    Effect.gen(function* () {
      const sides = [recordedSide("megatron", "deepseek_v3", "tp1ep1etp1"), recordedSide("vllm", "deepseek_v3", "tp1")]
      yield* move(["PyTorch", "PyTorch"], sides[0]!, sides[1]!)
      yield* move(["PyTorch", "PyTorch"], sides[1]!, sides[0]!)
    })
  )
})
