// SPDX-License-Identifier: Apache-2.0
/**
 * Block scaling has the recorded bits and those of the reference, whatever the shapes, and leaves the JS thread free. Run
 * again with narrower kernels.
 */
import { assert, describe, it } from "@effect/vitest"
import type { TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { mxBlockSize, mxfp8Recipe, type QuantizedTensor, scaleRules } from "@tensorferry/core/tensor/QuantizedTensor"
import { checkMxfp8, RecordedMxfp8 } from "@tensorferry/golden/mxfp8"
import { readGolden } from "@tensorferry/golden/readGolden"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Schema from "effect/Schema"
import { makeEngine, makeRandom } from "./support.ts"

const recorded = Schema.decodeUnknownSync(RecordedMxfp8)(readGolden("mxfp8"))

const quantized = Effect.fnUntraced(function* (
  engine: TensorEngineShape,
  shape: ReadonlyArray<number>,
  rule: (typeof scaleRules)[number]
) {
  const data = yield* engine.allocate("float8_e4m3fn", shape)
  const scale = yield* engine.allocate("float8_e8m0fnu", [...shape.slice(0, -1), shape.at(-1)! / mxBlockSize])
  return { _tag: "QuantizedTensor", data, scale, recipe: mxfp8Recipe(rule) } satisfies QuantizedTensor
})

describe("mxfp8", () => {
  it.live("recorded results, bit by bit", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const verdicts = yield* checkMxfp8(engine, recorded)
      assert.deepStrictEqual(
        verdicts.filter(({ fault }) => fault !== undefined),
        []
      )
    })
  )

  it.live("random bits of every type and rule, over many sizes of work", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const reference = ReferenceEngine.make()
      const random = makeRandom(23)
      for (let round = 0; round < 24; round++) {
        const dtype = (["bfloat16", "float16", "float32"] as const)[round % 3]!
        const rule = scaleRules[(round >> 1) % 3]!
        const shape = [1 + random.below(round === 0 ? 600 : 40), mxBlockSize * (1 + random.below(40))]
        const [mine, theirs] = [yield* engine.allocate(dtype, shape), yield* reference.allocate(dtype, shape)]
        const bytes = theirs.storage.bytes!
        for (let at = 0; at < bytes.length; at++) bytes[at] = random.below(256)
        // Random bits have a NaN or an infinity in nearly every block of 16-bit floats: most exponents are made smaller.
        const size = dtype === "float32" ? 4 : 2
        if (round % 4 !== 3) for (let at = size - 1; at < bytes.length; at += size) bytes[at]! &= 0xbf
        mine.storage.bytes!.set(bytes)
        const [to, wanted] = [yield* quantized(engine, shape, rule), yield* quantized(reference, shape, rule)]
        yield* engine.fill(to.data, 0xd7)
        yield* engine.fill(to.scale, 0xd7)
        yield* engine.quantize(mine, to)
        yield* reference.quantize(theirs, wanted)
        const name = `round ${round}: ${dtype} [${shape}] by ${rule}`
        assert.isTrue(Buffer.compare(to.scale.storage.bytes!, wanted.scale.storage.bytes!) === 0, `${name}: scales`)
        assert.isTrue(Buffer.compare(to.data.storage.bytes!, wanted.data.storage.bytes!) === 0, `${name}: data`)
        const [back, expected] = [yield* engine.allocate(dtype, shape), yield* reference.allocate(dtype, shape)]
        yield* engine.dequantize(to, back)
        yield* reference.dequantize(wanted, expected)
        assert.isTrue(Buffer.compare(back.storage.bytes!, expected.storage.bytes!) === 0, `${name}: values`)
      }
    })
  )

  it.live("runs off the JS thread, and interruption waits until it has stopped", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const source = yield* engine.allocate("bfloat16", [4096, 4096])
      yield* engine.fill(source, 0x3c)
      const to = yield* quantized(engine, [4096, 4096], "rceil")
      const work = yield* Effect.forkChild(engine.quantize(source, to), { startImmediately: true })
      // The call has returned while the work goes on, or the fiber would be done by now.
      assert.isUndefined(work.pollUnsafe())
      yield* Fiber.interrupt(work)
      yield* engine.fill(to.data, 0xd7)
      assert.isTrue(to.data.storage.bytes!.every((byte) => byte === 0xd7))
      yield* engine.quantize(source, to)
      assert.isTrue(to.data.storage.bytes!.every((byte) => byte !== 0xd7))
    })
  )
})
