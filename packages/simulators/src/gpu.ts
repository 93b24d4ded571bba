// SPDX-License-Identifier: Apache-2.0
/**
 * The simulated GPU driver under control of the tests: where it lies, how it behaves, and what it saw.
 */
import { assert } from "@effect/vitest"
import type { Addon, LibraryNames } from "@tensorferry/gpu/Addon"
import { gpuSimulator, loadControl } from "./libraries.ts"

/** Files that stand for a GPU's libraries: runtime, driver, compiler and collectives. */
export const simulatedLibraries: LibraryNames = {
  runtime: [gpuSimulator],
  driver: [gpuSimulator],
  compiler: [gpuSimulator],
  collectives: [gpuSimulator]
}

/** See gpu/simulator_control.h. */
export interface SimulatorReport {
  readonly violations: ReadonlyArray<{ readonly name: string; readonly detail: string }>
  readonly violationCount: number
  readonly pending: number
  readonly live: Readonly<Record<string, number>>
  readonly calls: Readonly<Record<string, number>>
  readonly launches: Readonly<Record<string, number>>
  readonly bytes: Readonly<Record<string, number>>
  readonly nccl: {
    readonly groups: number
    readonly operations: number
    readonly maxGroup: number
    readonly maxGroupPerPeer: number
  }
}

interface Control {
  readonly configure: (text: string) => number
  readonly report: () => string
  readonly reset: () => void
  readonly settle: () => number
  readonly allocateVirtual: (bytes: number) => bigint
  readonly freeVirtual: (address: bigint) => number
  readonly read: (address: bigint, bytes: number) => Uint8Array
  readonly write: (address: bigint, bytes: Uint8Array) => void
  /** A consumer's stream on a device; destroy it at the end. */
  readonly createStream: (device: number) => bigint
  readonly destroyStream: (stream: bigint) => number
  /** What the stream reads behind everything that it has to do. */
  readonly readOnStream: (stream: bigint, address: bigint, bytes: number) => Uint8Array
}

/** Opens a simulated GPU driver, the one with NVSHMEM too, for control. */
export const openSimulator = (library: string) => {
  const control = (loadControl("gpu") as { readonly openSimulator: (library: string) => Control }).openSimulator(
    library
  )
  return { ...control, report: (): SimulatorReport => JSON.parse(control.report()) }
}

/** The simulated devices of this process: faults to plant, orders to choose, and what they saw. */
export const simulator = openSimulator(gpuSimulator)
/** What is left of kinds that a finished test should have given back. */
export const leaks = (): ReadonlyArray<string> =>
  Object.entries(simulator.report().live).flatMap(([kind, count]) => (count === 0 ? [] : [`${kind}: ${count}`]))

/** What the simulated driver objects to. */
export const violations = (): ReadonlyArray<string> =>
  simulator.report().violations.map(({ name, detail }) => `${name}: ${detail}`)

/** Opens the simulated libraries; for tests of the addon itself. */
export const openSimulated = (addon: Addon) => addon.openLibraries("cuda", simulatedLibraries)

/** A fresh simulated driver with these settings. */
export const resetSimulator = (settings: string): void => {
  simulator.reset()
  assert.strictEqual(simulator.configure(`pace=1 devices=8 ${settings}`), 0, settings)
}

/** Nothing was objected to and nothing is left. */
export const assertClean = (what = ""): void => {
  assert.deepStrictEqual(violations(), [], `violations ${what}`)
  assert.deepStrictEqual(leaks(), [], `leaks ${what}`)
}
