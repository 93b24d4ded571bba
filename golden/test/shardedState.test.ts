// SPDX-License-Identifier: Apache-2.0
/**
 * A saved state of vLLM opens as the model that vLLM loaded: its ranks' parameters are written as vLLM's own loaders filled
 * them (recorded maps of numbered elements), and every element must be back in its published place.
 */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { elementCount, fullRegion } from "@tensorferry/core/base/Region"
import { writeSafetensors } from "@tensorferry/model/checkpoint/SafetensorsWriter"
import { openInput } from "@tensorferry/model/inputs/openInput"
import * as Effect from "effect/Effect"
import { readGolden } from "../src/readGolden.ts"

type Tensors = ReadonlyArray<readonly [name: string, shape: ReadonlyArray<number>]>
type Loops = ReadonlyArray<readonly [count: number, to: number, from: number]>

interface Case {
  readonly id: string
  readonly tp: number
  readonly rank: number
  readonly expert_parallel?: boolean
  readonly pipeline?: unknown
  readonly sources?: Tensors
  readonly destinations: Tensors
  readonly moves: ReadonlyArray<readonly [number, number, number, number, Loops]>
}

interface Family {
  readonly family: string
  readonly hf_config: Readonly<Record<string, unknown>>
  readonly sources: Tensors
  readonly cases: ReadonlyArray<Case>
}

const { families } = readGolden("names_vllm") as { readonly families: ReadonlyArray<Family> }

const sizeOf = ([, shape]: Tensors[number]): number => elementCount(shape)

/** The numbers of a rank's parameters. */
const numbersOf = ({ destinations, moves, ...one }: Case, family: Family): ReadonlyArray<Float32Array> => {
  const sources = one.sources ?? family.sources
  const first: Array<number> = []
  let next = 1
  for (const source of sources) {
    first.push(next)
    next += sizeOf(source)
  }
  const numbers = destinations.map((one) => new Float32Array(sizeOf(one)))
  for (const [to, toOffset, from, fromOffset, loops] of moves) {
    const visit = (level: number, at: number, source: number): void => {
      const loop = loops[level]
      if (loop === undefined) {
        numbers[to]![at] = first[from]! + source
        return
      }
      for (let step = 0; step < loop[0]; step++) visit(level + 1, at + step * loop[1], source + step * loop[2])
    }
    visit(0, toOffset, fromOffset)
  }
  return numbers
}

const covered = ["llama", "llama_tied", "llama_tied_bias", "qwen2", "qwen3", "qwen3_moe", "mixtral"]

describe("a saved state of vLLM", () => {
  for (const family of families.filter(({ family }) => covered.includes(family))) {
    const plain = family.cases.filter((one) => one.expert_parallel !== true && one.pipeline === undefined)
    // Where only some ranks were recorded, there is no whole state.
    const whole = [1, 2, 4, 8].filter((tp) => plain.filter((one) => one.tp === tp).length === tp)
    it(`of ${family.family} was recorded whole at several degrees`, () => assert.isAtLeast(whole.length, 2))
    for (const tp of whole) {
      it.effect(`of ${family.family} at tp=${tp} opens as the model that was loaded`, () =>
        Effect.gen(function* () {
          const folder = mkdtempSync(join(tmpdir(), "tensorferry-state-"))
          yield* Effect.addFinalizer(() => Effect.sync(() => rmSync(folder, { recursive: true, force: true })))
          const ranks = plain.filter((one) => one.tp === tp)
          writeFileSync(join(folder, "config.json"), JSON.stringify(family.hf_config))
          for (const one of ranks) {
            const numbers = numbersOf(one, family)
            const tensors = one.destinations.map(([name, shape], at) => ({
              name,
              dtype: "float32" as const,
              shape,
              data: new Uint8Array(numbers[at]!.buffer)
            }))
            const half = Math.ceil(tensors.length / 2)
            for (const [part, some] of [tensors.slice(0, half), tensors.slice(half)].entries())
              yield* writeSafetensors(join(folder, `model-rank-${one.rank}-part-${part}.safetensors`), some)
          }
          const { checkpoint } = yield* openInput(folder)
          const sources = ranks[0]!.sources ?? family.sources
          let next = 1
          let found = 0
          for (const [name, shape] of sources) {
            const first = next
            next += elementCount(shape)
            const tensor = checkpoint.tensors.get(name)
            // A tied head is not loaded.
            if (tensor === undefined && name === "lm_head.weight") continue
            assert.deepStrictEqual([...(tensor?.shape ?? [])], [...shape], name)
            const values = new Float32Array(elementCount(shape))
            yield* checkpoint.readRegion(name, fullRegion(shape), new Uint8Array(values.buffer))
            assert.isTrue(
              values.every((value, at) => value === first + at),
              name
            )
            found += 1
          }
          assert.strictEqual(found, checkpoint.tensors.size)
        })
      )
    }
  }

  it.effect("is refused where a rank lacks a parameter, and where nobody knows how one is cut", () =>
    Effect.gen(function* () {
      const folder = mkdtempSync(join(tmpdir(), "tensorferry-state-"))
      yield* Effect.addFinalizer(() => Effect.sync(() => rmSync(folder, { recursive: true, force: true })))
      const config = { model_type: "llama", hidden_size: 8, num_attention_heads: 2, vocab_size: 8 }
      writeFileSync(join(folder, "config.json"), JSON.stringify(config))
      const tensor = (name: string) => ({ name, dtype: "uint8" as const, shape: [4], data: new Uint8Array(4) })
      const write = (rank: number, ...names: ReadonlyArray<string>) =>
        writeSafetensors(join(folder, `model-rank-${rank}-part-0.safetensors`), names.map(tensor))
      yield* write(0, "model.norm.weight", "model.layers.0.input_layernorm.weight")
      yield* write(1, "model.norm.weight")
      const lacking = yield* Effect.flip(openInput(folder))
      assert.strictEqual(lacking.reason._tag, "InvalidIndex", lacking.message)
      assert.strictEqual(lacking.reason.paramName, "model.layers.0.input_layernorm.weight")
      yield* write(0, "model.norm.weight", "model.other")
      yield* write(1, "model.norm.weight", "model.other")
      const unknown = yield* Effect.flip(openInput(folder))
      assert.strictEqual(unknown.reason._tag, "Unsupported", unknown.message)
      assert.strictEqual(unknown.reason.paramName, "model.other")
      writeFileSync(join(folder, "config.json"), JSON.stringify({ ...config, model_type: "phi3" }))
      const other = yield* Effect.flip(openInput(folder))
      assert.include(other.message, "phi3")
    })
  )
})
