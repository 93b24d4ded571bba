/**
 * This package against the replay cases of the kit, over the simulated driver under both vendors' names, with copies that
 * can be held back and made to fail.
 */

import { describeReplayTransfer } from "@tensorferry/core/testing/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { afterEach, beforeEach } from "vitest"
import { type Addon, type PreparedReplayCopy, replayAnswers } from "../src/Addon.ts"
import * as TensorEngine from "../src/TensorEngine.ts"
import { assertClean, resetSimulator, testOptions } from "./cluster.ts"
import { hostMemoryLayer } from "./replay.ts"
import { replaySubjectLayer, type SubjectHooks } from "./replaySubject.ts"
import { simulator } from "./simulator.ts"

const isFull = process.env.TENSORFERRY_TEST_FULL !== undefined

/** Holds and fails the copies of replay backends only: engines share the simulated driver. */
const makeHooks = (): SubjectHooks => {
  let holds = 0
  let failNext = false
  const failedCopies = new WeakSet<object>()
  const broken = { code: "SystemFailure", op: "cudaEventQuery", detail: "planted", nativeCode: 719, item: -1 } as const

  const begin = (copy: object): void => {
    failedCopies.delete(copy)
    if (failNext) failedCopies.add(copy)
    failNext = false
    if (holds > 0) simulator.configure("stall=cudaMemcpyAsync:1")
  }
  const prepared = (made: PreparedReplayCopy): PreparedReplayCopy => ({
    ...made,
    start: () => {
      begin(made.copy)
      const answer = made.start()
      if (holds > 0) simulator.configure("clear=faults")
      return answer
    },
    query: () => {
      const answer = made.query()
      return answer === replayAnswers.ok && failedCopies.has(made.copy) ? broken.nativeCode : answer
    }
  })
  const change = (addon: Addon): Addon => ({
    ...addon,
    prepareReplayCopy: (...request) => {
      const made = addon.prepareReplayCopy(...request)
      return made.code === "Ok" ? { ...made, value: prepared(made.value) } : made
    },
    startReplayCopy: (copy, done) => {
      begin(copy)
      return addon.startReplayCopy(copy, (answer) => done(failedCopies.has(copy) ? broken : answer))
    },
    startReplayWait: (copy, done) =>
      addon.startReplayWait(copy, (answer) => done(failedCopies.has(copy) ? broken : answer))
  })
  return {
    change,
    hold: () =>
      Effect.acquireRelease(
        Effect.sync(() => {
          holds += 1
        }),
        () =>
          Effect.sync(() => {
            holds -= 1
            if (holds === 0) simulator.configure("clear=faults release=stalls")
          })
      ),
    registered: () => simulator.report().live.hostRegistrations ?? 0,
    failRegistration: (nth) => Effect.sync(() => void simulator.configure(`fail=cudaHostRegister:${nth + 1}:2`)),
    failCopy: Effect.sync(() => {
      failNext = true
    }),
    ticks: isFull ? 10_000 : 60
  }
}

let seed = 1
beforeEach(() => resetSimulator(`seed=${seed++}`))
afterEach(() => assertClean())

// AMD's names lead to the same code, which random ticks run under them too.
for (const vendor of isFull ? (["cuda", "rocm"] as const) : (["cuda"] as const)) {
  const options = { ...testOptions, vendor, device: 0 }
  const subject = Layer.provide(replaySubjectLayer(options, makeHooks()), hostMemoryLayer)
  describeReplayTransfer(vendor, Layer.merge(subject, TensorEngine.layer(options)), { timeout: 120_000 })
}
