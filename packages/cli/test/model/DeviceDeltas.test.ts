// SPDX-License-Identifier: Apache-2.0
/**
 * Updates of changes between simulated devices: the bytes of whole updates, with copies on the device or in host memory, within
 * their budget. Checksums of lists are worked out where the lists lie.
 */
import { assert, describe, it } from "@effect/vitest"
import { descriptors } from "@tensorferry/backend-cuda"
import type { DeltaReport } from "@tensorferry/core/refit/DeltaUpdates"
import { executeReshardPlan } from "@tensorferry/core/reshard/executeReshardPlan"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorByteLength, tensorBytes, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as GpuEngine from "@tensorferry/gpu/TensorEngine"
import { type DeltaOptions, makeDeltaUpdates } from "@tensorferry/model/delta/makeDeltaUpdates"
import { assertClean, resetSimulator } from "@tensorferry/simulators/gpu"
import { engineOptions } from "@tensorferry/simulators/gpuEngine"
import { makeRandom } from "@tensorferry/testing/mutate"
import { dictOf, plansOf, type Shards, sidesOf, specsOf } from "@tensorferry/testing/planning/meshSides"
import { runCluster } from "@tensorferry/testing/VirtualCluster"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import { afterEach, beforeEach } from "vitest"

beforeEach(() => resetSimulator("seed=3"))
afterEach(() => assertClean())

const cuda = descriptors.find(({ name }) => name === "cuda")!
const options = { ...engineOptions, stagingBytes: 2 ** 18, directBytes: 2 ** 14 }
const clusterOf = (size: number) => {
  let next = 0
  const engine = Layer.unwrap(Effect.sync(() => GpuEngine.layer({ ...options, device: next++ })))
  return { size, engine, driver: () => cuda.copyDriver!(options) }
}

const specs = specsOf("2:S0", "2@2:S1", [{ shape: [64, 96] }, { shape: [32, 48], from: "bfloat16" }])
const plans = plansOf(specs)

const hostOf = Effect.fnUntraced(function* (tensor: Tensor) {
  const engine = yield* TensorEngine
  const storage = yield* engine.wrapHost(new Uint8Array(tensorByteLength(tensor)))
  return Result.getOrThrow(tensorView(storage, tensor.dtype, tensor.shape))
})

const write = Effect.fnUntraced(function* (shards: Shards, fill: (bytes: Uint8Array, at: number) => void) {
  const engine = yield* TensorEngine
  for (const [at, dst] of shards.entries()) {
    if (dst === null) continue
    const src = yield* hostOf(dst)
    fill(tensorBytes(src)!, at)
    yield* engine.copy([{ dst, src }])
  }
}, Effect.scoped)

const read = Effect.fnUntraced(function* (shards: Shards) {
  const engine = yield* TensorEngine
  return yield* Effect.forEach(shards, (src) =>
    src === null
      ? Effect.succeed(undefined)
      : Effect.gen(function* () {
          const dst = yield* hostOf(src)
          yield* engine.copy([{ dst, src }])
          return tensorBytes(dst)!.slice()
        })
  )
}, Effect.scoped)

/** Bytes of this rank after so many versions, of which each changes one in 50. */
const fillTo = (rank: number, versions: number) => (bytes: Uint8Array, at: number) => {
  for (let version = 0; version < versions; version++) {
    const random = makeRandom(1000 * rank + 100 * at + version)
    for (let byte = 0; byte < bytes.length; byte++)
      if (version === 0 || random.isOneIn(50)) bytes[byte] = random.below(0x38)
  }
}

const runVersions = (deltaOptions: DeltaOptions, versions = 4) =>
  runCluster(clusterOf(plans.length), (rank) =>
    Effect.gen(function* () {
      const plan = plans[rank]!
      const { sources, targets } = yield* sidesOf(plan)
      const whole = (yield* sidesOf(plan)).targets
      const updates = yield* makeDeltaUpdates(plan, deltaOptions)
      const reports: Array<DeltaReport> = []
      yield* write(targets, (bytes) => bytes.fill(0x5a))
      for (let version = 1; version <= versions; version++) {
        yield* write(sources, fillTo(rank, version))
        yield* write(whole, (bytes) => bytes.fill(0x3c))
        reports.push(yield* updates.update({ version: `${version}` }, dictOf(plan, sources), dictOf(plan, targets)))
        yield* executeReshardPlan(plan, dictOf(plan, sources), dictOf(plan, whole))
        assert.deepStrictEqual(yield* read(targets), yield* read(whole), `rank ${rank}, version ${version}`)
      }
      return reports
    })
  )

const sum = (all: ReadonlyArray<ReadonlyArray<DeltaReport>>, round: number, of: (report: DeltaReport) => number) =>
  all.reduce((total, reports) => total + of(reports[round]!), 0)

describe("updates of changes between devices", () => {
  it.live.each(["source", "host"] as const)("give the bytes of whole ones, with copies of the %s", (baselines) =>
    Effect.gen(function* () {
      const reports = yield* runVersions({ baselineBytes: 2 ** 20, baselines, verify: baselines === "host" })
      const bytes = (round: number) => sum(reports, round, ({ copy }) => copy.remoteBytesSent)
      const held = sum(reports, 0, ({ baselineBytes }) => baselineBytes)
      assert.strictEqual(held, 64 * 96 * 4 + 32 * 48 * 2)
      for (const round of [1, 2, 3]) {
        assert.strictEqual(
          sum(reports, round, ({ whole }) => whole),
          0
        )
        assert.isAbove(
          sum(reports, round, ({ listed }) => listed),
          4
        )
        assert.isBelow(bytes(round), 0.35 * bytes(0))
        assert.strictEqual(
          sum(reports, round, ({ repaired }) => repaired),
          0
        )
      }
    })
  )

  it.live("send whole what has no room in host memory", () =>
    Effect.gen(function* () {
      const budget = 32 * 96 * 4
      const reports = yield* runVersions({ baselineBytes: budget, baselines: "host" })
      for (const report of reports.flat()) assert.isAtMost(report.baselineBytes, budget)
      assert.isAbove(
        sum(reports, 3, ({ whole }) => whole),
        0
      )
      assert.isAbove(
        sum(reports, 3, ({ listed }) => listed),
        0
      )
    })
  )
})
