// SPDX-License-Identifier: Apache-2.0
/**
 * This package against the replay cases of the kit, over the simulated driver under both vendors' names, with copies that
 * can be held back and made to fail.
 */

import { assert, describe, it } from "@effect/vitest"
import { ReplayTesting } from "@tensorferry/core/service/ReplayTesting"
import { packageName } from "@tensorferry/gpu/Addon"
import * as TensorEngine from "@tensorferry/gpu/TensorEngine"
import { assertClean, resetSimulator, simulator } from "@tensorferry/simulators/gpu"
import { type KnownHooks, subjectOf } from "@tensorferry/testing/conformance/ReplaySubject"
import { isSoak } from "@tensorferry/testing/testLevel"
import { describeReplayTransfer } from "@tensorferry/testing/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { afterEach, beforeEach } from "vitest"
import { layer } from "../src/ReplayTesting.ts"
import { testOptions } from "./cluster.ts"
import { hostMemoryLayer } from "./replay.ts"
import { hold } from "./replayHooks.ts"

/** What the simulated driver itself knows and does. */
const known: KnownHooks = {
  registered: () => simulator.report().live.hostRegistrations ?? 0,
  failRegistration: (nth) => Effect.sync(() => void simulator.configure(`fail=cudaHostRegister:${nth + 1}:2`)),
  ticks: isSoak ? 10_000 : 60
}

let seed = 1
beforeEach(() => resetSimulator(`seed=${seed++}`))
afterEach(() => assertClean())

// AMD's names lead to the same code, which random ticks run under them too.
for (const vendor of isSoak ? (["cuda", "rocm"] as const) : (["cuda"] as const)) {
  const options = { ...testOptions, vendor, device: 0 }
  const subject = Layer.provide(
    subjectOf(
      layer({ family: vendor, index: 0 }, options, packageName, () => hold),
      known
    ),
    hostMemoryLayer
  )
  describeReplayTransfer(vendor, Layer.merge(subject, TensorEngine.layer(options)), { timeout: 120_000 })
}

describe("without the simulated driver's own means", () => {
  it.live("says that nothing holds its copies back", () =>
    Effect.gen(function* () {
      const built = yield* Layer.build(layer({ family: "cuda", index: 0 }, { ...testOptions, vendor: "cuda" }))
      const { hold, lacks, streams, failCopy, failRegistration } = Context.get(built, ReplayTesting)
      assert.isUndefined(hold)
      assert.include(lacks?.hold ?? "", "simulated")
      for (const hook of [streams, failCopy, failRegistration]) assert.isDefined(hook)
    })
  )
})
