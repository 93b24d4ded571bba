// SPDX-License-Identifier: Apache-2.0
/** Ten thousand updates by the same program: memory, descriptors and threads stay as they were after the first thousand. */
import { readdirSync, readFileSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import type { Message } from "@tensorferry/core/ir/Message"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"
import { loadAddon } from "../src/Addon.ts"
import * as CopyDriver from "../src/CopyDriver.ts"
import { hostEngine } from "./support.ts"

const updates = 10_000
/** Small ones go another way than those of several chunks. */
const lengths = [4096, 3 * 2 ** 20 + 5]

const counted = () => ({
  descriptors: readdirSync("/proc/self/fd").length,
  threads: readdirSync("/proc/self/task").length,
  mebibytes: Number(/VmRSS:\s+(\d+)/.exec(readFileSync("/proc/self/status", "utf8"))![1]) / 1024
})

describe("updates", () => {
  it.live(
    `${updates} of them leave nothing behind`,
    () =>
      Effect.gen(function* () {
        const addon = yield* loadAddon
        const engine = yield* TensorEngine
        const groups = yield* makeInProcessGroups(2)
        const drivers = yield* Effect.forEach(groups, (group) => CopyDriver.make(addon, group, undefined, { lanes: 2 }))
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
            {
              concurrency: "unbounded",
              discard: true
            }
          )
          assert.strictEqual(ends[1]!.tensor.storage.bytes![update % 4096], update & 255)
          if (update === 1000) settled = counted()
        }
        const after = counted()
        assert.strictEqual(after.descriptors, settled.descriptors)
        assert.strictEqual(after.threads, settled.threads)
        assert.isBelow(after.mebibytes - settled.mebibytes, 64)
      }).pipe(Effect.scoped, Effect.provide(hostEngine)),
    300_000
  )
})
