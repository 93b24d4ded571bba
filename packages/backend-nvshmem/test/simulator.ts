// SPDX-License-Identifier: Apache-2.0
/**
 * The simulated GPU driver with NVSHMEM in it, under control of the tests: how it behaves, and what it saw.
 */
import { openSimulator } from "@tensorferry/simulators/gpu"
import { nvshmemSimulator } from "@tensorferry/simulators/libraries"

/** The library that takes the place of all. */
export const simulatorPath = nvshmemSimulator

export const simulator = openSimulator(nvshmemSimulator)

export const leaks = (): ReadonlyArray<string> =>
  Object.entries(simulator.report().live).flatMap(([kind, count]) => (count === 0 ? [] : [`${kind}: ${count}`]))

export const violations = (): ReadonlyArray<string> =>
  simulator.report().violations.map(({ name, detail }) => `${name}: ${detail}`)
