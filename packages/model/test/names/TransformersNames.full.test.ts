// SPDX-License-Identifier: Apache-2.0
/**
 * Small random models that transformers itself saves and loads again: what our mapping makes of the files is what its own
 * loader has in memory, bit by bit, and the way back gives the files. The same on ranks of FSDP2.
 */
import { spawnSync } from "node:child_process"
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import type { DType } from "@tensorferry/core/base/DType"
import { pythonWith, withPython } from "@tensorferry/testing/machine/python"
import * as Result from "effect/Result"
import { afterAll, beforeAll } from "vitest"
import type { ModelTensor } from "../../src/layout/ModelLayout.ts"
import { type ParallelConfig, placeOf } from "../../src/layout/ParallelConfig.ts"
import type { Convention } from "../../src/names/conventions/Convention.ts"
import { findConvention } from "../../src/names/conventions/conventions.ts"
import { shardsOf, wayBack, wayBackOf } from "../../src/names/inverse.ts"
import { type MappedModel, mapModel } from "../../src/names/mapModel.ts"
import { materialize } from "../../src/names/materialize.ts"
import { structureOf } from "../../src/placement/cutModel.ts"
import { parseModelConfig } from "../../src/structure/ModelConfig.ts"

const python = pythonWith("torch", "transformers", "safetensors")
const script = fileURLToPath(new URL("../fixtures/transformers_names.py", import.meta.url))
const types = ["mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3"]
const ranks = 3

type Held = ReadonlyMap<string, ModelTensor & { readonly bytes: Uint8Array }>

const dtypes: { readonly [name: string]: DType } = { BF16: "bfloat16", F32: "float32", I64: "int64" }

interface Entry {
  readonly dtype: string
  readonly shape: ReadonlyArray<number>
  readonly data_offsets: readonly [from: number, to: number]
}

const readFile = (file: string): Held => {
  const bytes = readFileSync(file)
  const start = 8 + Number(bytes.readBigUInt64LE(0))
  const header: { readonly [name: string]: Entry } = JSON.parse(bytes.subarray(8, start).toString("utf8"))
  const entries = Object.entries(header).filter(([name]) => name !== "__metadata__")
  return new Map(
    entries.map(
      ([
        name,
        {
          dtype,
          shape,
          data_offsets: [from, to]
        }
      ]) => [name, { name, dtype: dtypes[dtype]!, shape, bytes: bytes.subarray(start + from, start + to) }]
    )
  )
}

const filesIn = (folder: string): Held =>
  new Map(
    readdirSync(folder)
      .filter((file) => /^model.*\.safetensors$/.test(file))
      .flatMap((file) => [...readFile(join(folder, file))])
  )

const convention = (name: string): Convention => findConvention(name)!

const mapped = (
  folder: string,
  tensors: ReadonlyArray<ModelTensor>,
  name: string,
  config: ParallelConfig
): MappedModel => {
  const stated = Result.getOrThrow(parseModelConfig(readFileSync(join(folder, "config.json"), "utf8")))
  const choice = { preset: stated.model_type as string, config: stated, placement: {} }
  const structure = Result.getOrThrow(structureOf(tensors, choice))
  const mapping = convention(name).mapping(structure, { stages: 1, tp: config.tp })
  return Result.getOrThrow(mapModel({ structure, tensors, mapping, config, placement: {} }))
}

const assertSame = (made: ReadonlyMap<string, Uint8Array>, wanted: Held, what: string): void => {
  assert.deepStrictEqual([...made.keys()].sort(), [...wanted.keys()].sort(), what)
  for (const [name, { bytes }] of wanted)
    assert.isTrue(Buffer.compare(made.get(name)!, bytes) === 0, `${what}: ${name} has other bytes`)
}

describe.skipIf(python === undefined)(withPython(python, "names of transformers", "transformers"), () => {
  const folder = mkdtempSync(join(tmpdir(), "transformers-names-"))
  beforeAll(() => {
    const ended = spawnSync(python!, [script, folder, String(ranks), ...types], {
      encoding: "utf8",
      timeout: 280_000,
      env: { ...process.env, HF_HUB_OFFLINE: "1", OMP_NUM_THREADS: "1" }
    })
    assert.strictEqual(ended.stdout.trim(), types.join("\n"), ended.stderr)
  }, 300_000)
  afterAll(() => rmSync(folder, { recursive: true }))

  for (const type of types) {
    const own = join(folder, type)
    const one: ParallelConfig = { tp: 1, pp: 1, dp: 1 }

    it(`${type}: every parameter that its loader makes is ours, bit by bit`, () => {
      const files = filesIn(own)
      const memory = readFile(join(own, "memory.safetensors"))
      const rank = Result.getOrThrow(mapped(own, [...files.values()], "transformers", one).rankAt(placeOf(one, 0, 0)))
      const made = new Map<string, Uint8Array>()
      for (const tensor of rank.tensors) {
        assert.deepStrictEqual(tensor.shape, memory.get(tensor.name)?.shape, tensor.name)
        assert.strictEqual(tensor.dtype, memory.get(tensor.name)!.dtype, tensor.name)
        made.set(tensor.name, Result.getOrThrow(materialize(tensor, (source) => files.get(source)!.bytes)))
      }
      assertSame(made, memory, type)
    })

    it(`${type}: its parameters give the files that it saved`, () => {
      const files = filesIn(own)
      const memory = readFile(join(own, "memory.safetensors"))
      const model = mapped(own, [...files.values()], "transformers", one)
      const { tensors } = Result.getOrThrow(model.rankAt(placeOf(one, 0, 0)))
      const back = Result.getOrThrow(wayBackOf(model, tensors, [...files.values()]))
      const made = back.map(
        (tensor) =>
          [tensor.name, Result.getOrThrow(materialize(tensor, (source) => memory.get(source)!.bytes))] as const
      )
      assertSame(new Map(made), files, type)
    })

    it(`${type}: each rank has the rows that fully_shard leaves it, and all give the files`, () => {
      const files = filesIn(own)
      const model = mapped(own, [...files.values()], "fsdp2", { tp: ranks, pp: 1, dp: 1 })
      const shards = new Map<string, Uint8Array>()
      for (let rank = 0; rank < ranks; rank++) {
        const wanted = readFile(join(own, `rows-${rank}.safetensors`))
        const { tensors } = Result.getOrThrow(model.rankAt(placeOf(model.config, 0, rank)))
        const made = new Map<string, Uint8Array>()
        for (const tensor of tensors) {
          assert.deepStrictEqual(tensor.shape, wanted.get(tensor.name)?.shape, tensor.name)
          made.set(tensor.name, Result.getOrThrow(materialize(tensor, (source) => files.get(source)!.bytes)))
          shards.set(`${rank}:${tensor.name}`, made.get(tensor.name)!)
        }
        assertSame(made, wanted, `${type}, rank ${rank}`)
      }
      assert.strictEqual(Result.getOrThrow(shardsOf(model)).length, shards.size)
      const back = Result.getOrThrow(wayBack(model, [...files.values()])).map(
        (tensor) => [tensor.name, Result.getOrThrow(materialize(tensor, (source) => shards.get(source)!))] as const
      )
      assertSame(new Map(back), files, type)
    })
  }
})
