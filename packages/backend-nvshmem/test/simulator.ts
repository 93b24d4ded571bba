/**
 * The simulated GPU driver with NVSHMEM in it, under control of the tests: where it lies, how it behaves, and what it saw.
 */
import { createRequire } from "node:module"
import { join } from "node:path"
import { packageFolder as devicePackageFolder } from "@tensorferry/backend-cuda/Addon"
import { packageFolder } from "../src/Addon.ts"

const buildFolder = process.env.TENSORFERRY_NVSHMEM_TEST_BUILD ?? join(packageFolder, "build")

/** The library that takes the place of all. */
export const simulatorPath = join(buildFolder, "native/simulator/libtensorferry_nvshmem_simulator.so")

/** See simulator_control.h of backend-cuda. */
export interface SimulatorReport {
  readonly violations: ReadonlyArray<{ readonly name: string; readonly detail: string }>
  readonly pending: number
  readonly live: Readonly<Record<string, number>>
  readonly calls: Readonly<Record<string, number>>
  readonly bytes: Readonly<Record<string, number>>
}

interface Control {
  readonly configure: (text: string) => number
  readonly report: () => string
  readonly reset: () => void
  readonly settle: () => number
}

const require = createRequire(import.meta.url)

const control: Control = require(join(devicePackageFolder, "build/test/simulator_control.node")).openSimulator(
  simulatorPath
)

export const simulator = {
  ...control,
  report: (): SimulatorReport => JSON.parse(control.report())
}

export const leaks = (): ReadonlyArray<string> =>
  Object.entries(simulator.report().live).flatMap(([kind, count]) => (count === 0 ? [] : [`${kind}: ${count}`]))

export const violations = (): ReadonlyArray<string> =>
  simulator.report().violations.map(({ name, detail }) => `${name}: ${detail}`)
