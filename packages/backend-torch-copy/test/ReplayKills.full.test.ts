// SPDX-License-Identifier: Apache-2.0
/**
 * A learner that waits for several batches, and a collector in another process that dies at any moment, or a wait that the
 * learner leaves: whoever still waits learns within a second that the collector is gone, or gets its rows.
 */
import { type ChildProcess, fork } from "node:child_process"
import { once } from "node:events"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { createReplayRing, replayRingBytes } from "@tensorferry/core/replay/ReplayRing"
import { makeRowLayout } from "@tensorferry/core/replay/ReplayRowLayout"
import { allocateHostSlots, shareHostSlots } from "@tensorferry/core/replay/ReplaySlots"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { tensorBytes } from "@tensorferry/core/tensor/Tensor"
import { type MessagePort, portChannel, remotePackRequests } from "@tensorferry/replay/ReplayPackChannel"
import { makeRandom } from "@tensorferry/testing/mutate"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import type { CollectorInput } from "./fixtures/replay-collector.ts"
import { makeEngine } from "./support.ts"

const script = fileURLToPath(new URL("./fixtures/replay-collector.ts", import.meta.url))
const seeds = isSoak ? 50 : 5
const waits = 4
const width = 64

/** A second, and what a busy machine of two processors may add until a process gets its turn. */
const mostMillis = 1000 + 500

const startCollector = (input: CollectorInput) =>
  Effect.acquireRelease(
    Effect.promise(async () => {
      const child = fork(script, { stdio: ["ignore", "inherit", "inherit", "ipc"] })
      child.send(input)
      await once(child, "message")
      return child
    }),
    (child: ChildProcess) => Effect.sync(() => child.kill("SIGKILL"))
  )

const makeLearner = Effect.fnUntraced(function* (rows: number) {
  const { memory } = yield* makeEngine()
  const layout = Result.getOrThrow(makeRowLayout([{ name: "x", dtype: "float64", shape: [width] }]))
  const capacity = 4 * rows
  const storage = yield* memory.allocate(replayRingBytes(layout, capacity))
  Result.getOrThrow(createReplayRing(storage, layout, capacity))
  const { slots, shared } = yield* Effect.provideService(
    Effect.gen(function* () {
      const made = yield* allocateHostSlots(layout, rows, waits)
      return { slots: made, shared: yield* shareHostSlots(made) }
    }),
    HostMemory,
    memory
  )
  const child = yield* startCollector({ ring: yield* memory.share(storage), slots: shared, rows })
  const requests = yield* remotePackRequests(portChannel(child as MessagePort))
  const judge = (slot: number) => {
    const bytes = tensorBytes(slots[slot]!)!
    const values = new Float64Array(bytes.buffer, bytes.byteOffset, rows * width)
    for (let row = 0; row < rows; row++) {
      if (new Set(values.subarray(row * width, (row + 1) * width)).size !== 1) assert.fail(`row ${row} is torn`)
    }
  }
  let tick = 0
  /** One batch for each slot, all asked for at once. */
  const ask = Effect.suspend(() => {
    tick += 1
    const packs = Array.from({ length: waits }, (_, slot) =>
      Effect.map(requests.pack({ tick, seed: 1, rows, slot }), () => judge(slot))
    )
    return Effect.forEach(packs, (pack) => Effect.forkChild(pack, { startImmediately: true }))
  })
  return { ask, child }
})

describe("a learner that waits for its collector", () => {
  it.live(
    `is told within a second that it died, at ${seeds} random moments, whatever it waits for`,
    () =>
      Effect.gen(function* () {
        for (let seed = 0; seed < seeds; seed++) {
          const random = makeRandom(seed)
          yield* Effect.scoped(
            Effect.gen(function* () {
              const { ask, child } = yield* makeLearner(random.pick([16, 1024, 16_384]))
              for (let round = random.below(10); round > 0; round--) {
                yield* Effect.forEach(yield* ask, Fiber.join)
              }
              const open = yield* ask
              yield* Effect.sleep(random.pick([0, 0, 1, 3, 10]))
              const killed = performance.now()
              child.kill("SIGKILL")
              // What was packed before has its rows; everything else has the same end, also what is asked for afterwards.
              const exits = [
                ...(yield* Effect.forEach(open, Fiber.await)),
                ...(yield* Effect.forEach(yield* ask, Fiber.await))
              ]
              assert.isBelow(performance.now() - killed, mostMillis, `seed ${seed}`)
              for (const [at, exit] of exits.entries()) {
                if (at < waits && Exit.isSuccess(exit)) continue
                assert.include(String(exit), "CollectorGone", `seed ${seed}, wait ${at}`)
                assert.include(String(exit), "the collector exited", `seed ${seed}, wait ${at}`)
              }
            })
          )
        }
      }),
    1_200_000
  )

  it.live(
    `leaves a wait at ${seeds} random moments, and all others get their rows`,
    () =>
      Effect.scoped(
        Effect.gen(function* () {
          const random = makeRandom(1)
          const { ask } = yield* makeLearner(1024)
          for (let seed = 0; seed < seeds; seed++) {
            const left = random.below(waits)
            const open = yield* ask
            yield* Effect.sleep(random.pick([0, 0, 1, 3]))
            const began = performance.now()
            yield* Fiber.interrupt(open[left]!)
            const exits = yield* Effect.forEach(open, Fiber.await)
            assert.isBelow(performance.now() - began, mostMillis, `seed ${seed}`)
            for (const [slot, exit] of exits.entries()) {
              if (slot !== left) assert.isTrue(Exit.isSuccess(exit), `seed ${seed}, slot ${slot}: ${String(exit)}`)
            }
          }
        })
      ),
    300_000
  )
})
