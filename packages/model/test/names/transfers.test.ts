// SPDX-License-Identifier: Apache-2.0
/** What ranks of two systems get from each other: only what they lack, quantized or changed on the way where asked for. */

import { assert, describe, it } from "@effect/vitest"
import { elementCount } from "@tensorferry/core/base/Region"
import { parametersOf } from "@tensorferry/core/layout/Roster"
import * as Refit from "@tensorferry/core/refit/Refit"
import { makeRefitSession } from "@tensorferry/core/refit/RefitSession"
import { executeReshardPlan } from "@tensorferry/core/reshard/executeReshardPlan"
import { PlanCache } from "@tensorferry/core/reshard/PlanCache"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import {
  codeShapeOf,
  codeTypeOf,
  hasGlobal,
  mxfp8Recipe,
  type QuantizationRecipe,
  type QuantizedTensor,
  quantizationRecipe,
  scaleShapeOf,
  scaleTypesOf
} from "@tensorferry/core/tensor/QuantizedTensor"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { quantize } from "@tensorferry/core/transform/Quantize"
import { ownMaxima } from "@tensorferry/core/transform/QuantizeWork"
import { mappedDict } from "@tensorferry/model/names/mappedDict"
import type { MappedLayout } from "@tensorferry/model/names/mappedLayouts"
import { type NamedLayouts, namedLayouts } from "@tensorferry/model/names/namedLayouts"
import { linearStrip } from "@tensorferry/model/names/Strips"
import { scalarTransform } from "@tensorferry/model/names/scalarTransform"
import { runCluster } from "@tensorferry/testing/VirtualCluster"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { ModelTensor, ParallelConfig } from "../../src/layout/ModelLayout.ts"

const llama = {
  config: {
    model_type: "llama",
    hidden_size: 64,
    num_attention_heads: 8,
    num_key_value_heads: 2,
    head_dim: 8,
    num_hidden_layers: 2,
    intermediate_size: 96,
    vocab_size: 104
  },
  tensors: [
    ["model.embed_tokens.weight", [104, 64]],
    ...[0, 1].flatMap((layer) =>
      (
        [
          ["self_attn.q_proj", [64, 64]],
          ["self_attn.k_proj", [16, 64]],
          ["self_attn.v_proj", [16, 64]],
          ["self_attn.o_proj", [64, 64]],
          ["mlp.gate_proj", [96, 64]],
          ["mlp.up_proj", [96, 64]],
          ["mlp.down_proj", [64, 96]],
          ["input_layernorm", [64]],
          ["post_attention_layernorm", [64]]
        ] as const
      ).map(([name, shape]) => [`model.layers.${layer}.${name}.weight`, shape] as const)
    ),
    ["model.norm.weight", [64]],
    ["lm_head.weight", [104, 64]]
  ].map(([name, shape]): ModelTensor => ({ name: name as string, dtype: "float32", shape: shape as Array<number> }))
}

const layoutsOf = (from: readonly [string, ParallelConfig], to: readonly [string, ParallelConfig]): NamedLayouts =>
  Result.getOrThrow(
    namedLayouts(llama.tensors, {
      from: { convention: from[0], config: from[1] },
      to: { convention: to[0], config: to[1] },
      ranks: "collocated",
      family: { preset: "llama", config: llama.config, placement: {} }
    })
  )

/** Which elements of the checkpoint a rank has, as `tensor element`. */
const elementsOf = (layout: MappedLayout, rank: number): Map<string, number> => {
  const found = new Map<string, number>()
  for (const { shape, strips } of layout.rankOf(rank).tensors)
    for (const strip of strips) {
      if (strip.source === undefined) continue
      const { from, loops } = linearStrip(strip, shape)
      const visit = (depth: number, at: number): void => {
        const loop = loops[depth]
        if (loop === undefined) found.set(`${strip.source} ${at}`, (found.get(`${strip.source} ${at}`) ?? 0) + 1)
        else for (let index = 0; index < loop[0]; index++) visit(depth + 1, at + index * loop[2])
      }
      visit(0, from)
    }
  return found
}

const degrees = (tp: number, pp = 1, dp = 1): ParallelConfig => ({ tp, pp, dp })

describe("what travels between the names of two systems", () => {
  it.each([
    ["megatron", degrees(2), "vllm", degrees(8)],
    ["megatron", degrees(2, 2), "vllm", degrees(4)],
    ["megatron", degrees(4), "hf", degrees(2)],
    ["vllm", degrees(8), "megatron", degrees(4)],
    ["sglang", degrees(2), "megatron", degrees(8)]
  ] as const)(
    "%s %o to %s %o: each rank receives the elements that it lacks, each once",
    (source, from, target, to) => {
      const layouts = layoutsOf([source, from], [target, to])
      for (let rank = 0; rank < layouts.size; rank++) {
        const plan = layouts.planFor(rank)
        const received = plan.recvOps
          .filter(({ peerRank }) => peerRank !== rank)
          .reduce((sum, { mySlice }) => sum + elementCount(mySlice.map(([start, end]) => end - start)), 0)
        const own = elementsOf(layouts.source, rank)
        const wanted = elementsOf(layouts.destination, rank)
        const lacking = [...wanted].reduce((sum, [element, copies]) => sum + (own.has(element) ? 0 : copies), 0)
        assert.strictEqual(received, lacking, `rank ${rank}`)
      }
    }
  )
})

const floats = ({ storage, byteOffset, shape }: Tensor): Float32Array =>
  new Float32Array(storage.bytes!.buffer, storage.bytes!.byteOffset + byteOffset, elementCount(shape))

const fill = (tensor: Tensor, seed: number): void => {
  const values = floats(tensor)
  for (let at = 0; at < values.length; at++) values[at] = Math.sin(seed + at * 0.37) * 2 ** ((at % 13) - 6)
}

const allocateAll = Effect.fnUntraced(function* (layout: MappedLayout, rank: number) {
  const engine = yield* TensorEngine
  const tensors = new Map<string, Tensor>()
  for (const [at, { name, dtype, shape }] of layout.rankOf(rank).tensors.entries()) {
    const tensor = yield* engine.allocate(dtype, shape)
    fill(tensor, at)
    tensors.set(name, tensor)
  }
  return tensors
})

/** What a visit is given: a tensor's values, a place among them, and what belongs there. */
type Visit = (values: Float32Array, at: number, value: number) => void

/** Every element of a rank's tensors with the element of the checkpoint that it is. */
const eachElement = (
  layout: MappedLayout,
  rank: number,
  visit: (name: string, at: number, source: string, element: number) => void
): void => {
  for (const { name, shape, strips } of layout.rankOf(rank).tensors)
    for (const strip of strips) {
      const { source } = strip
      if (source === undefined) continue
      const { at, from, loops } = linearStrip(strip, shape)
      const walk = (depth: number, own: number, other: number): void => {
        const loop = loops[depth]
        if (loop === undefined) visit(name, own, source, other)
        else
          for (let index = 0; index < loop[0]; index++) walk(depth + 1, own + index * loop[1], other + index * loop[2])
      }
      walk(0, at, from)
    }
}

const dictOf = (layout: MappedLayout, rank: number, tensors: ReadonlyMap<string, Tensor>) =>
  Effect.fromResult(mappedDict(layout.rankOf(rank), layout.parametersOf(rank), tensors))

describe("a fused tensor that is quantized where it arrives", () => {
  const recipes: ReadonlyArray<QuantizationRecipe> = [
    mxfp8Recipe("rceil"),
    quantizationRecipe("mxfp4", "triton_up"),
    quantizationRecipe("nvfp4", "modelopt"),
    quantizationRecipe("fp8", "deepgemm_fp32", "rowMajor", [8, 16]),
    quantizationRecipe("fp8", "deepgemm_fp32", "rowMajor", [1, 0])
  ]
  it.effect.each(recipes)("has the bytes of the fused tensor quantized as a whole: $name/$rule, $block", (recipe) =>
    Effect.gen(function* () {
      const layouts = layoutsOf(["megatron", degrees(1)], ["vllm", degrees(1)])
      const name = "model.layers.1.self_attn.qkv_proj.weight"
      const [found] = yield* runCluster({ size: 1 }, () =>
        Effect.gen(function* () {
          const engine = yield* TensorEngine
          const source = yield* allocateAll(layouts.source, 0)
          const plain = yield* allocateAll(layouts.destination, 0)
          const own = layouts.destination.rankOf(0)
          const { shape } = own.tensors.find((tensor) => tensor.name === name)!
          const make = Effect.gen(function* () {
            return {
              _tag: "QuantizedTensor",
              data: yield* engine.allocate(codeTypeOf(recipe), codeShapeOf(recipe, shape)),
              scale: yield* engine.allocate(scaleTypesOf(recipe)[0]!, scaleShapeOf(recipe, shape)!),
              ...(hasGlobal(recipe) ? { global: yield* engine.allocate("float32", [1]) } : {}),
              recipe
            } satisfies QuantizedTensor
          })
          const [arrived, wanted] = [yield* make, yield* make]
          const from = yield* Effect.fromResult(
            mappedDict(layouts.source.rankOf(0), layouts.source.parametersOf(0), source)
          )
          const bring = (tensors: ReadonlyMap<string, Tensor | QuantizedTensor>, isQuantizing: boolean) =>
            Effect.gen(function* () {
              const into = yield* Effect.fromResult(mappedDict(own, layouts.destination.parametersOf(0), tensors))
              const parts = new Set(
                layouts.destination
                  .parametersOf(0)
                  .flatMap(({ metadata, view }) => (view.tensor === name ? [metadata.name] : []))
              )
              // What the parts share is known before any of them is quantized.
              const values = new Float32Array(plain.get(name)!.storage.bytes!.slice().buffer)
              const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0)
              const maxima = hasGlobal(recipe) ? () => ({ values: Float32Array.of(largest) }) : ownMaxima
              const transform = {
                ...quantize({ wireDtype: "float32", maxima }),
                shouldTransform: (part: string) => parts.has(part)
              }
              yield* executeReshardPlan(layouts.planFor(0), from, into, isQuantizing ? { transform } : {})
            })
          yield* bring(plain, false)
          yield* bring(new Map<string, Tensor | QuantizedTensor>([...plain, [name, arrived]]), true)
          yield* engine.quantize(plain.get(name)!, wanted)
          return [arrived.data, wanted.data, arrived.scale, wanted.scale].map((tensor) => [...tensor.storage.bytes!])
        })
      )
      const [data, wholeData, scale, wholeScale] = found!
      assert.deepStrictEqual(data, wholeData)
      assert.deepStrictEqual(scale, wholeScale)
    })
  )
})

describe("values that two systems hold differently", () => {
  it.effect("are changed on the way, and back", () =>
    Effect.gen(function* () {
      const scalars = [{ add: -1 }, "negExp", "logNeg"] as const
      const starts = [1.25, Math.log(3), -3]
      const expected = [0.25, -3, Math.log(3)]
      const layouts = layoutsOf(["hf", degrees(1)], ["hf", degrees(1)])
      const name = "model.norm.weight"
      for (const [at, scalar] of scalars.entries()) {
        const [values] = yield* runCluster({ size: 1 }, () =>
          Effect.gen(function* () {
            const [source, into] = [yield* allocateAll(layouts.source, 0), yield* allocateAll(layouts.destination, 0)]
            floats(source.get(name)!).fill(starts[at]!)
            const transform = scalarTransform((part) => (part === name ? scalar : undefined))
            yield* executeReshardPlan(
              layouts.planFor(0),
              yield* Effect.fromResult(mappedDict(layouts.source.rankOf(0), layouts.source.parametersOf(0), source)),
              yield* Effect.fromResult(
                mappedDict(layouts.destination.rankOf(0), layouts.destination.parametersOf(0), into)
              ),
              { transform }
            )
            return [...floats(into.get(name)!)]
          })
        )
        for (const value of values!) assert.closeTo(value, expected[at]!, 1e-6)
      }
    })
  )
})

describe("a prepared refit between the names of two systems", () => {
  it.effect("moves what changed, round after round, into memory that is new each time", () =>
    Effect.gen(function* () {
      const layouts = layoutsOf(["megatron", degrees(2)], ["vllm", degrees(4)])
      const faults = yield* runCluster({ size: layouts.size }, (rank) =>
        Effect.gen(function* () {
          const metadata = (layout: MappedLayout) =>
            layout.ranks.includes(rank) ? parametersOf(layout.roster, rank) : []
          const refit = yield* Effect.provide(
            Refit.prepare({ source: metadata(layouts.source), destination: metadata(layouts.destination) }),
            PlanCache.layer
          )
          const wrong: Array<string> = []
          for (const round of [0, 1, 2]) {
            yield* Effect.scoped(
              Effect.gen(function* () {
                const [source, into] = [
                  yield* allocateAll(layouts.source, rank),
                  yield* allocateAll(layouts.destination, rank)
                ]
                const valueOf = (tensor: string, element: number): number => round * 1e6 + tensor.length * 1e4 + element
                const write = (layout: MappedLayout, tensors: ReadonlyMap<string, Tensor>, visit: Visit) =>
                  eachElement(layout, rank, (name, at, of, element) =>
                    visit(floats(tensors.get(name)!), at, valueOf(of, element))
                  )
                write(layouts.source, source, (values, at, value) => {
                  values[at] = value
                })
                for (const tensor of into.values()) floats(tensor).fill(-7)
                yield* refit.swap(
                  layouts.source.ranks.includes(rank) ? yield* dictOf(layouts.source, rank, source) : undefined,
                  yield* dictOf(layouts.destination, rank, into)
                )
                write(layouts.destination, into, (values, at, value) => {
                  if (values[at] !== value)
                    wrong.push(`round ${round}, rank ${rank}: ${values[at]} instead of ${value}`)
                })
              })
            )
          }
          return wrong
        })
      )
      assert.deepStrictEqual(faults.flat().slice(0, 3), [])
    })
  )
})

describe("a session that an engine's fused tensors are updated by", () => {
  it.effect("takes the checkpoint's tensors by their names", () =>
    Effect.gen(function* () {
      const layouts = layoutsOf(["hf", degrees(1)], ["vllm", degrees(1)])
      const [found] = yield* runCluster({ size: 1 }, () =>
        Effect.gen(function* () {
          const fused = yield* allocateAll(layouts.destination, 0)
          const { tensors } = yield* dictOf(layouts.destination, 0, fused)
          const parts = new Map(
            [...tensors].map(
              ([name, live]) => [name, { dtype: "float32", shape: (live as Tensor).shape, live }] as const
            )
          )
          const session = yield* makeRefitSession({ tensors: parts })
          yield* session.begin({ label: "1" })
          const source = yield* allocateAll(layouts.source, 0)
          for (const [name, tensor] of source) {
            floats(tensor).fill(name.length)
            yield* session.add(name, tensor)
          }
          yield* session.commit()
          const qkv = floats(fused.get("model.layers.0.self_attn.qkv_proj.weight")!)
          return [qkv[0], qkv[64 * 64], qkv[80 * 64]]
        })
      )
      const lengthOf = (name: string): number => `model.layers.0.self_attn.${name}_proj.weight`.length
      assert.deepStrictEqual(found, [lengthOf("q"), lengthOf("k"), lengthOf("v")])
    })
  )
})

describe("two tensors of one rank that have elements in common", () => {
  it.effect("both arrive, whatever corners they begin at", () =>
    Effect.gen(function* () {
      const q = "model.layers.0.self_attn.q_proj.weight"
      const rows = (index: number, ...lengths: ReadonlyArray<number>) => ({ part: q, index, lengths })
      const layouts = Result.getOrThrow(
        namedLayouts(llama.tensors, {
          from: { convention: "megatron", config: degrees(2) },
          to: {
            convention: "hf",
            config: degrees(1),
            mapping: {
              rules: [
                { name: "first.half", from: rows(0, 1, 1), also: true },
                { name: "middle.half", from: rows(1, 1, 2, 1), also: true }
              ],
              others: "keep"
            }
          },
          ranks: "collocated",
          family: { preset: "llama", config: llama.config, placement: {} }
        })
      )
      const found = yield* runCluster({ size: 2 }, (rank) =>
        Effect.gen(function* () {
          const source = yield* allocateAll(layouts.source, rank)
          eachElement(layouts.source, rank, (name, at, of, element) => {
            floats(source.get(name)!)[at] = of === q ? element : -1
          })
          const into = rank === 0 ? yield* allocateAll(layouts.destination, 0) : undefined
          yield* executeReshardPlan(
            layouts.planFor(rank),
            yield* dictOf(layouts.source, rank, source),
            into === undefined ? undefined : yield* dictOf(layouts.destination, 0, into)
          )
          return into === undefined ? [] : ["first.half", "middle.half", q].map((name) => [...floats(into.get(name)!)])
        })
      )
      const run = (from: number, to: number) => Array.from({ length: (to - from) * 64 }, (_, at) => from * 64 + at)
      assert.deepStrictEqual(found[0], [run(0, 32), run(16, 48), run(0, 64)])
    })
  )
})
