// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of what a descriptor states about its services. Whoever judges a backend by its descriptor provides
 * `StatedCapabilities`; a service that comes without a descriptor skips these cases.
 *
 * Invariant: a statement and a service agree field by field, so that whoever chooses by the descriptor gets what it says.
 */
import { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import { type CaseFailure, type CopyDriverCase, check, type Stated, type TensorEngineCase } from "./Case.ts"

/** The statements of the descriptor that is judged; empty without one. */
export const StatedCapabilities = Context.Reference<Stated>("@tensorferry/testing/StatedCapabilities", {
  defaultValue: () => ({})
})

const textOf = (value: unknown): string => JSON.stringify(Array.isArray(value) ? value.toSorted() : value)

/** Every field of both, in any order of lists. */
const agree = (service: string, stated: object, actual: object): Effect.Effect<void, CaseFailure> => {
  const [said, done] = [new Map(Object.entries(stated)), new Map(Object.entries(actual))]
  const faults = [...new Set([...said.keys(), ...done.keys()])]
    .filter((field) => textOf(said.get(field)) !== textOf(done.get(field)))
    .map((field) => `${field} as ${textOf(said.get(field))}, the ${service} has ${textOf(done.get(field))}`)
  return check(faults.length === 0, () => `The descriptor states ${faults.join("; ")}.`)
}

const unstated = "no descriptor is judged"

/** What is stated of an engine. */
export const engineDescriptorCases: ReadonlyArray<TensorEngineCase> = [
  {
    name: "the descriptor states the engine's capabilities",
    requires: (_, stated) => (stated.tensorEngine === undefined ? unstated : undefined),
    program: Effect.gen(function* () {
      const { capabilities } = yield* TensorEngine
      yield* agree("engine", (yield* StatedCapabilities).tensorEngine ?? {}, capabilities)
    })
  }
]

/** What is stated of a driver. */
export const driverDescriptorCases: ReadonlyArray<CopyDriverCase> = [
  {
    name: "the descriptor states the driver's capabilities",
    size: 2,
    requires: (_, stated) => (stated.copyDriver === undefined ? unstated : undefined),
    program: () =>
      Effect.gen(function* () {
        const { capabilities } = yield* CopyDriver
        yield* agree("driver", (yield* StatedCapabilities).copyDriver ?? {}, capabilities)
      })
  }
]
