// SPDX-License-Identifier: Apache-2.0
/** Tensors that one file of a folder of shards has whole are read from where they lie; those in pieces are put together. */
import { assert, it } from "@effect/vitest"
import { descriptor as hostBackend } from "@tensorferry/backend-torch-copy"
import { fullRegion } from "@tensorferry/core/base/Region"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { tensorBytes } from "@tensorferry/core/tensor/Tensor"
import { openModel } from "@tensorferry/model/openModel"
import { loadRegions, storedOf } from "@tensorferry/model/stream/CheckpointStream"
import * as Effect from "effect/Effect"
import { scratch } from "../support/command.ts"
import { pattern } from "../support/models.ts"
import { writeSharded } from "../support/sharded.ts"

it.live("a whole tensor has a place in its file, a cut one has none, and both are what the files hold", () =>
  Effect.gen(function* () {
    using folder = scratch()
    const [whole, cut] = [pattern(64, 1), pattern(64, 2)]
    const part = (name: string, from: number, to: number, data: Uint8Array) => ({
      ...{ name, dtype: "uint8" as const, data },
      region: [
        [from, to],
        [0, 8]
      ] as const
    })
    const tensors = ["cut", "whole"].map((name) => ({ name, dtype: "uint8" as const, shape: [8, 8] }))
    yield* Effect.promise(() =>
      writeSharded(folder.path, tensors, [
        [part("cut", 0, 4, cut.slice(0, 32)), part("whole", 0, 8, whole)],
        [part("cut", 4, 8, cut.slice(32)), part("whole", 0, 8, whole)]
      ])
    )
    const model = yield* openModel(folder.path)
    const stored = storedOf(model)!
    assert.isUndefined(stored.placeOf("cut"))
    assert.isUndefined(stored.placeOf("absent"))
    const { file, start } = stored.placeOf("whole")!
    const read = new Uint8Array(64)
    yield* stored.readBytes(file, start, read)
    assert.deepStrictEqual(read, whole)
    const engine = yield* TensorEngine
    const reads = yield* Effect.forEach(["cut", "whole"], (name) =>
      Effect.map(engine.allocate("uint8", [8, 8]), (into) => ({ name, region: fullRegion([8, 8]), into }))
    )
    yield* loadRegions(model, reads)
    assert.deepStrictEqual(tensorBytes(reads[0]!.into), cut)
    assert.deepStrictEqual(tensorBytes(reads[1]!.into), whole)
  }).pipe(Effect.scoped, Effect.provide(hostBackend.tensorEngine!({})))
)
