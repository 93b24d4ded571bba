// SPDX-License-Identifier: Apache-2.0
/** Devices store the recorded bits of every quantized form and rule. The usual run holds them against the reference engine. */
import { assert, describe, it } from "@effect/vitest"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { checkEngineForms, formSets } from "@tensorferry/golden/engineForms"
import { readGolden } from "@tensorferry/golden/readGolden"
import { assertClean, resetSimulator } from "@tensorferry/simulators/gpu"
import { engineOptions } from "@tensorferry/simulators/gpuEngine"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { afterEach, beforeEach } from "vitest"
import * as DeviceEngine from "../src/TensorEngine.ts"

beforeEach(() => resetSimulator("seed=1"))
afterEach(() => assertClean())

describe("quantized forms on a device", () => {
  for (const [set, form] of Object.entries(formSets)) {
    it.live(`${form} of ${set}: recorded results, bit by bit`, () =>
      Effect.gen(function* () {
        const device = Context.get(yield* Layer.build(DeviceEngine.layer(engineOptions)), TensorEngine)
        const verdicts = yield* checkEngineForms(device, set, readGolden(set))
        assert.isAbove(verdicts.length, 100)
        assert.deepStrictEqual(
          verdicts.filter(({ fault }) => fault !== undefined),
          []
        )
      }).pipe(Effect.scoped)
    )
  }
})
