// SPDX-License-Identifier: Apache-2.0
/**
 * Updates write where the weights have always been: memory that somebody noted by its address before the first update shows
 * every later one, padding stays as it was, and only an exchange says that addresses changed.
 */
import { closeSync, openSync, readSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import { makeRefitSession } from "@tensorferry/core/refit/RefitSession"
import type { RefitTensor } from "@tensorferry/core/refit/RefitSpec"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { mxfp8Recipe, type QuantizedTensor } from "@tensorferry/core/tensor/QuantizedTensor"
import { sliceTensor, type Tensor } from "@tensorferry/core/tensor/Tensor"
import { swizzledLength } from "@tensorferry/core/transform/ScaleLayouts"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { makeEngine } from "./support.ts"

/** Memory of this process by its address, past everything that knows of tensors. */
const readAt = (address: bigint, length: number): Uint8Array => {
  const memory = openSync("/proc/self/mem", "r")
  const bytes = new Uint8Array(length)
  assert.strictEqual(readSync(memory, bytes, 0, length, address), length)
  closeSync(memory)
  return bytes
}

const poison = 0xd7

const poisoned = (engine: TensorEngineShape, dtype: Tensor["dtype"], shape: ReadonlyArray<number>) =>
  Effect.tap(engine.allocate(dtype, shape), (tensor) => engine.fill(tensor, poison))

const floatAt = (bytes: Uint8Array, at: number): number => new DataView(bytes.buffer).getFloat32(4 * at, true)

describe.skipIf(process.platform !== "linux")("weights that a reader uses by their address", () => {
  for (const publish of ["copy", "exchange"] as const) {
    it.live(`${publish}: three updates of padded and quantized weights`, () =>
      Effect.gen(function* () {
        const { engine } = yield* makeEngine()
        const program = Effect.gen(function* () {
          // [5, 6] within [8, 8]: two columns and three rows of padding.
          const padded = yield* poisoned(engine, "float32", [8, 8])
          const inner = (whole: Tensor) =>
            Result.getOrThrow(
              sliceTensor(whole, [
                [0, 5],
                [0, 6]
              ])
            )
          const quantized = Effect.gen(function* () {
            const data = yield* poisoned(engine, "float8_e4m3fn", [3, 64])
            const scale = yield* poisoned(engine, "float8_e8m0fnu", [swizzledLength(3, 2)])
            const recipe = mxfp8Recipe("rceil", "swizzled")
            return { _tag: "QuantizedTensor", data, scale, recipe } satisfies QuantizedTensor
          })
          const [live, block] = [inner(padded), yield* quantized]
          const spares =
            publish === "exchange"
              ? { w: { spare: inner(yield* poisoned(engine, "float32", [8, 8])) }, q: { spare: yield* quantized } }
              : { w: {}, q: {} }
          const tensors = new Map<string, RefitTensor>([
            ["w", { dtype: "float32", shape: [5, 6], live, ...spares.w }],
            ["q", { dtype: "bfloat16", shape: [3, 64], live: block, ...spares.q }]
          ])
          const addresses = [padded, block.data, block.scale].map(({ storage }) => storage.address)
          const session = yield* makeRefitSession({ tensors, publish })
          const update = Effect.fnUntraced(function* (round: number) {
            yield* session.begin({ label: `${round}` })
            for (const rows of round % 2 === 0
              ? [[0, 5]]
              : [
                  [3, 5],
                  [0, 3]
                ]) {
              const [from, to] = rows as [number, number]
              const part = yield* engine.allocate("float32", [to - from, 6])
              const values = Float32Array.from({ length: (to - from) * 6 }, (_, at) => 100 * round + from * 6 + at)
              part.storage.bytes!.set(new Uint8Array(values.buffer))
              yield* session.add("w", part, {
                region: [
                  [from, to],
                  [0, 6]
                ]
              })
            }
            const wide = yield* engine.allocate("bfloat16", [3, 64])
            yield* engine.fill(wide, 0x3c + round)
            yield* session.add("q", wide)
            return yield* session.commit()
          })
          const seen: Array<string> = []
          for (let round = 0; round < 3; round++) {
            const { addressesChanged } = yield* update(round)
            assert.strictEqual(addressesChanged, publish === "exchange")
            const [now, data, scale] = [
              readAt(addresses[0]!, padded.storage.byteLength),
              readAt(addresses[1]!, block.data.storage.byteLength),
              readAt(addresses[2]!, block.scale.storage.byteLength)
            ]
            // Places alternate: the first update went to the spare, so the noted one shows the second, then stays.
            const shown = publish === "copy" ? round : round === 0 ? undefined : 1
            for (let at = 0; at < 64; at++) {
              const [row, column] = [Math.floor(at / 8), at % 8]
              const isInside = row < 5 && column < 6 && shown !== undefined
              const found = isInside ? floatAt(now, at) : Buffer.from(now.buffer, 4 * at, 4).toString("hex")
              assert.strictEqual(found, isInside ? 100 * shown + row * 6 + column : "d7d7d7d7", `round ${round}, ${at}`)
            }
            seen.push(Buffer.concat([data, scale]).toString("hex"))
            if (shown !== undefined) assert.isFalse(data.includes(poison))
            assert.deepStrictEqual(
              [padded, block.data, block.scale].map(({ storage }) => storage.address),
              addresses
            )
            yield* session.use(({ weights }) =>
              Effect.sync(() => {
                const used = weights.tensors.get("w") as Tensor
                assert.strictEqual(used.storage.address === addresses[0], publish === "copy" || round === 1)
              })
            )
          }
          assert.strictEqual(new Set(seen).size, publish === "copy" ? 3 : 2)
        })
        yield* Effect.scoped(Effect.provideService(program, TensorEngine, engine))
      })
    )
  }
})
