// SPDX-License-Identifier: Apache-2.0
/**
 * Adapters merged by an engine into weights in use are what peft recorded, bit by bit in float32; however often they change,
 * weights come back to the base; and what cannot be merged, or is not held, is refused by name.
 */
import { assert, describe, it } from "@effect/vitest"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { sliceTensor, type Tensor, tensorBytes } from "@tensorferry/core/tensor/Tensor"
import type { Adapter } from "@tensorferry/model/names/adapters/Adapter"
import { type AdaptedWeight, makeAdapterSlots } from "@tensorferry/model/names/adapters/AdapterSlots"
import { mergeTensor } from "@tensorferry/model/names/adapters/mergeAdapter"
import { deviceFault } from "@tensorferry/model/names/adapters/mergeOnDevice"
import { make } from "@tensorferry/testing/ReferenceEngine"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type RecordedAdapter, type RecordedAdapters, readRecorded, valuesOf } from "../src/loraAdapters.ts"
import { readGolden } from "../src/readGolden.ts"

const { cases } = readGolden("names_lora") as RecordedAdapters

const withEngine = <A, E>(program: (engine: TensorEngineShape) => Effect.Effect<A, E, TensorEngine | Scope.Scope>) => {
  const engine = make()
  return Effect.scoped(Effect.provideService(program(engine), TensorEngine, engine))
}

const tensorOf = (engine: TensorEngineShape, shape: Shape, values: Float32Array) =>
  Effect.tap(engine.allocate("float32", shape), (tensor) =>
    Effect.sync(() => {
      tensorBytes(tensor)!.set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength))
    })
  )

const floatsOf = (tensor: Tensor): Float32Array => new Float32Array(tensorBytes(tensor)!.slice().buffer)

const isMergeable = (adapter: Adapter): boolean =>
  [...adapter.changes.values()].flat().every((change) => Result.isSuccess(deviceFault(change)))

/** What a recorded case gives slots. */
const placed = Effect.fnUntraced(function* (engine: TensorEngineShape, recorded: RecordedAdapter, adapter: Adapter) {
  const shapes = new Map(recorded.base_names)
  const base = valuesOf(recorded.base_tensors)
  const weights = new Map<string, AdaptedWeight & { readonly live: Tensor }>()
  for (const target of adapter.changes.keys()) {
    const shape = shapes.get(target)!
    weights.set(target, { live: yield* tensorOf(engine, shape, base.get(target)!) })
  }
  const values = valuesOf(recorded.adapter_tensors)
  const tensors = new Map<string, Tensor>()
  for (const { name, shape } of recorded.adapter_tensors) {
    tensors.set(name, yield* tensorOf(engine, shape, values.get(name)!))
  }
  return { weights, tensors, base, values, shapes }
})

const plain = cases.flatMap((recorded) => {
  const adapter = readRecorded(recorded)
  if (recorded.suspect || Result.isFailure(adapter)) return []
  const hasBase = [...adapter.success.changes.keys()].every((target) =>
    recorded.base_tensors.some(({ name }) => name === target)
  )
  return hasBase ? [{ recorded, adapter: adapter.success }] : []
})
const mergeable = plain.filter(({ adapter }) => isMergeable(adapter))

describe("adapters merged where weights lie", () => {
  for (const { adapter, recorded } of mergeable) {
    it.effect(`${recorded.id}: ${recorded.values === "exact" ? "as peft recorded it" : "as files are merged"}`, () =>
      withEngine((engine) =>
        Effect.gen(function* () {
          const { base, shapes, tensors, values, weights } = yield* placed(engine, recorded, adapter)
          const slots = yield* makeAdapterSlots(weights, "merge")
          yield* slots.load("own", adapter, tensors)
          yield* slots.merge("own")
          const merged = valuesOf(recorded.merged_tensors)
          for (const [target, { live }] of weights) {
            const changes = adapter.changes.get(target)!
            const inFiles = mergeTensor(changes, shapes.get(target)!, base.get(target)!, (name) => values.get(name)!)
            assert.deepStrictEqual(floatsOf(live), Result.getOrThrow(inFiles), target)
            if (recorded.values === "exact") assert.deepStrictEqual(floatsOf(live), merged.get(target)!, target)
          }
          yield* slots.merge(undefined)
          for (const [target, { live }] of weights) assert.deepStrictEqual(floatsOf(live), base.get(target)!, target)
        })
      )
    )
  }

  it("are of all kinds", () => {
    assert.isAtLeast(mergeable.length, 15)
    assert.isAtLeast(mergeable.filter(({ recorded }) => recorded.values === "exact").length, 10)
    const tags = new Set(
      mergeable.flatMap(({ adapter }) => [...adapter.changes.values()].flat().map(({ _tag }) => _tag))
    )
    assert.isTrue(tags.has("LowRank") && tags.has("Whole"), [...tags].join())
  })

  it.effect("of shards are the shards of merged weights", () =>
    withEngine((engine) =>
      Effect.gen(function* () {
        let cut = 0
        for (const { adapter, recorded } of mergeable) {
          const { shapes, tensors, values, base } = yield* placed(engine, recorded, adapter)
          for (const [target, changes] of adapter.changes) {
            const shape = shapes.get(target)!
            if (changes.some(({ _tag }) => _tag !== "LowRank") || shape.some((length) => length < 2)) continue
            const whole = Result.getOrThrow(mergeTensor(changes, shape, base.get(target)!, (name) => values.get(name)!))
            const expected = yield* tensorOf(engine, shape, whole)
            for (const [dim, length] of shape.entries()) {
              const region = shape.map((full, at) => (at === dim ? ([1, length] as const) : ([0, full] as const)))
              const part = (of: Tensor) => Result.getOrThrow(sliceTensor(of, region))
              const dense = Effect.fnUntraced(function* (of: Tensor) {
                const made = yield* engine.allocate("float32", part(of).shape)
                yield* engine.copy([{ dst: made, src: part(of) }])
                return made
              })
              const live = yield* dense(yield* tensorOf(engine, shape, base.get(target)!))
              const slots = yield* makeAdapterSlots(new Map([[target, { live, region }]]), "merge")
              const own: Adapter = { ...adapter, changes: new Map([[target, changes]]) }
              yield* slots.load("own", own, tensors)
              yield* slots.merge("own")
              assert.deepStrictEqual(
                floatsOf(live),
                floatsOf(yield* dense(expected)),
                `${recorded.id}, ${target}, ${dim}`
              )
              cut += 1
            }
          }
        }
        assert.isAbove(cut, 50)
      })
    )
  )

  it.effect("leave no drift after 1,000 changes of adapter", () =>
    withEngine((engine) =>
      Effect.gen(function* () {
        const [{ adapter, recorded }] = mergeable.filter(({ recorded: { values } }) => values === "random") as [
          (typeof mergeable)[number]
        ]
        const { base, tensors, weights } = yield* placed(engine, recorded, adapter)
        // One target of each kind is enough; the second adapter has other numbers.
        const [target] = adapter.changes.keys()
        const one: Adapter = { ...adapter, changes: new Map([[target!, adapter.changes.get(target!)!]]) }
        const used = new Map([[target!, weights.get(target!)!]])
        const slots = yield* makeAdapterSlots(used, "merge")
        yield* slots.load("first", one, tensors)
        const others = new Map<string, Tensor>()
        for (const [name, tensor] of tensors) {
          others.set(
            name,
            yield* tensorOf(
              engine,
              tensor.shape,
              floatsOf(tensor).map((value) => value * 0.37)
            )
          )
        }
        yield* slots.load("second", one, others)
        const { live } = used.get(target!)!
        const seen: Record<string, Float32Array> = {}
        for (let at = 0; at < 1000; at++) {
          const name = at % 2 === 0 ? "first" : "second"
          yield* slots.merge(name)
          seen[name] ??= floatsOf(live)
          assert.isTrue(
            Buffer.compare(Buffer.from(floatsOf(live).buffer), Buffer.from(seen[name].buffer)) === 0,
            `${at}`
          )
        }
        assert.notDeepEqual(seen.first, seen.second)
        yield* slots.merge(undefined)
        assert.deepStrictEqual(floatsOf(live), base.get(target!)!)
        assert.strictEqual(floatsOf(live).length, elementCount(live.shape))
      })
    )
  )
})

describe("slots", () => {
  it.effect("refuse names that are not held, DoRA, weights that are not here, and to let a merged adapter go", () =>
    withEngine((engine) =>
      Effect.gen(function* () {
        const { adapter, recorded } = mergeable[0]!
        const { tensors, weights } = yield* placed(engine, recorded, adapter)
        const slots = yield* makeAdapterSlots(weights, "merge")
        yield* slots.load("style", adapter, tensors)
        const missing = yield* Effect.flip(slots.merge("stile"))
        assert.match(missing.message, /missing_source \(stile\).*"style"/)
        yield* slots.merge("style")
        assert.strictEqual(slots.merged(), "style")
        assert.match((yield* Effect.flip(slots.unload("style"))).message, /merged/)
        yield* slots.merge(undefined)
        yield* slots.unload("style")
        assert.deepStrictEqual(slots.names(), [])
        const nowhere = yield* makeAdapterSlots(new Map(), "merge")
        assert.match((yield* Effect.flip(nowhere.load("style", adapter, tensors))).message, /no_target/)
        const dora = plain.find(({ adapter: one }) => !isMergeable(one))!
        const other = yield* placed(engine, dora.recorded, dora.adapter)
        const merging = yield* makeAdapterSlots(other.weights, "merge")
        assert.match(
          (yield* Effect.flip(merging.load("dora", dora.adapter, other.tensors))).message,
          /DoRA|no such tensor/
        )
      })
    )
  )

  it.effect("keep adapters by name for an engine that applies them, as copies", () =>
    withEngine((engine) =>
      Effect.gen(function* () {
        const { adapter, recorded } = mergeable[0]!
        const { base, tensors, values, weights } = yield* placed(engine, recorded, adapter)
        const slots = yield* makeAdapterSlots(weights, "keep")
        yield* slots.load("a", adapter, tensors)
        yield* slots.load("b", adapter, tensors)
        for (const tensor of tensors.values()) tensorBytes(tensor)!.fill(0)
        const held = yield* slots.get("b")
        for (const [name, tensor] of held.tensors) assert.deepStrictEqual(floatsOf(tensor), values.get(name)!)
        assert.deepStrictEqual(slots.names(), ["a", "b"])
        assert.match((yield* Effect.flip(slots.get("c"))).message, /No adapter of this name/)
        assert.match((yield* Effect.flip(slots.merge("a"))).message, /keep adapters/)
        for (const [target, { live }] of weights) assert.deepStrictEqual(floatsOf(live), base.get(target)!)
      })
    )
  )

  it.effect("merge into a new base once it was written", () =>
    withEngine((engine) =>
      Effect.gen(function* () {
        const { adapter, recorded } = mergeable[0]!
        const { shapes, tensors, values, weights } = yield* placed(engine, recorded, adapter)
        const slots = yield* makeAdapterSlots(weights, "merge")
        yield* slots.load("own", adapter, tensors)
        yield* slots.merge("own")
        const bases = new Map<string, Float32Array>()
        for (const [target, { live }] of weights) {
          bases.set(
            target,
            floatsOf(live).map((_, at) => Math.fround(at * 0.25 - 3))
          )
          tensorBytes(live)!.set(new Uint8Array(bases.get(target)!.buffer))
        }
        yield* slots.rebase
        assert.isUndefined(slots.merged())
        yield* slots.merge("own")
        for (const [target, { live }] of weights) {
          const changes = adapter.changes.get(target)!
          const expected = mergeTensor(changes, shapes.get(target)!, bases.get(target)!, (name) => values.get(name)!)
          assert.deepStrictEqual(floatsOf(live), Result.getOrThrow(expected))
        }
      })
    )
  )
})
