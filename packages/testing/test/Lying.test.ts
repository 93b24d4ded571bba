// SPDX-License-Identifier: Apache-2.0
/** The kit can fail: every lie is caught by the case that is named for it, and the honest subject passes that case. */
import { assert, describe, it } from "@effect/vitest"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import {
  copyCases,
  copyDriverCases,
  runTensorEngineCase,
  runTensorEngineCases,
  type Stated,
  StatedCapabilities,
  tensorEngineCases
} from "../src/Conformance.ts"
import { loopbackLayer, makeLoopbackNetwork } from "../src/Loopback.ts"
import { descriptorLies, driverLies, engineLies, lyingDriver, lyingEngine, pairwiseLies } from "../src/Lying.ts"
import * as ReferenceEngine from "../src/ReferenceEngine.ts"
import { makeSharedFlags } from "../src/SharedFlags.ts"
import { makeSharedMemory, sharedMemoryLayer } from "../src/SharedMemory.ts"
import { type ClusterOf, runCopyCase, runCopyDriverCase } from "../src/VirtualCluster.ts"

describe("lies of a copy driver", () => {
  it("are many, each of its own kind, each with a case that is there", () => {
    const known = [...copyCases, ...copyDriverCases].map(({ name }) => name)
    assert.strictEqual(new Set(known).size, known.length, "two cases have one name")
    assert.strictEqual(new Set(driverLies.map(({ name }) => name)).size, driverLies.length)
    assert.isAtLeast(driverLies.length, 30)
    for (const { caughtBy } of driverLies) assert.include(known, caughtBy)
  })

  for (const lie of driverLies) {
    it.live(`${lie.name}: caught by "${lie.caughtBy}"`, () =>
      Effect.gen(function* () {
        const clusterOf: ClusterOf<never> = () => {
          const network = makeLoopbackNetwork()
          return {
            driver: () => lyingDriver(lie, loopbackLayer(network)),
            groupDeadline: Duration.seconds(2)
          }
        }
        const copyCase = copyCases.find(({ name }) => name === lie.caughtBy)
        const driverCase = copyDriverCases.find(({ name }) => name === lie.caughtBy)
        const result =
          copyCase !== undefined
            ? yield* runCopyCase(clusterOf)(copyCase)
            : driverCase !== undefined
              ? yield* runCopyDriverCase(clusterOf)(driverCase)
              : undefined
        assert.strictEqual(result?.status, "failed")
        assert.isAbove(result?.detail.length ?? 0, 0)
      })
    )
  }
})

describe("lies of a pairwise copy driver", () => {
  for (const lie of pairwiseLies) {
    it.live(`${lie.name}: caught by "${lie.caughtBy}"`, () =>
      Effect.gen(function* () {
        const cluster = (isHonest: boolean): ClusterOf<never> => {
          return () => {
            const memory = makeSharedMemory(makeSharedFlags())
            return {
              driver: (_rank, group) =>
                isHonest
                  ? sharedMemoryLayer(memory)
                  : lyingDriver({ ...lie, tell: (honest) => lie.tell(honest, group) }, sharedMemoryLayer(memory)),
              groupDeadline: Duration.seconds(2)
            }
          }
        }
        const resultOf = (isHonest: boolean) => {
          const copyCase = copyCases.find(({ name }) => name === lie.caughtBy)
          return copyCase === undefined
            ? runCopyDriverCase(cluster(isHonest))(copyDriverCases.find(({ name }) => name === lie.caughtBy)!)
            : runCopyCase(cluster(isHonest))(copyCase)
        }
        const honest = yield* resultOf(true)
        assert.strictEqual(honest.status, "passed", honest.detail)
        assert.strictEqual((yield* resultOf(false)).status, "failed")
      })
    )
  }
})

describe("lies of a tensor engine", () => {
  for (const lie of engineLies) {
    it.live(`${lie.name}: caught by "${lie.caughtBy}"`, () =>
      Effect.gen(function* () {
        const oneCase = tensorEngineCases.find(({ name }) => name === lie.caughtBy)!
        const engine = lyingEngine(lie, ReferenceEngine.layer())
        const result = yield* Effect.provide(runTensorEngineCase(oneCase), engine)
        assert.strictEqual(result.status, "failed")
        assert.isAbove(result.detail.length, 0)
      })
    )
  }
})

describe("lies of a descriptor", () => {
  const loopback = () => {
    const network = makeLoopbackNetwork()
    return { driver: () => loopbackLayer(network) }
  }
  const honest = Effect.scoped(
    Effect.gen(function* () {
      const { capabilities: tensorEngine } = yield* TensorEngine
      const group = (yield* makeInProcessGroups(1))[0]!
      const layer = Layer.provide(loopback().driver(), Layer.succeed(ProcessGroup, group))
      const { capabilities: copyDriver } = yield* Effect.provide(CopyDriver, layer)
      return { tensorEngine, copyDriver }
    })
  ).pipe(Effect.provide(ReferenceEngine.layer()))

  const judge = (caughtBy: string, stated: Stated) => {
    const engineCase = tensorEngineCases.find(({ name }) => name === caughtBy)
    const run =
      engineCase !== undefined
        ? Effect.provide(runTensorEngineCase(engineCase), ReferenceEngine.layer())
        : runCopyDriverCase(loopback)(copyDriverCases.find(({ name }) => name === caughtBy)!)
    return Effect.provideService(run, StatedCapabilities, stated)
  }

  for (const lie of descriptorLies) {
    it.live(`${lie.name}: caught by "${lie.caughtBy}"`, () =>
      Effect.gen(function* () {
        const right = yield* honest
        assert.strictEqual((yield* judge(lie.caughtBy, right)).status, "passed")
        assert.strictEqual((yield* judge(lie.caughtBy, {})).status, "skipped")
        const { status, detail } = yield* judge(lie.caughtBy, lie.tell(right))
        assert.strictEqual(status, "failed")
        assert.include(detail, "The descriptor states")
      })
    )
  }
})

describe("quirks", () => {
  const subject = lyingEngine(
    engineLies.find(({ name }) => name === "reduces in reverse order")!,
    ReferenceEngine.layer()
  )
  const cases = tensorEngineCases.filter(({ name }) => name.startsWith("reduces"))

  it.live("are reported with their reason", () =>
    Effect.gen(function* () {
      const quirks = { "reduces in the order given": "sums from the last operand on" }
      const results = yield* runTensorEngineCases(subject, { cases, quirks })
      const skipped = results.filter(({ status }) => status === "skipped")
      assert.deepStrictEqual(skipped, [
        {
          name: "reduces in the order given",
          status: "skipped",
          detail: "Known quirk: sums from the last operand on"
        }
      ])
      assert.isTrue(results.every(({ status }) => status !== "failed"))
    })
  )

  it.live("without a reason or a case are failures", () =>
    Effect.gen(function* () {
      const results = yield* runTensorEngineCases(subject, {
        cases,
        quirks: { "reduces in the order given": " ", "no such case": "because" }
      })
      const failed = results.filter(({ status }) => status === "failed").map(({ name }) => name)
      assert.sameMembers(failed, ["reduces in the order given", "no such case"])
    })
  )

  it.live("capabilities that are missing are reported as the reason", () =>
    Effect.gen(function* () {
      const plain = lyingEngine(
        {
          name: "",
          caughtBy: "",
          tell: (honest) => ({ ...honest, capabilities: { ...honest.capabilities, reduce: false } })
        },
        ReferenceEngine.layer()
      )
      const results = yield* runTensorEngineCases(plain, { cases })
      assert.isAbove(results.length, 3)
      for (const result of results)
        assert.deepStrictEqual(result, { ...result, status: "skipped", detail: "the engine does not reduce" })
    })
  )
})
