// SPDX-License-Identifier: Apache-2.0
/**
 * Drivers and engines that break their contract, each in one way, each with the name of the conformance case that must
 * catch it. They prove that the kit can fail.
 */

import { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { digestLies } from "./lies/digestLies.ts"
import { engineLies as ownLies } from "./lies/engineLies.ts"
import type { DriverLie, EngineLie } from "./lies/Lie.ts"
import { messageLies } from "./lies/messageLies.ts"
import { programLies } from "./lies/programLies.ts"
import { updateLies } from "./lies/updateLies.ts"

export { type DescriptorLie, descriptorLies } from "./lies/descriptorLies.ts"

export type { DriverLie, EngineLie, Lie } from "./lies/Lie.ts"
export { type PairwiseLie, pairwiseLies } from "./lies/pairwiseLies.ts"

/** Lies of a driver with `gather`, over host memory. */
export const driverLies: ReadonlyArray<DriverLie> = [...messageLies, ...programLies]

/** The driver of a layer, with a lie. Each build lies again. */
export const lyingDriver = <E>(
  lie: DriverLie,
  driver: Layer.Layer<CopyDriver, E, ProcessGroup | TensorEngine>
): Layer.Layer<CopyDriver, E, ProcessGroup | TensorEngine> =>
  Layer.effect(
    CopyDriver,
    Effect.map(CopyDriver, (honest) => lie.tell(honest))
  ).pipe(Layer.provide(driver))

/** The engine of a layer, telling a lie. */
export const lyingEngine = <E>(lie: EngineLie, engine: Layer.Layer<TensorEngine, E>): Layer.Layer<TensorEngine, E> =>
  Layer.effect(
    TensorEngine,
    Effect.map(TensorEngine, (honest) => lie.tell(honest))
  ).pipe(Layer.provide(engine))

/** Lies of an engine over host memory. */
export const engineLies: ReadonlyArray<EngineLie> = [...ownLies, ...updateLies, ...digestLies]
