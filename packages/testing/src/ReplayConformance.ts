// SPDX-License-Identifier: Apache-2.0
/**
 * What every `ReplayTransferBackend` must do, as data and Effects that know no test runner, and a subject in memory to try
 * the cases themselves on.
 */

import { replayTransferLayer } from "@tensorferry/core/replay/ReplayTransferLayer"
import type { ReplayDevice } from "@tensorferry/core/service/ReplayDevice"
import { ReplayTransferBackend, replayTransferError } from "@tensorferry/core/service/ReplayTransferBackend"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import { type CaseOptions, type CaseResult, defaultCaseDeadline, judged, runCases } from "./Conformance.ts"
import { ReplaySubject, type ReplaySubjectShape } from "./conformance/ReplaySubject.ts"
import type { ReplayCase } from "./conformance/replayCase.ts"
import { replayConformanceCases } from "./conformance/replayCases.ts"
import { type DelayedReplayOptions, makeDelayedReplayDevice } from "./DelayedReplayDevice.ts"
import * as ReferenceEngine from "./ReferenceEngine.ts"

export { type ReplayCase, replayConformanceCases }

/** One case against the subject in the context. */
export const runReplayCase = (
  replayCase: ReplayCase,
  deadline: Duration.Input = defaultCaseDeadline
): Effect.Effect<CaseResult, never, ReplaySubject | TensorEngine> =>
  Effect.map(
    judged(
      Effect.scoped(
        Effect.gen(function* () {
          const subject = yield* ReplaySubject
          const backend = yield* subject.build({ ringDepth: 1 })
          const lacking = replayCase.requires?.(subject, yield* backend.attributes)
          if (lacking === undefined) yield* replayCase.program
          return lacking
        })
      ),
      deadline
    ),
    (verdict) => ({ name: replayCase.name, ...verdict })
  )

/** All cases against one subject, in order. */
export const runReplayCases = <E>(
  layer: Layer.Layer<ReplaySubject | TensorEngine, E>,
  { cases = replayConformanceCases, quirks }: CaseOptions<ReplayCase> = {}
): Effect.Effect<ReadonlyArray<CaseResult>, E> => runCases(layer, runReplayCase, cases, quirks)

/** A subject over the delayed device; `tell` may make the device, or the whole backend, lie. */
export const delayedReplaySubject = (
  options: DelayedReplayOptions,
  tell: {
    readonly device?: (honest: ReplayDevice) => ReplayDevice
    readonly subject?: (honest: ReplaySubjectShape) => ReplaySubjectShape
  } = {}
): Layer.Layer<ReplaySubject | TensorEngine> => {
  const subject = Layer.effect(
    ReplaySubject,
    Effect.gen(function* () {
      const device = makeDelayedReplayDevice(options)
      yield* Effect.forkScoped(device.finishAlways)
      const opened = tell.device?.(device) ?? device
      const honest: ReplaySubjectShape = {
        build: (settings) =>
          Effect.gen(function* () {
            const layer = replayTransferLayer(Effect.succeed(opened), settings)
            const built = yield* Layer.buildWithScope(layer, yield* Scope.Scope)
            return Context.get(built, ReplayTransferBackend)
          }),
        allocateHost: device.allocateHost,
        hold: device.hold,
        registered: device.registered,
        failRegistration: device.failRegistration,
        failCopy: device.failNext(
          replayTransferError("DeviceFailure", { detail: "The test has it fail.", remedy: "None." })
        ),
        ...(options.mode === "asynchronous"
          ? {
              streams: () => ({
                open: device.openStream,
                copy: device.queue,
                finish: device.streamIdle
              })
            }
          : {})
      }
      return tell.subject?.(honest) ?? honest
    })
  )
  const family = options.device?.family
  return Layer.merge(subject, ReferenceEngine.layer(family === undefined ? {} : { deviceFamily: family }))
}
