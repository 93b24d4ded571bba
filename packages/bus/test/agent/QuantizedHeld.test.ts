// SPDX-License-Identifier: Apache-2.0
/**
 * A side that holds weights quantized: its codes and scales are what the recorded references of the named rule have, however
 * both sides cut the weight. What the form does not fit is refused by name.
 */
import { assert, describe, it } from "@effect/vitest"
import { byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import { deviceMesh } from "@tensorferry/core/layout/DeviceMesh"
import { meshLayout, type Placement, partial, replicate, shard } from "@tensorferry/core/layout/Placement"
import { localShard } from "@tensorferry/core/layout/ShardIntervals"
import type { HostMemoryShape } from "@tensorferry/core/service/HostMemory"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { inMemory, resolver } from "@tensorferry/golden/quantizedValues"
import { readGolden } from "@tensorferry/golden/readGolden"
import { toFloats, writeFloats } from "@tensorferry/model/values/codes"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { RegisterTensors } from "../../src/command/Command.ts"
import { encodeOwnPayload } from "../../src/payload/OwnPayload.ts"
import { encodeSharedTensor } from "../../src/payload/TensorCodec.ts"
import type { Value } from "../../src/wire/Value.ts"
import { makeCluster } from "../cluster.ts"
import { makeTensor } from "../tensors.ts"
import { all } from "./twoAgents.ts"

interface Recorded {
  readonly id: string
  readonly dtype: DType
  readonly shape: ReadonlyArray<number>
  readonly input: string
}
const fp8 = (readGolden("fp8_block") as { readonly cases: ReadonlyArray<Recorded & { readonly outputs: never }> }).cases
const mxfp8 = (readGolden("mxfp8") as { readonly cases: ReadonlyArray<Recorded & { readonly variants: never }> }).cases

/** A tensor of a side as one array, and how it is cut. */
interface Whole {
  readonly dtype: DType
  readonly shape: ReadonlyArray<number>
  readonly placement: Placement
  readonly bytes?: Uint8Array
}

type Side = Readonly<Record<string, Whole>>

/** The bytes of a rank's part, or what they are put into. */
const partOf = ({ dtype, shape, placement }: Whole, ranks: number, rank: number) => {
  const layout = Result.getOrThrow(meshLayout(Result.getOrThrow(deviceMesh({ shape: [ranks] })), [placement]))
  const { intervals, shape: local } = Result.getOrThrow(localShard(layout, shape, rank))
  const size = byteLengthOf(dtype, 1)
  const runs: Array<readonly [whole: number, own: number, length: number]> = []
  const [[from = 0, to = 0] = [], [first = 0, last = 0] = []] = intervals.map(([held]) => held ?? [])
  for (let row = from; row < to; row++)
    runs.push([(row * shape[1]! + first) * size, (row - from) * (last - first) * size, (last - first) * size])
  return { local, runs }
}

const payloadOf = Effect.fnUntraced(function* (
  memory: HostMemoryShape,
  name: string,
  { dtype, shape, strides, byteOffset, storage }: Tensor,
  placement: Placement
) {
  const payload = encodeSharedTensor({ dtype, shape, strides, byteOffset, memory: yield* memory.share(storage) })
  return encodeOwnPayload({
    _tag: "NamedTensor",
    name,
    payload,
    placements: [{ ...placement }] as ReadonlyArray<Value>
  })
})

/** Both sides with their tensors; registers them, with a form on the side that has one. */
const meet = Effect.fnUntraced(function* (
  sides: readonly [trainer: Side, engine: Side],
  ranks: readonly [number, number],
  forms: readonly [string | null, string | null],
  more: Partial<ConstructorParameters<typeof RegisterTensors>[0]> = {}
) {
  const { memory, start } = yield* makeCluster()
  const all_ = ranks.flatMap((count, side) => Array.from({ length: count }, (_, rank) => ({ side, rank })))
  const made = yield* Effect.forEach(
    all_,
    Effect.fnUntraced(function* ({ side, rank }, agent) {
      const { client } = yield* start(agent)
      const held = new Map<string, Tensor>()
      for (const [name, whole] of Object.entries(sides[side]!)) {
        const { local, runs } = partOf(whole, ranks[side]!, rank)
        const tensor = yield* makeTensor(memory, whole.dtype, local)
        for (const [from, to, length] of whole.bytes === undefined ? [] : runs)
          tensor.storage.bytes!.set(whole.bytes!.subarray(from, from + length), to)
        held.set(name, tensor)
      }
      return { side, rank, client, held }
    })
  )
  const names = ["engine", "trainer"] as const
  yield* all(
    made.map(({ client, side }) =>
      client.initPair({
        pair: "p",
        local: names[1 - side]!,
        remote: names[side]!,
        mesh: [ranks[side]!],
        placements: [replicate]
      })
    )
  )
  const register = all(
    made.map(({ client, side, held }) =>
      Effect.gen(function* () {
        const tensors = yield* Effect.forEach(held, ([name, tensor]) =>
          Effect.map(
            payloadOf(memory, name, tensor, sides[side]![name]!.placement),
            (payload) => ["p", payload] as const
          )
        )
        const fields = { batchId: "weights", tensors, form: forms[side]!, ...more }
        return yield* Effect.result(client.send(new RegisterTensors(fields)))
      })
    )
  )
  return { made, register }
})

/** The whole tensor of a side, put together of what its ranks hold. */
const joined = (
  whole: Whole,
  name: string,
  ranks: number,
  made: ReadonlyArray<{ readonly rank: number; readonly held: ReadonlyMap<string, Tensor> }>
): Uint8Array => {
  const bytes = new Uint8Array(
    byteLengthOf(
      whole.dtype,
      whole.shape.reduce((a, b) => a * b, 1)
    )
  ).fill(0x5a)
  for (const { rank, held } of made)
    for (const [at, from, length] of partOf(whole, ranks, rank).runs)
      bytes.set(held.get(name)!.storage.bytes!.subarray(from, from + length), at)
  return bytes
}

/** Pushes a recorded weight beside a plain one, and compares codes and scales with the recording; then reads them back. */
const compare = Effect.fnUntraced(function* (
  { dtype, input, shape }: Recorded,
  form: string,
  ending: string,
  scale: Pick<Whole, "dtype" | "shape">,
  wanted: readonly [codes: Uint8Array, scales: Uint8Array],
  ranks: readonly [number, number],
  placements: readonly [Placement, Placement]
) {
  const plain = Uint8Array.from({ length: 4 * 12 }, (_, at) => at)
  const trainer: Side = {
    w: { dtype, shape, placement: placements[0], bytes: inMemory(input, dtype) },
    norm: { dtype: "float32", shape: [4, 3], placement: shard(0), bytes: plain }
  }
  const engine: Side = {
    w: { dtype: "float8_e4m3fn", shape, placement: placements[1] },
    [`w${ending}`]: { ...scale, placement: placements[1] },
    norm: { dtype: "float32", shape: [4, 3], placement: replicate }
  }
  const { made, register } = yield* meet([trainer, engine], ranks, [null, form])
  for (const registered of yield* register)
    assert.isTrue(Result.isSuccess(registered), Result.isFailure(registered) ? registered.failure.message : "")
  yield* all(made.map(({ client, side }) => client.transfer("weights", side === 0 ? "send" : "recv")))
  const engines = made.filter(({ side }) => side === 1)
  const found = [
    joined(engine.w!, "w", ranks[1], engines),
    joined(engine[`w${ending}`]!, `w${ending}`, ranks[1], engines)
  ]
  assert.deepStrictEqual(Buffer.from(found[0]!).toString("hex"), Buffer.from(wanted[0]).toString("hex"))
  assert.deepStrictEqual(Buffer.from(found[1]!).toString("hex"), Buffer.from(wanted[1]).toString("hex"))
  for (const { held } of engines) assert.isTrue(Buffer.from(plain).equals(held.get("norm")!.storage.bytes!))
  // The other way, values come back: what the codes stand for, in the type that travels.
  for (const { side, held } of made) if (side === 0) held.get("w")!.storage.bytes!.fill(0xa5)
  yield* all(made.map(({ client, side }) => client.transfer("weights", side === 0 ? "recv" : "send")))
  const back = joined(
    trainer.w!,
    "w",
    ranks[0],
    made.filter(({ side }) => side === 0)
  )
  assert.deepStrictEqual(Buffer.from(back), Buffer.from(valuesOf(wanted, shape, scale, dtype)))
})

/** What codes and scales stand for, rounded to what travels and then to a type. */
const valuesOf = (
  [data, scales]: readonly [codes: Uint8Array, scales: Uint8Array],
  [rows, columns]: ReadonlyArray<number>,
  { dtype, shape }: Pick<Whole, "dtype" | "shape">,
  target: DType
): Uint8Array => {
  const values = toFloats("float8_e4m3fn", data)
  const factors =
    dtype === "uint8" ? Float32Array.from(scales, (exponent) => 2 ** (exponent - 127)) : toFloats(dtype, scales)
  const [high, wide] = [block(rows!, shape[0]!), block(columns!, shape[1]!)]
  const products = values.map((value, at) => {
    const [row, column] = [Math.floor(at / columns!), at % columns!]
    return value * factors[Math.floor(row / high) * shape[1]! + Math.floor(column / wide)]!
  })
  const travelling = new Uint8Array(2 * products.length)
  writeFloats("bfloat16", products, travelling)
  const arrived = new Uint8Array(byteLengthOf(target, products.length))
  writeFloats(target as "float32", toFloats("bfloat16", travelling), arrived)
  return arrived
}

/** The length of blocks of which so many lie along a dimension. */
const block = (length: number, count: number): number => 2 ** Math.ceil(Math.log2(length / count))

const live = <E>(title: string, test: () => Effect.Effect<unknown, E, Scope.Scope>) =>
  it.live(title, () => Effect.scoped(test()))

describe("codes and scales of fp8 blocks", () => {
  for (const [id, form, block, ranks, placements] of [
    ["v002", "fp8-block", [128, 128], [2, 1], [shard(0), replicate]],
    ["v002", "fp8-block:slime_offline", [128, 128], [3, 2], [shard(1), shard(1)]],
    ["v010", "fp8-block-64x64", [64, 64], [2, 3], [shard(0), shard(1)]],
    ["v000", "fp8-block", [128, 128], [2, 1], [shard(0), replicate]],
    ["v000", "fp8-block:te_pow2", [128, 128], [3, 2], [shard(1), replicate]],
    ["v012", "fp8-block-1x128", [1, 128], [2, 3], [shard(1), shard(0)]],
    ["v039", "fp8-block-4x4:vllm_ue8m0", [4, 4], [3, 4], [shard(0), shard(0)]]
  ] as const)
    live(`are those of ${id} by ${form}, from ${ranks[0]} ranks to ${ranks[1]}`, () => {
      const recorded = fp8.find((one) => one.id === id)!
      const get = resolver(recorded.outputs, form.split(":")[1] ?? "deepgemm_fp32")
      const wanted = [
        Uint8Array.from(Buffer.from(get("data") as string, "hex")),
        inMemory(get("scale") as string, "float32")
      ] as const
      const scale = recorded.shape.map((length, dim) => Math.ceil(length / block[dim]!))
      return compare(
        recorded,
        form,
        "_scale_inv",
        { dtype: "float32", shape: scale },
        wanted,
        ranks,
        placements as readonly [Placement, Placement]
      )
    })
})

describe("codes and scales of mxfp8", () => {
  const whole = mxfp8.filter(
    ({ dtype, shape, variants }) =>
      variants !== undefined && dtype === "bfloat16" && shape.length === 2 && shape[0]! > 1
  )
  for (const rule of ["ocp_floor", "rceil"] as const)
    live(`are those of every recorded matrix by ${rule}`, () =>
      Effect.gen(function* () {
        let count = 0
        for (const { variants, ...recorded } of whole) {
          const found = (variants as Record<string, { data: string; scales: string; undefined_blocks?: unknown }>)[rule]
          // Blocks that the rule leaves undefined, and codes that are not a number, have more than one form.
          if (found === undefined || found.undefined_blocks !== undefined || /7f|ff/.test(found.data)) continue
          count += 1
          const wanted = [Buffer.from(found.data, "hex"), Buffer.from(found.scales, "hex")] as const
          const [rows, columns] = recorded.shape as [number, number]
          yield* Effect.scoped(
            compare(
              recorded,
              `mxfp8:${rule}`,
              "_scale",
              { dtype: "uint8", shape: [rows, columns / 32] },
              [Uint8Array.from(wanted[0]), Uint8Array.from(wanted[1])],
              [2, 2],
              [shard(1), shard(0)]
            )
          )
        }
        assert.isAtLeast(count, 5)
      })
    )
})

const weight = (placement: Placement = replicate, dtype: DType = "bfloat16"): Whole => ({
  dtype,
  shape: [256, 128],
  placement
})
const codes = (placement: Placement = replicate): Whole => ({ ...weight(placement), dtype: "float8_e4m3fn" })
const scales = (shape: ReadonlyArray<number> = [2, 1], placement: Placement = replicate, dtype: DType = "float32") => ({
  dtype,
  shape,
  placement
})

/** All ranks of one side each, or only those of the engine, are refused with these words. */
const refused = Effect.fnUntraced(function* (
  sides: readonly [Side, Side],
  forms: readonly [string | null, string | null],
  tag: string,
  words: ReadonlyArray<string>,
  { ranks = [1, 1] as readonly [number, number], more = {} } = {}
) {
  const { register, made } = yield* meet(sides, ranks, forms, { timeout: 0.4, ...more })
  for (const [at, registered] of (yield* register).entries()) {
    assert.isTrue(Result.isFailure(registered))
    if (Result.isSuccess(registered)) continue
    const { reason, message } = registered.failure
    if (made[at]!.side === 0 && tag !== "BatchMismatch") continue
    assert.strictEqual(reason._tag, tag, message)
    for (const word of words) assert.include(message, word)
  }
})

describe("a form that does not fit", () => {
  const trainer = { w: weight() }
  for (const [title, engine, form, words] of [
    ["codes without scales", { w: codes() }, "fp8-block", ["w has codes", "w_scale_inv or w_scale"]],
    ["scales of other blocks", { w: codes(), w_scale: scales([4, 2]) }, "fp8-block", ["are [4,2]", "has [2,1]"]],
    [
      "scales of another type",
      { w: codes(), w_scale: scales([2, 1], replicate, "bfloat16") },
      "fp8-block",
      ["float32"]
    ],
    ["no codes at all", { w: weight() }, "fp8-block", ["no tensor has codes"]],
    [
      "scales that lie in another way",
      { w: codes(shard(0)), w_scale: scales([2, 1], replicate) },
      "fp8-block",
      ["lie in different ways"]
    ]
  ] as const)
    live(`${title}: refused before others are asked`, () =>
      refused([trainer, engine as Side], [null, form], "UnsupportedTensor", words)
    )

  for (const [form, words] of [
    ["fp8-blok", 'no form "fp8-blok"'],
    ["fp8-block:nobody", 'no rule "nobody"'],
    ["mxfp8:nobody", 'no rule "nobody"'],
    ["nvfp4", "more than one rank knows"]
  ] as const)
    live(`${form}: no form`, () =>
      refused([trainer, { w: codes(), w_scale: scales() }], [null, form], "InvalidCommand", [words])
    )

  live("with changes: refused", () =>
    refused([trainer, { w: codes(), w_scale: scales() }], [null, "fp8-block"], "InvalidCommand", ["moves changes"], {
      more: { changesBytes: 100 }
    })
  )

  live("ranks that part a block: refused on all ranks", () =>
    refused(
      [trainer, { w: codes(shard(0)), w_scale: scales([3, 1], shard(0)) }],
      [null, "fp8-block"],
      "BatchMismatch",
      ["parts a block of 128"],
      { ranks: [1, 3] }
    )
  )

  live("ranks that part a row with one scale: refused on all ranks", () =>
    refused(
      [trainer, { w: codes(shard(1)), w_scale: { ...scales([256, 2], shard(1)) } }],
      [null, "fp8-channel"],
      "BatchMismatch",
      ["parts a block of all"],
      { ranks: [1, 2] }
    )
  )

  live("a form on both sides, contributions and whole numbers: refused on all ranks", () =>
    Effect.gen(function* () {
      const engine = { w: codes(), w_scale: scales() }
      yield* refused([engine, engine], ["fp8-block", "fp8-block"], "BatchMismatch", ["on both sides"])
      yield* refused([{ w: weight(partial("sum")) }, engine], [null, "fp8-block"], "BatchMismatch", ["contributions"])
    })
  )
})
