// SPDX-License-Identifier: Apache-2.0
/**
 * The mxfp8 transform: the same bytes for every cutting, side and round; destinations that stay where they are; and what is
 * refused before anything moves.
 */
import { assert, describe, it } from "@effect/vitest"
import type { ModelTensor } from "@tensorferry/model/layout/ModelLayout"
import { quantizeBufferBytes, quantizedDestinationBytes } from "@tensorferry/model/quantize/bufferBytes"
import { plansOf as meshPlansOf, specsOf } from "@tensorferry/testing/planning/meshSides"
import { make } from "@tensorferry/testing/ReferenceEngine"
import { runCluster, runRanks } from "@tensorferry/testing/VirtualCluster"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Scope from "effect/Scope"
import type { ReshardPlan } from "../../src/ir/ReshardPlan.ts"
import { estimatePlans, hostLinkSpeeds } from "../../src/planner/Estimate.ts"
import { opsOf } from "../../src/planner/MeshOps.ts"
import { prepared } from "../../src/refit/Refit.ts"
import { executeReshardPlan } from "../../src/reshard/executeReshardPlan.ts"
import { makeUpdateMemory } from "../../src/reshard/UpdateMemory.ts"
import { TensorEngine, type TensorEngineShape, type TensorError } from "../../src/service/TensorEngine.ts"
import {
  isQuantized,
  mxBlockSize,
  mxfp8Recipe,
  type QuantizationRecipe,
  type QuantizedTensor,
  layoutOf as scaleLayoutOf,
  scaleShapeOf
} from "../../src/tensor/QuantizedTensor.ts"
import type { Tensor } from "../../src/tensor/Tensor.ts"
import { type TensorDict, tensorDict } from "../../src/tensor/TensorDict.ts"
import { cast } from "../../src/transform/Cast.ts"
import { compose, firstOf, forParameters } from "../../src/transform/Compose.ts"
import { identity } from "../../src/transform/Identity.ts"
import { type Mxfp8Options, mxfp8 } from "../../src/transform/Quantize.ts"
import type { ReshardTransform } from "../../src/transform/ReshardTransform.ts"
import { scaleMatrixOf, swizzledLength, swizzledOffset } from "../../src/transform/ScaleLayouts.ts"
import { plansOf, rosterOf } from "../reshard/executeSupport.ts"

const tensors: ReadonlyArray<ModelTensor> = [
  { name: "a.up.weight", dtype: "bfloat16", shape: [12, 96] },
  { name: "a.down.weight", dtype: "bfloat16", shape: [5, 192] },
  { name: "a.experts.weight", dtype: "bfloat16", shape: [2, 3, 64] }
]
const rules = {
  rules: [
    { match: "*up.weight", shard: 0 },
    { match: "*down.weight", shard: 1 },
    { match: "*experts.weight", shard: "replicate" }
  ]
} as const
const roster = (tp: number, firstRank = 0, dtype: "bfloat16" | "float32" = "bfloat16") =>
  rosterOf(tp, { firstRank, tensors: tensors.map((tensor) => ({ ...tensor, dtype })), rules })

type Side = ReshardPlan["sourceTensors"]

/** bfloat16 numbers that depend on the tensor's name and place, over several powers of two. */
const valueAt = (name: string, index: number, round: number): number => {
  let state = (index + 1) * 2654435761 + round * 40503 + name.length * 97
  state = Math.imul(state ^ (state >>> 15), 2246822519) >>> 0
  const bits = ((state & 0x80ff) | ((110 + ((state >>> 20) % 20)) << 7)) << 16
  return new Float32Array(Int32Array.of(bits).buffer)[0]!
}

const writeValues = (tensor: Tensor, name: string, round: number) =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const wide = yield* engine.allocate("float32", tensor.shape)
    const view = new DataView(wide.storage.bytes!.buffer, wide.storage.bytes!.byteOffset)
    const count = wide.storage.byteLength / 4
    for (let at = 0; at < count; at++) view.setFloat32(4 * at, valueAt(name, at + (tensor.shape[0] ?? 1), round), true)
    yield* engine.copy([{ dst: tensor, src: wide }])
  })

const plainDict = (side: Side, round?: number, dtype?: Tensor["dtype"]) =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const entries: Array<readonly [string, Tensor]> = []
    for (const { name, shape, dtype: stated } of side) {
      const tensor = yield* engine.allocate(dtype ?? stated, shape)
      if (round !== undefined) yield* writeValues(tensor, name, round)
      entries.push([name, tensor])
    }
    return side.length === 0 ? undefined : tensorDict(entries)
  })

const emptyQuantized = (shape: ReadonlyArray<number>, recipe: QuantizationRecipe) =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const scales = scaleShapeOf(recipe, shape)!
    const data = yield* engine.allocate("float8_e4m3fn", shape)
    const wanted = scaleLayoutOf(recipe) === "swizzled" ? [swizzledLength(...scaleMatrixOf(scales))] : scales
    const scale = yield* engine.allocate("float8_e8m0fnu", wanted)
    return { _tag: "QuantizedTensor", data, scale, recipe } satisfies QuantizedTensor
  })

const quantizedDict = (side: Side, recipe: QuantizationRecipe) =>
  Effect.gen(function* () {
    const entries: Array<readonly [string, QuantizedTensor]> = []
    for (const { name, shape } of side) entries.push([name, yield* emptyQuantized(shape, recipe)])
    return side.length === 0 ? undefined : tensorDict(entries)
  })

/** Poison before an update, so that bytes nobody wrote show. */
const poison = (dict: TensorDict | undefined) => {
  for (const tensor of dict?.tensors.values() ?? []) {
    for (const part of isQuantized(tensor) ? [tensor.data, tensor.scale] : [tensor]) part.storage.bytes!.fill(0xd7)
  }
}

/** What a destination must hold, from wide values that came without any transform. */
const expectQuantized = (dict: TensorDict, wide: TensorDict, what: string) =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    for (const [name, tensor] of dict.tensors) {
      assert.isTrue(isQuantized(tensor))
      if (!isQuantized(tensor)) continue
      const source = wide.tensors.get(name) as Tensor
      const rows = yield* emptyQuantized(source.shape, { ...tensor.recipe, layout: "rowMajor" })
      yield* engine.quantize(source, rows)
      assert.deepStrictEqual(tensor.data.storage.bytes, rows.data.storage.bytes, `${what}: data of ${name}`)
      const scales = rows.scale.storage.bytes!
      if (scaleLayoutOf(tensor.recipe) === "rowMajor") {
        assert.deepStrictEqual(tensor.scale.storage.bytes, scales, `${what}: scales of ${name}`)
        continue
      }
      const [, columns] = scaleMatrixOf(rows.scale.shape)
      const expected = new Uint8Array(tensor.scale.storage.byteLength)
      scales.forEach((scale, at) => {
        expected[swizzledOffset(Math.floor(at / columns), at % columns, columns)] = scale
      })
      assert.deepStrictEqual(tensor.scale.storage.bytes, expected, `${what}: swizzled scales of ${name}`)
    }
  })

const addressesOf = (dict: TensorDict | undefined): ReadonlyArray<bigint> =>
  [...(dict?.tensors.values() ?? [])].flatMap((tensor) =>
    isQuantized(tensor) ? [tensor.data.storage.address, tensor.scale.storage.address] : [tensor.storage.address]
  )

const layouts: ReadonlyArray<readonly [string, number, number, number]> = [
  ["collocated, one piece", 1, 1, 0],
  ["collocated, rows cut", 3, 2, 0],
  ["disjoint", 2, 3, 2],
  ["overlapping", 3, 1, 2]
]

describe("every cutting, side and layout of scales gives the bytes of quantizing whole", () => {
  for (const side of ["receiver", "sender"] as const) {
    for (const scales of ["rowMajor", "swizzled"] as const) {
      for (const [name, from, to, firstRank] of layouts) {
        it.live(`${side}, ${scales}, ${name}: three rounds with new values and sources`, () => {
          const size = Math.max(from, firstRank + to)
          const plans = plansOf(roster(from), roster(to, firstRank), size)
          return runCluster({ size }, (rank) =>
            Effect.gen(function* () {
              const plan = plans[rank]!
              const rule = (["rceil", "ocp_floor", "rceil_te"] as const)[(from + to) % 3]!
              const destination = yield* quantizedDict(plan.destinationTensors, mxfp8Recipe(rule, scales))
              const before = addressesOf(destination)
              const memory = yield* makeUpdateMemory
              const transform = mxfp8({ side, rule })
              for (let round = 0; round < 3; round++) {
                const source = yield* plainDict(plan.sourceTensors, round)
                const wide = yield* plainDict(plan.destinationTensors)
                yield* executeReshardPlan(plan, source, wide)
                poison(destination)
                yield* executeReshardPlan(plan, source, destination, {
                  transform,
                  ...(round === 1 ? {} : { memory })
                })
                if (destination !== undefined) yield* expectQuantized(destination, wide!, `round ${round}`)
                assert.deepStrictEqual(addressesOf(destination), before)
              }
            })
          )
        })
      }
    }
  }

  for (const side of ["receiver", "sender"] as const) {
    for (const [from, to] of [
      ["2:S0", "3@1:S0"],
      ["3:R", "2@2:S0"],
      ["2x2:P(sum),S0", "2@3:R"]
    ] as const) {
      it.live(`${side}, plans between meshes ${from} to ${to}: three rounds, as prepared refits`, () => {
        const specs = tensors.map(({ name, shape }) => ({
          ...specsOf(from, to, [{ shape, from: "bfloat16" }])[0]!,
          name
        }))
        const plans = meshPlansOf(specs)
        return runCluster({ size: plans.length }, (rank) =>
          Effect.gen(function* () {
            const { sourceTensors, destinationTensors } = opsOf(plans[rank]!)
            const refit = yield* prepared(plans[rank]!)
            const destination = yield* quantizedDict(destinationTensors, mxfp8Recipe("ocp_floor"))
            const transform = mxfp8({ side, rule: "ocp_floor" })
            for (let round = 0; round < 3; round++) {
              const source = yield* plainDict(sourceTensors, round)
              const wide = yield* plainDict(destinationTensors)
              yield* refit.swap(source, wide)
              poison(destination)
              yield* refit.swap(source, destination, { transform })
              if (destination !== undefined) yield* expectQuantized(destination, wide!, `round ${round}`)
            }
          })
        )
      })
    }
  }

  it.live("a plan between meshes gives the bytes of the plan between layouts of the same shards", () => {
    const [up] = tensors
    const [of, into] = [rosterOf(2, { tensors: [up!], rules }), rosterOf(3, { tensors: [up!], rules, firstRank: 2 })]
    const rosters = plansOf(of, into, 5)
    const meshes = meshPlansOf([
      { ...specsOf("2:S0", "3@2:S0", [{ shape: up!.shape, from: "bfloat16" }])[0]!, name: up!.name }
    ])
    return runCluster({ size: 5 }, (rank) =>
      Effect.gen(function* () {
        const held: Array<ReadonlyArray<Uint8Array>> = []
        for (const plan of [rosters[rank]!, meshes[rank]!]) {
          const { sourceTensors, destinationTensors } = opsOf(plan)
          const source = yield* plainDict(sourceTensors, 0)
          const destination = yield* quantizedDict(destinationTensors, mxfp8Recipe())
          poison(destination)
          yield* executeReshardPlan(plan, source, destination, { transform: mxfp8() })
          held.push(
            [...(destination?.tensors.values() ?? [])].flatMap((tensor) =>
              isQuantized(tensor) ? [tensor.data.storage.bytes!, tensor.scale.storage.bytes!] : []
            )
          )
        }
        assert.deepStrictEqual(held[1], held[0])
        assert.strictEqual(held[0]!.length, rank < 2 ? 0 : 2)
      })
    )
  })

  it.live("half the bytes travel where the sender quantizes", () => {
    const plans = plansOf(roster(1), roster(1, 1), 2)
    const sent = (side: "sender" | "receiver") =>
      Effect.map(
        runCluster({ size: 2 }, (rank) =>
          Effect.gen(function* () {
            const plan = plans[rank]!
            const source = yield* plainDict(plan.sourceTensors, 0)
            const destination = yield* quantizedDict(plan.destinationTensors, mxfp8Recipe())
            return (yield* executeReshardPlan(plan, source, destination, { transform: mxfp8({ side }) })).copy
          })
        ),
        ([copy]) => copy!.remoteBytesSent
      )
    return Effect.gen(function* () {
      const elements = 12 * 96 + 5 * 192 + 2 * 3 * 64
      assert.strictEqual(yield* sent("receiver"), 2 * elements)
      assert.strictEqual(yield* sent("sender"), elements + elements / mxBlockSize)
    })
  })

  it.live("quantized sources are read: as they are by their own rule, dequantized for the rest", () => {
    const plans = plansOf(roster(2), roster(3, 1), 4)
    return runCluster({ size: 4 }, (rank) =>
      Effect.gen(function* () {
        const engine = yield* TensorEngine
        const plan = plans[rank]!
        for (const layout of ["rowMajor", "swizzled"] as const) {
          const wide = yield* plainDict(plan.sourceTensors, 4)
          const source = yield* quantizedDict(plan.sourceTensors, mxfp8Recipe("rceil", layout))
          // Brought into their layout by an update of the rank with itself.
          for (const [name, tensor] of source?.tensors ?? []) {
            if (!isQuantized(tensor)) continue
            const transform = mxfp8()
            const op = { paramName: name, region: tensor.data.shape.map((length) => [0, length] as const), tensor }
            const [buffer] = yield* transform.prepareRecv(op)
            yield* engine.copy([{ dst: buffer!, src: wide!.tensors.get(name) as Tensor }])
            yield* transform.finalizeRecv(op, [buffer!])
            const rows = yield* emptyQuantized(tensor.data.shape, mxfp8Recipe("rceil"))
            yield* engine.quantize(wide!.tensors.get(name) as Tensor, rows)
            // What the source stands for, which is what others must see.
            yield* engine.dequantize(rows, wide!.tensors.get(name) as Tensor)
          }
          const values = yield* plainDict(plan.destinationTensors)
          yield* executeReshardPlan(plan, wide, values)
          const plain = yield* plainDict(plan.destinationTensors)
          yield* executeReshardPlan(plan, source, plain, { transform: mxfp8() })
          for (const [name, tensor] of plain?.tensors ?? []) {
            const expected = (values!.tensors.get(name) as Tensor).storage.bytes
            assert.deepStrictEqual((tensor as Tensor).storage.bytes, expected, name)
          }
          const requantized = yield* quantizedDict(plan.destinationTensors, mxfp8Recipe("rceil", layout))
          poison(requantized)
          yield* executeReshardPlan(plan, source, requantized, { transform: mxfp8({ rule: "rceil" }) })
          if (requantized !== undefined) yield* expectQuantized(requantized, values!, layout)
          // As they are, scales need not be those of quantizing again; the values are the same.
          const same = yield* quantizedDict(plan.destinationTensors, mxfp8Recipe("rceil"))
          poison(same)
          yield* executeReshardPlan(plan, source, same, { transform: mxfp8({ side: "sender", rule: "rceil" }) })
          for (const [name, tensor] of same?.tensors ?? []) {
            const expected = values!.tensors.get(name) as Tensor
            const found = yield* engine.allocate("bfloat16", expected.shape)
            if (isQuantized(tensor)) yield* engine.dequantize(tensor, found)
            assert.deepStrictEqual(found.storage.bytes, expected.storage.bytes, `${layout}: ${name} as it is`)
          }
        }
      })
    )
  })
})

/** One transfer from rank 0 to rank 1 of `[rows, columns]` tensors; how both ranks ended. */
const attempt = (
  shape: ReadonlyArray<number>,
  destinationTp: number,
  sides: (
    rank: number,
    plan: ReshardPlan
  ) => Effect.Effect<
    readonly [TensorDict | undefined, TensorDict | undefined, ReshardTransform],
    TensorError,
    TensorEngine | Scope.Scope
  >
) => {
  const one = (tp: number, firstRank: number) =>
    rosterOf(tp, {
      firstRank,
      tensors: [{ name: "w", dtype: "bfloat16", shape }],
      rules: { rules: [{ match: "w", shard: shape.length - 1 }] }
    })
  const size = 1 + destinationTp
  const plans = plansOf(one(1, 0), one(destinationTp, 1), size)
  return runRanks({ size }, (rank) =>
    Effect.gen(function* () {
      const [source, destination, transform] = yield* sides(rank, plans[rank]!)
      poison(destination)
      const ended = yield* Effect.exit(executeReshardPlan(plans[rank]!, source, destination, { transform }))
      const bytes = [...(destination?.tensors.values() ?? [])].flatMap((tensor) =>
        isQuantized(tensor)
          ? [...tensor.data.storage.bytes!, ...tensor.scale.storage.bytes!]
          : [...tensor.storage.bytes!]
      )
      return { ended, isUntouched: bytes.every((byte) => byte === 0xd7) }
    })
  )
}

type Ended = Effect.Success<ReturnType<typeof attempt>>

const failuresOf = (exits: Ended): ReadonlyArray<string> =>
  exits.map((exit) => {
    assert.isTrue(Exit.isSuccess(exit))
    if (!Exit.isSuccess(exit)) return ""
    assert.isTrue(exit.value.isUntouched, "nothing may be written")
    const { ended } = exit.value
    assert.isTrue(Exit.isFailure(ended), "it must fail on every rank")
    return Exit.isFailure(ended)
      ? ended.cause.reasons.map((reason) => (reason._tag === "Fail" ? reason.error.message : "")).join()
      : ""
  })

describe("refused on every rank before anything moves", () => {
  const source = (plan: ReshardPlan) => plainDict(plan.sourceTensors, 0)
  const both =
    (recipe: QuantizationRecipe, options: (rank: number) => Mxfp8Options) => (rank: number, plan: ReshardPlan) =>
      Effect.gen(function* () {
        return [
          yield* source(plan),
          yield* quantizedDict(plan.destinationTensors, recipe),
          mxfp8(options(rank))
        ] as const
      })

  for (const side of ["sender", "receiver"] as const) {
    it.live(`${side}: a region that cuts a block, with the nearest one that does not`, () =>
      Effect.gen(function* () {
        // Two halves of 48 columns each: as destinations they are no whole blocks.
        const exits = yield* attempt([2, 96], 2, (_, plan) =>
          Effect.gen(function* () {
            const engine = yield* TensorEngine
            const entries: Array<readonly [string, QuantizedTensor]> = []
            for (const { name, shape } of plan.destinationTensors) {
              const data = yield* engine.allocate("float8_e4m3fn", shape)
              const scale = yield* engine.allocate("float8_e8m0fnu", [shape[0]!, Math.ceil(shape[1]! / mxBlockSize)])
              entries.push([name, { _tag: "QuantizedTensor", data, scale, recipe: mxfp8Recipe() }])
            }
            const destination = entries.length === 0 ? undefined : tensorDict(entries)
            return [yield* source(plan), destination, mxfp8({ side })] as const
          })
        )
        for (const message of failuresOf(exits)) assert.match(message, /w/)
        if (side === "sender") assert.match(failuresOf(exits)[0]!, /\[0:2,0:64\]|nearest region is/)
      })
    )
  }

  it.live("rules that differ between the ends, which shapes and types would not show", () =>
    Effect.gen(function* () {
      const exits = yield* attempt(
        [2, 64],
        1,
        both(mxfp8Recipe("ocp_floor"), (rank) => ({ side: "sender", rule: rank === 0 ? "rceil" : "ocp_floor" }))
      )
      for (const message of failuresOf(exits)) assert.match(message, /w/)
    })
  )

  it.live("a destination of another rule than the transform's", () =>
    Effect.gen(function* () {
      for (const side of ["sender", "receiver"] as const) {
        const exits = yield* attempt(
          [2, 64],
          1,
          both(mxfp8Recipe("ocp_floor"), () => ({ side, rule: "rceil" }))
        )
        for (const message of failuresOf(exits)) assert.match(message, /mxfp8\/1x32\/ocp_floor\/rowMajor.*rceil/)
      }
    })
  )

  it.live("unknown recipes and layouts, and scales of another count, are refused", () =>
    Effect.gen(function* () {
      const foreign = [
        { ...mxfp8Recipe(), name: "auto" as "mxfp8" },
        { ...mxfp8Recipe(), name: "qint8" as "mxfp8" },
        { ...mxfp8Recipe(), name: "" as "mxfp8" },
        { ...mxfp8Recipe(), block: [1, 128] as const },
        { ...mxfp8Recipe(), layout: "woven" as "rowMajor" },
        { ...mxfp8Recipe(), rule: "" }
      ]
      for (const recipe of foreign) {
        const exits = yield* attempt([2, 64], 1, (rank, plan) =>
          Effect.map(both(mxfp8Recipe(), () => ({}))(rank, plan), ([from, to, transform]) => {
            const changed = [...(to?.tensors ?? [])].map(
              ([name, tensor]) => [name, { ...(tensor as QuantizedTensor), recipe }] as const
            )
            return [from, to === undefined ? undefined : tensorDict(changed), transform] as const
          })
        )
        for (const message of failuresOf(exits)) assert.match(message, /not known/)
      }
      const exits = yield* attempt([130, 64], 1, (rank, plan) =>
        Effect.map(both(mxfp8Recipe("rceil", "swizzled"), () => ({}))(rank, plan), ([from, to, transform]) => {
          const changed = [...(to?.tensors ?? [])].map(
            ([name, tensor]) => [name, { ...(tensor as QuantizedTensor), recipe: mxfp8Recipe() }] as const
          )
          return [from, to === undefined ? undefined : tensorDict(changed), transform] as const
        })
      )
      for (const message of failuresOf(exits)) assert.match(message, /w.*have 260 scales \[130,2\].*not 1024/)
    })
  )

  it.live("slicing swizzled scales as bytes", () =>
    Effect.gen(function* () {
      const exits = yield* attempt([2, 64], 1, (rank, plan) =>
        Effect.map(
          both(mxfp8Recipe("rceil", "swizzled"), () => ({}))(rank, plan),
          ([from, to]) => [from, to, identity] as const
        )
      )
      for (const message of failuresOf(exits)) assert.match(message, /quantized/)
    })
  )

  it.live("more gathered at one time than the limit", () =>
    Effect.gen(function* () {
      const options = { accumulatorLimit: 2 * 2 * 64 + 3 }
      const exits = yield* attempt(
        [2, 64],
        1,
        both(mxfp8Recipe("rceil", "swizzled"), () => options)
      )
      for (const message of failuresOf(exits)) assert.match(message, /260 bytes are needed.*of 259/)
      const enough = yield* attempt(
        [2, 64],
        1,
        both(mxfp8Recipe("rceil", "swizzled"), () => ({ accumulatorLimit: 260 }))
      )
      for (const exit of enough) assert.isTrue(Exit.isSuccess(exit) && Exit.isSuccess(exit.value.ended))
    })
  )

  it.live("transforms whose ends make different numbers of tensors", () =>
    Effect.gen(function* () {
      const exits = yield* attempt(
        [2, 64],
        1,
        both(mxfp8Recipe(), (rank) => ({ side: rank === 0 ? "sender" : "receiver" }))
      )
      for (const message of failuresOf(exits)) assert.match(message, /w/)
    })
  )
})

describe("gathering", () => {
  it.effect("an update that brings too few elements names the parameter and writes nothing; the next one works", () =>
    Effect.gen(function* () {
      const engine = make()
      const transform = mxfp8({ accumulatorLimit: 1024 })
      const work = Effect.gen(function* () {
        const tensor = yield* emptyQuantized([4, 64], mxfp8Recipe("rceil", "swizzled"))
        tensor.data.storage.bytes!.fill(0xd7)
        const op = (from: number, to: number) => ({
          paramName: "experts.weight",
          region: [[from, to] as const, [0, 64] as const],
          tensor
        })
        const update = (parts: ReadonlyArray<readonly [number, number]>) =>
          Effect.scoped(
            Effect.gen(function* () {
              const prepared = yield* Effect.forEach(parts, ([from, to]) =>
                Effect.map(transform.prepareRecv(op(from, to)), (buffers) => ({ op: op(from, to), buffers }))
              )
              for (const { buffers } of prepared) yield* engine.fill(buffers[0]!, 0x3f)
              for (const { op: one, buffers } of prepared) yield* transform.finalizeRecv(one, buffers)
            })
          )
        for (const parts of [
          [[0, 2]],
          [
            [0, 2],
            [0, 2],
            [2, 4]
          ]
        ] as const) {
          const failure = yield* Effect.flip(update(parts))
          assert.strictEqual(failure._tag, "TransformError")
          assert.strictEqual(failure.reason._tag, "IncompleteTensor")
          assert.strictEqual(failure.reason.paramName, "experts.weight")
          assert.isTrue(tensor.data.storage.bytes!.every((byte) => byte === 0xd7))
        }
        // The limit holds one gathering: those of failed updates are gone.
        yield* update([
          [0, 1],
          [1, 4]
        ])
        assert.isTrue(tensor.data.storage.bytes!.every((byte) => byte !== 0xd7))
      })
      yield* Effect.scoped(Effect.provideService(work, TensorEngine, engine))
    })
  )

  it.effect("a tensor is quantized once, whatever the number of its transfers", () =>
    Effect.gen(function* () {
      const reference = make()
      let calls = 0
      const engine: TensorEngineShape = {
        ...reference,
        quantize: (source, destination) => {
          calls += 1
          return reference.quantize(source, destination)
        }
      }
      const transform = mxfp8()
      const work = Effect.gen(function* () {
        const tensor = yield* emptyQuantized([4, 64], mxfp8Recipe("rceil", "swizzled"))
        const ops = [0, 1, 2, 3].map((row) => ({
          paramName: "w",
          region: [[row, row + 1] as const, [0, 64] as const],
          tensor
        }))
        for (let round = 1; round <= 2; round++) {
          const update = Effect.gen(function* () {
            const buffers = yield* Effect.forEach(ops, (op) => transform.prepareRecv(op))
            for (const [buffer] of buffers) yield* engine.fill(buffer!, 0x3c)
            for (const [at, op] of ops.entries()) yield* transform.finalizeRecv(op, buffers[at]!)
          })
          yield* Effect.scoped(update)
          assert.strictEqual(calls, round)
        }
      })
      yield* Effect.scoped(Effect.provideService(work, TensorEngine, engine))
    })
  )

  it.effect("buffers are counted in the estimate", () =>
    Effect.sync(() => {
      const plans = plansOf(roster(1), roster(1, 1), 2)
      const elements = 12 * 96 + 5 * 192 + 2 * 3 * 64
      const bytes = (options: Mxfp8Options, layout: "rowMajor" | "swizzled") =>
        estimatePlans(plans, hostLinkSpeeds, {
          transformBytes: quantizeBufferBytes(options, { destinationRecipe: () => mxfp8Recipe("rceil", layout) })
        }).ranks.map(({ transformBytes, peakBytes, sourceBytes, destinationBytes }) => {
          assert.strictEqual(peakBytes, sourceBytes + destinationBytes + transformBytes)
          return transformBytes
        })
      assert.deepStrictEqual(bytes({}, "rowMajor"), [0, 2 * elements])
      assert.deepStrictEqual(bytes({}, "swizzled"), [0, 2 * elements + elements / 32])
      assert.deepStrictEqual(bytes({ side: "sender" }, "rowMajor"), [elements + elements / 32, 0])
      assert.deepStrictEqual(bytes({ side: "sender" }, "swizzled"), [elements + elements / 32, elements / 32])
      assert.deepStrictEqual(bytes({ parameters: ["*up*"] }, "rowMajor"), [0, 2 * 12 * 96])
      // What is stored in the recipe's form takes its codes and scales, not the plan's type.
      const destinationBytes = quantizedDestinationBytes(mxfp8Recipe("rceil"), ["*"])
      const { ranks } = estimatePlans(plans, hostLinkSpeeds, { destinationBytes })
      assert.deepStrictEqual(
        ranks.map((rank) => rank.destinationBytes),
        [0, elements + elements / 32]
      )
    })
  )
})

describe("composition", () => {
  it("orders that cannot be are refused, by name", () => {
    const order = (...transforms: ReadonlyArray<ReshardTransform>) => {
      const made = compose(transforms)
      return made._tag === "Failure" ? `${made.failure.reason._tag} ${made.failure.reason.remedy}` : "composed"
    }
    const bf16 = cast({ wireDtype: "bfloat16" })
    assert.strictEqual(order(mxfp8({ side: "sender" }), bf16), "InvalidComposition Put it last.")
    assert.strictEqual(order(bf16, mxfp8()), "InvalidComposition Put it first.")
    assert.strictEqual(order(), "InvalidComposition Name at least one transform.")
    assert.strictEqual(order(bf16, bf16), "InvalidComposition Name it once.")
    assert.strictEqual(order(bf16, mxfp8({ side: "sender" })), "composed")
    assert.strictEqual(order(mxfp8(), cast({ wireDtype: "float16" })), "composed")
  })

  it.live("stages are undone in reverse, collocated and apart, each for its parameters", () => {
    const plans = plansOf(roster(2), roster(3, 1), 4)
    return runCluster({ size: 4 }, (rank) =>
      Effect.gen(function* () {
        const plan = plans[rank]!
        const wide = yield* plainDict(plan.destinationTensors)
        const source = yield* plainDict(plan.sourceTensors, 2)
        yield* executeReshardPlan(plan, source, wide)
        // float32 holds bfloat16, so that the second stage changes nothing but what travels.
        const made = compose([mxfp8({ rule: "rceil" }), cast({ wireDtype: "float32" })])
        assert.strictEqual(made._tag, "Success")
        if (made._tag !== "Success") return
        for (const layout of ["rowMajor", "swizzled"] as const) {
          const destination = yield* quantizedDict(plan.destinationTensors, mxfp8Recipe("rceil", layout))
          poison(destination)
          yield* executeReshardPlan(plan, source, destination, { transform: made.success })
          if (destination !== undefined) yield* expectQuantized(destination, wide!, layout)
        }
        const mixed = new Map<string, Tensor | QuantizedTensor>()
        for (const { name, shape, dtype } of plan.destinationTensors) {
          const engine = yield* TensorEngine
          mixed.set(
            name,
            name.includes("up") ? yield* emptyQuantized(shape, mxfp8Recipe()) : yield* engine.allocate(dtype, shape)
          )
        }
        const chosen = firstOf([
          forParameters(["*up*"], mxfp8({ side: "sender" })),
          forParameters(["*down*"], identity)
        ])
        assert.isFalse(chosen.shouldTransform("a.experts.weight"))
        const destination = mixed.size === 0 ? undefined : tensorDict(mixed)
        poison(destination)
        yield* executeReshardPlan(plan, source, destination, { transform: chosen })
        for (const [name, tensor] of mixed) {
          if (isQuantized(tensor)) yield* expectQuantized(tensorDict([[name, tensor]]), wide!, "chosen")
          else assert.deepStrictEqual(tensor.storage.bytes, (wide!.tensors.get(name) as Tensor).storage.bytes, name)
        }
      })
    )
  })
})
