// SPDX-License-Identifier: Apache-2.0
/** Ten thousand updates by the same programs of a wire: memory, descriptors and threads stay as after the first thousand. */
import { readdirSync, readFileSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import type { Message } from "@tensorferry/core/ir/Message"
import type { CopyDriverShape } from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"

const updates = 10_000
/** Small ones go another way than those of several chunks. */
const lengths = [4096, 3 * 2 ** 20 + 5]

const counted = () => ({
  descriptors: readdirSync("/proc/self/fd").length,
  threads: readdirSync("/proc/self/task").length,
  mebibytes: Number(/VmRSS:\s+(\d+)/.exec(readFileSync("/proc/self/status", "utf8"))![1]) / 1024
})

/**
 * Defines the test of the drivers that `driverOf` makes for two ranks of this process. `lateDescriptors` is how many a wire may
 * open whenever it first needs them.
 */
export const describeUpdates = (
  name: string,
  engineLayer: Layer.Layer<TensorEngine, BackendError>,
  driverOf: (group: ProcessGroupShape) => Effect.Effect<CopyDriverShape, BackendError, Scope.Scope>,
  lateDescriptors = 0
): void => {
  describe(name, () => {
    it.live(
      `${updates} of them leave nothing behind`,
      () =>
        Effect.gen(function* () {
          const engine = yield* TensorEngine
          const drivers = yield* Effect.forEach(yield* makeInProcessGroups(2), driverOf)
          const programs = yield* Effect.forEach(lengths, (length) =>
            Effect.forEach(
              drivers,
              Effect.fnUntraced(function* (driver, rank) {
                const tensor = yield* engine.allocate("uint8", [length])
                const message: Message = {
                  direction: rank === 0 ? "send" : "recv",
                  peer: 1 - rank,
                  index: 0,
                  byteLength: length,
                  parts: [{ taskId: 0, part: 0, tensor }]
                }
                return { tensor, program: yield* driver.prepare([message]) }
              }),
              { concurrency: "unbounded" }
            )
          )
          let settled = counted()
          for (let update = 0; update < updates; update++) {
            const ends = programs[update % 100 === 0 ? 1 : 0]!
            ends[0]!.tensor.storage.bytes![update % 4096] = update
            yield* Effect.forEach(
              drivers,
              (driver, rank) => Effect.flatMap(driver.start(ends[rank]!.program), (run) => run.await),
              { concurrency: "unbounded", discard: true }
            )
            assert.strictEqual(ends[1]!.tensor.storage.bytes![update % 4096], update & 255)
            if (update === 1000) settled = counted()
          }
          const after = counted()
          assert.isAtMost(after.descriptors, settled.descriptors + lateDescriptors)
          assert.strictEqual(after.threads, settled.threads)
          assert.isBelow(after.mebibytes - settled.mebibytes, 64)
        }).pipe(Effect.scoped, Effect.provide(engineLayer)),
      300_000
    )
  })
}
