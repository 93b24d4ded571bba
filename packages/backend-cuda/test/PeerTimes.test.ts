// SPDX-License-Identifier: Apache-2.0
/** Reports of the copy service carry what the device measured, by peer, over the simulated driver. */

import { afterEach, assert, beforeEach, describe, it } from "@effect/vitest"
import { CopyService } from "@tensorferry/core/service/CopyService"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { assertClean, resetSimulator } from "@tensorferry/simulators/gpu"
import { runCluster } from "@tensorferry/testing"
import * as Effect from "effect/Effect"
import { clusterOf, kinds } from "./cluster.ts"

beforeEach(() => resetSimulator("seed=9"))
afterEach(() => assertClean())

/** Runs of rank 0 to rank 1, then of nobody; rank 2 is idle all the time. */
const runs = (kind: (typeof kinds)[number]) =>
  runCluster({ ...clusterOf(kind)(), size: 3 }, (rank) =>
    Effect.gen(function* () {
      const service = yield* CopyService
      const engine = yield* TensorEngine
      const tensor = yield* engine.allocate("float32", [513, 77])
      if (rank === 0) yield* service.submitSend(tensor, 1, 0)
      if (rank === 1) yield* service.submitRecv(tensor, 0, 0)
      const busy = yield* service.run()
      return { busy, idle: yield* service.run() }
    })
  )

describe("device times", () => {
  for (const kind of kinds) {
    it.live(`of ${kind} are in the report of who moved, for the run in which it moved`, () =>
      Effect.gen(function* () {
        const reports = yield* runs(kind)
        const times = reports.flatMap(({ busy }) => busy.peers.flatMap(({ seconds }) => seconds ?? []))
        assert.isNotEmpty(times, "the receiver fetches, or both take part")
        for (const { pack, wire, unpack } of times) {
          assert.isTrue([pack, wire, unpack].every((seconds) => seconds >= 0 && seconds < 10))
          assert.isAbove(pack + wire + unpack, 0)
        }
        assert.isUndefined(reports[2]!.busy.peers[0])
        for (const { idle } of reports) assert.deepStrictEqual(idle.peers, [], "nothing is left of the run before")
      })
    )
  }
})
