// SPDX-License-Identifier: Apache-2.0
/** Two ranks that were set up differently: both fail with an error that says how, and no byte moves. */
import { assert, describe, it } from "@effect/vitest"
import { type CopyServiceOptions, copyServiceLayer } from "@tensorferry/core/copy/CopyServiceLayer"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import type { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import { CopyService } from "@tensorferry/core/service/CopyService"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { tensorBytes } from "@tensorferry/core/tensor/Tensor"
import { loopbackLayer, makeLoopbackNetwork } from "@tensorferry/testing/Loopback"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { engine, driver as torchCopy } from "../support/inProcess.ts"

interface Setup {
  readonly driver: Layer.Layer<CopyDriver, unknown, ProcessGroup | TensorEngine>
  readonly options: CopyServiceOptions
  readonly dtype: "float32" | "int32"
  readonly length: number
  readonly submits: boolean
}

const poison = 0xa5

/** Rank 0 sends one tensor to rank 1; how both runs end, and whether rank 1's memory was left alone. */
const exchange = (setups: readonly [Setup, Setup]) =>
  Effect.scoped(
    Effect.gen(function* () {
      const groups = yield* makeInProcessGroups(2)
      return yield* Effect.forEach(
        groups,
        (group) => {
          const setup = setups[group.rank as 0 | 1]
          const services = copyServiceLayer(setup.driver, setup.options).pipe(
            Layer.provideMerge(engine),
            Layer.provideMerge(Layer.succeed(ProcessGroup, group))
          )
          const rank = Effect.gen(function* () {
            const service = yield* CopyService
            const kernels = yield* TensorEngine
            const tensor = yield* kernels.allocate(setup.dtype, [setup.length])
            yield* kernels.fill(tensor, group.rank === 0 ? 0x11 : poison)
            if (setup.submits) {
              const named = { paramName: "weight" }
              if (group.rank === 0) yield* service.submitSend(tensor, 1, 7, named)
              else yield* service.submitRecv(tensor, 0, 7, named)
            }
            const error = yield* Effect.flip(service.run())
            const untouched = tensorBytes(tensor)!.every((byte) => byte === (group.rank === 0 ? 0x11 : poison))
            return { error, untouched }
          })
          return Effect.scoped(Effect.provide(rank, services, { local: true }))
        },
        { concurrency: "unbounded" }
      )
    })
  )

const setup = (change: Partial<Setup> = {}): Setup => ({
  driver: torchCopy(),
  options: {},
  dtype: "float32",
  length: 5,
  submits: true,
  ...change
})

const cases: ReadonlyArray<readonly [what: string, other: () => Partial<Setup>, reason: string, says: RegExp]> = [
  [
    "two backends",
    () => ({ driver: loopbackLayer(makeLoopbackNetwork()) }),
    "Incompatible",
    /rank 0 runs backend torch-copy.*rank 1 runs backend loopback/
  ],
  ["two amounts of staging", () => ({ options: { stagingBytes: 2 ** 20 } }), "Incompatible", /staging bytes.*1048576/],
  ["two types", () => ({ dtype: "int32" }), "Mismatch", /float32.*int32|int32.*float32/],
  ["two lengths", () => ({ length: 4 }), "Mismatch", /5.*4|4.*5/],
  ["a partner that does not take part", () => ({ submits: false }), "PartnerMissing", /task 7|weight/]
]

describe("two ranks with", () => {
  for (const [what, other, reason, says] of cases) {
    it.live(`${what}: an error on both, and nothing moves`, () =>
      Effect.gen(function* () {
        for (const { error, untouched } of yield* exchange([setup(), setup(other())])) {
          assert.strictEqual(error.reason._tag, reason, error.message)
          assert.match(error.message, says)
          assert.isNotEmpty(error.reason.remedy)
          assert.isTrue(untouched)
        }
      })
    )
  }
})
