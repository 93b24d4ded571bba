#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
/** One rank of a conformance run as a process of its own: judges the cases that it is told, with services of its own each. */
import { BackendRegistry } from "@tensorferry/core/backend/BackendRegistry"
import { engineOf } from "@tensorferry/core/backend/FamilyEngine"
import { decodeBackendOptions } from "@tensorferry/core/backend/OptionsLayer"
import {
  type CaseResult,
  describeCause,
  replayConformanceCases,
  replaySubject,
  runConformanceRank,
  runReplayCase,
  runTensorEngineCase,
  StatedCapabilities,
  tensorEngineCases
} from "@tensorferry/testing"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import { backendRegistry } from "../job/backends.ts"
import { ConformanceNews, ConformanceWork } from "./conformanceWork.ts"
import { runRankProgram } from "./rankProgram.ts"
import { readHooks } from "./readHooks.ts"

runRankProgram({ work: ConformanceWork, news: ConformanceNews }, (work, group, tell) =>
  Effect.gen(function* () {
    const registry = yield* BackendRegistry
    const found = yield* registry.byName(work.backend)
    const descriptor = work.hooks === null ? found : { ...found, replayTesting: yield* readHooks(work.hooks) }
    const options = yield* decodeBackendOptions(descriptor.options, descriptor.name, work.options, "See its options.")
    const deadline = Duration.millis(work.caseMillis)

    /** Cases of one process; services that cannot be built fail the case. */
    const judgeEach = <Case extends { readonly name: string }, S, E>(
      known: ReadonlyArray<Case>,
      services: Layer.Layer<S, E>,
      run: (one: Case) => Effect.Effect<CaseResult, never, S>
    ) =>
      Effect.forEach(
        known.filter(({ name }) => work.cases.includes(name)),
        (one) =>
          Effect.provide(run(one), services, { local: true }).pipe(
            Effect.catchCause((cause) =>
              Effect.succeed<CaseResult>({ name: one.name, status: "failed", detail: describeCause(cause) })
            ),
            Effect.flatMap(({ name, status, detail }) => tell({ name, outcome: { rank: 0, status, detail } }))
          ),
        { discard: true }
      )

    if (work.kind === "tensorEngine") {
      return yield* judgeEach(tensorEngineCases, engineOf(registry, descriptor, options), (one) =>
        Effect.provideService(runTensorEngineCase(one, deadline), StatedCapabilities, descriptor.capabilities)
      )
    }
    if (work.kind === "replayTransfer") {
      return yield* judgeEach(replayConformanceCases, replaySubject(registry, descriptor, options), (one) =>
        runReplayCase(one, deadline)
      )
    }
    yield* runConformanceRank({
      group,
      engine: engineOf(registry, descriptor, options),
      driver: descriptor.copyDriver!(options),
      stated: descriptor.capabilities,
      caseDeadline: deadline,
      includes: (name) => work.cases.includes(name),
      onOutcome: (name, outcome) => tell({ name, outcome })
    })
  }).pipe(Effect.provide(backendRegistry(work.backendPackages, work.packagesFrom)))
)
