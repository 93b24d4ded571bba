// SPDX-License-Identifier: Apache-2.0
/**
 * Checked by the compiler, never run: programs that must not compile. Each line below an expectation is wrong in one way.
 */
// The same faults as the compiler's, found by another checker that knows no expectations.
// @effect-diagnostics missingEffectContext:off
// @effect-diagnostics missingEffectError:off
// @effect-diagnostics provideLayerSucceedToProvideService:off

import { loopbackLayer, makeLoopbackNetwork } from "@tensorferry/testing/Loopback"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import * as Config from "effect/Config"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import type { BackendDescriptor } from "../../src/backend/BackendDescriptor.ts"
import { copyService, replayTransfer } from "../../src/backend/BackendLayer.ts"
import { registryLayer } from "../../src/backend/BackendRegistry.ts"
import { copyServiceLayer } from "../../src/copy/CopyServiceLayer.ts"
import * as ProcessGroupInProcess from "../../src/group/ProcessGroupInProcess.ts"
import * as ProcessGroupTcp from "../../src/group/ProcessGroupTcp.ts"
import type { ReshardPlan } from "../../src/ir/ReshardPlan.ts"
import { executeReshardPlan } from "../../src/reshard/executeReshardPlan.ts"
import { CopyService } from "../../src/service/CopyService.ts"
import { ProcessGroup } from "../../src/service/ProcessGroup.ts"
import { TensorEngine } from "../../src/service/TensorEngine.ts"

declare const plan: ReshardPlan

const program = Effect.gen(function* () {
  const copy = yield* CopyService
  const engine = yield* TensorEngine
  const tensor = yield* engine.allocate("uint8", [4])
  yield* copy.submitSend(tensor, 0)
  return yield* copy.run()
})
const registry = registryLayer([])
const group = ProcessGroupInProcess.layerSingle()
const services = copyService({ backend: "auto" }).pipe(Layer.provide([registry, group]))

/** What compiles, so that the refusals below are refused for their own reason. */
export const whole: Effect.Effect<unknown, unknown> = Effect.scoped(Effect.provide(program, services))

/** What needs nothing any more can be run. */
declare const run: (effect: Effect.Effect<unknown, unknown>) => void

const scoped = Effect.scoped(program)
const chosen = copyService({ backend: "auto" })
const withoutGroup = Effect.provide(scoped, Layer.provide(chosen, registry))
const withoutRegistry = Effect.provide(scoped, Layer.provide(chosen, group))
const withoutEngine = Effect.provide(scoped, Layer.succeed(CopyService, {} as CopyService["Service"]))
const driverAlone = Layer.provide(copyServiceLayer(loopbackLayer(makeLoopbackNetwork())), group)

// A program that lacks a service cannot be run.
export const lacking = () => {
  // @ts-expect-error: no services at all
  run(program)
  // @ts-expect-error: no scope for the tensor's memory
  run(Effect.provide(program, services))
  // @ts-expect-error: no process group
  run(withoutGroup)
  // @ts-expect-error: no registry
  run(withoutRegistry)
  // @ts-expect-error: no engine
  run(withoutEngine)
  // @ts-expect-error: a plan needs a service and an engine
  run(executeReshardPlan(plan))
  // @ts-expect-error: a group alone does not copy
  run(Effect.provide(executeReshardPlan(plan), group))
  // @ts-expect-error: a driver needs an engine
  run(Effect.scoped(Layer.build(driverAlone)))
  // @ts-expect-error: an engine is no process group
  run(Effect.provide(ProcessGroup, ReferenceEngine.layer()))
}

// Options that are wrong, or do nothing.
export const options = () => {
  void copyService({ backend: Config.String("BACKEND"), deadline: Duration.seconds(5), stagingBytes: 4096 })
  // @ts-expect-error: a backend must be named
  void copyService({})
  // @ts-expect-error: a name is a text
  void copyService({ backend: 5 })
  // @ts-expect-error: a name comes from a configured text
  void copyService({ backend: Config.Int("BACKEND") })
  // @ts-expect-error: there is no such option
  void copyService({ backend: "auto", stagingByte: 4096 })
  // @ts-expect-error: bytes are a number
  void copyService({ backend: "auto", stagingBytes: "4 KiB" })
  // @ts-expect-error: a deadline is a duration
  void copyService({ backend: "auto", deadline: true })
  void replayTransfer({ device: "cpu", ringDepth: Config.Int("DEPTH") })
  // @ts-expect-error: a ring has a depth
  void replayTransfer({ device: "cpu" })
  // @ts-expect-error: a depth is a number
  void replayTransfer({ device: "cpu", ringDepth: "two" })
  // @ts-expect-error: there is no such option
  void replayTransfer({ device: "cpu", ringDepth: 2, slots: 2 })
  // @ts-expect-error: a group has a size
  void ProcessGroupTcp.make({ rank: 0, host: "127.0.0.1", port: 0 })
  // @ts-expect-error: a port is a number
  void ProcessGroupTcp.make({ rank: 0, size: 2, host: "127.0.0.1", port: "29500" })
}

// Operations with the wrong arguments.
export const operations = Effect.gen(function* () {
  const copy = yield* CopyService
  const engine = yield* TensorEngine
  // @ts-expect-error: there is no such element type
  yield* engine.allocate("float31", [4])
  const tensor = yield* engine.allocate("uint8", [4])
  // @ts-expect-error: a rank is a number
  yield* copy.submitSend(tensor, "1")
  // @ts-expect-error: a tensor comes first
  yield* copy.submitSend(1, tensor)
  // @ts-expect-error: there is no such option
  yield* copy.submitRecv(tensor, 0, 1, { parts: 1 })
  // @ts-expect-error: there is no such reduction
  yield* engine.reduce(tensor, [tensor], "median")
})

const descriptor: BackendDescriptor = {
  name: "spool",
  apiVersion: 1,
  deviceFamilies: [],
  capabilities: {},
  options: Schema.Struct({}),
  probe: Effect.succeed({ _tag: "Available", detail: "", versions: {} })
}

// Descriptors that no backend could have.
export const descriptors: ReadonlyArray<BackendDescriptor> = [
  descriptor,
  // @ts-expect-error: a driver is made from options
  { ...descriptor, copyDriver: loopbackLayer(makeLoopbackNetwork()) },
  // @ts-expect-error: an engine is no driver
  { ...descriptor, copyDriver: () => ReferenceEngine.layer() },
  // @ts-expect-error: a probe answers by a value, it does not fail
  { ...descriptor, probe: Effect.fail("nothing here") },
  // @ts-expect-error: who is unavailable says what was tried
  { ...descriptor, probe: Effect.succeed({ _tag: "Unavailable", cause: "none", remedy: "none" }) },
  // @ts-expect-error: capabilities are whole
  { ...descriptor, capabilities: { copyDriver: { gather: true } } },
  // @ts-expect-error: there is no such service
  { ...descriptor, copyDrivr: () => loopbackLayer(makeLoopbackNetwork()) }
]
