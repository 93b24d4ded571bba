// SPDX-License-Identifier: Apache-2.0
/**
 * The backend as the command judges it, from nothing but its descriptor: which replay cases run, and why others do not.
 */
import { assert, describe, it } from "@effect/vitest"
import { descriptor as hostBackend } from "@tensorferry/backend-torch-copy"
import { BackendRegistry, registryLayer } from "@tensorferry/core/backend/BackendRegistry"
import { replaySubject, runReplayCases } from "@tensorferry/testing"
import * as Effect from "effect/Effect"
import { descriptor } from "../src/index.ts"
import { lackOf, optionsOf, resetSimulator, subjects, titleOf } from "./simulator.ts"

const notDeferred = "skipped: copies are submitted to the device, so submissions are not deferred"

for (const subject of subjects) {
  describe.skipIf(lackOf(subject) !== undefined)(titleOf(subject), () => {
    it.live("runs all replay cases that its kind of submission and its driver have", () =>
      Effect.gen(function* () {
        if (subject === "level-zero") resetSimulator("seed=5")
        const registry = yield* BackendRegistry
        const results = yield* runReplayCases(replaySubject(registry, descriptor, { ...optionsOf(subject) }))
        const others = results.filter(({ status }) => status !== "passed")
        assert.deepStrictEqual(
          Object.fromEntries(others.map(({ name, status, detail }) => [name, `${status}: ${detail}`])),
          {
            "a deferred submission is copied by the consumer's wait": notDeferred,
            "a slot whose submission waits for its consumer is busy": notDeferred,
            "an interrupted submission stops its copy and leaves the slot idle": "skipped: submissions end at once",
            ...(subject === "level-zero"
              ? {
                  "a copy that fails is told and does not make the slot ready":
                    "skipped: Level Zero has no means to make a copy fail"
                }
              : {
                  "a registration that fails in the middle leaves nothing":
                    "skipped: this driver takes host memory as it is, so nothing is registered"
                })
          }
        )
      }).pipe(Effect.provide(registryLayer([descriptor, hostBackend])))
    )
  })
}
