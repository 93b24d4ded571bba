// SPDX-License-Identifier: Apache-2.0
/**
 * The backend as the command judges it, from nothing but its descriptor: which replay cases run, and why others do not.
 */
import { assert, describe, it } from "@effect/vitest"
import type { BackendDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import { BackendRegistry, registryLayer } from "@tensorferry/core/backend/BackendRegistry"
import { replaySubject, runReplayCases } from "@tensorferry/testing"
import * as Effect from "effect/Effect"
import { descriptor } from "../src/index.ts"

/** Cases that did not pass, with their status and why. */
const notPassed = Effect.fnUntraced(
  function* (judged: BackendDescriptor, options: object = {}) {
    const registry = yield* BackendRegistry
    const results = yield* runReplayCases(replaySubject(registry, judged, { ...options }))
    assert.isAbove(results.length, 30)
    return Object.fromEntries(
      results.flatMap(({ name, status, detail }) => (status === "passed" ? [] : [[name, `${status}: ${detail}`]]))
    )
  },
  Effect.provide(registryLayer([descriptor]))
)

const noStreams = "skipped: copies are made by the host while their caller waits, so there are no streams"
const noRegistration = "skipped: host memory is copied as it is, so nothing is registered with a driver"
const notDeferred = "skipped: submissions are deferred with the option deferred only"

describe("torch-copy's replay cases", () => {
  it.live("all run that its kind of submission has", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* notPassed(descriptor), {
        "a deferred submission is copied by the consumer's wait": notDeferred,
        "a slot whose submission waits for its consumer is busy": notDeferred,
        "work of a stream that waits for a slot sees its bytes": noStreams,
        "a registration that fails in the middle leaves nothing": noRegistration
      })
      assert.deepStrictEqual(yield* notPassed(descriptor, { deferred: true }), {
        "an interrupted submission stops its copy and leaves the slot idle": "skipped: submissions are deferred",
        "work of a stream that waits for a slot sees its bytes": noStreams,
        "a registration that fails in the middle leaves nothing": noRegistration
      })
    })
  )

  it.live("say what the descriptor lacks where it gives no means to hold copies back", () =>
    Effect.gen(function* () {
      const { replayTesting: _, ...bare } = descriptor
      const skipped = yield* notPassed(bare)
      const held = "a copy that is held back is not ready, and its bytes are not there"
      assert.strictEqual(skipped[held], "skipped: the descriptor has no replayTesting, so copies cannot be held back")
      assert.lengthOf(Object.keys(skipped), 15)
    })
  )
})
