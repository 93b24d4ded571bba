/**
 * The simulated GPU driver under control of the tests: where it lies, how it behaves, and what it saw.
 */
import { createRequire } from "node:module"
import { join } from "node:path"
import { type Addon, type LibraryNames, packageFolder } from "../src/Addon.ts"

const buildFolder = process.env.TENSORFERRY_CUDA_TEST_BUILD ?? join(packageFolder, "build")

/** The library that takes the place of all four. */
export const simulatorPath = join(buildFolder, "native/simulator/libtensorferry_gpu_simulator.so")

export const simulatedLibraries: LibraryNames = {
  runtime: [simulatorPath],
  driver: [simulatorPath],
  compiler: [simulatorPath],
  collectives: [simulatorPath]
}

/** See native/simulator/simulator_control.h. */
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

const require = createRequire(import.meta.url)

const control: Control = require(join(buildFolder, "test/simulator_control.node")).openSimulator(simulatorPath)

export const simulator = {
  ...control,
  report: (): SimulatorReport => JSON.parse(control.report())
}

/** What is left of kinds that a finished test should have given back. */
export const leaks = (): ReadonlyArray<string> =>
  Object.entries(simulator.report().live).flatMap(([kind, count]) => (count === 0 ? [] : [`${kind}: ${count}`]))

/** What the simulated driver objects to. */
export const violations = (): ReadonlyArray<string> =>
  simulator.report().violations.map(({ name, detail }) => `${name}: ${detail}`)

/** Opens the simulated libraries; for tests of the addon itself. */
export const openSimulated = (addon: Addon) => addon.openLibraries("cuda", simulatedLibraries)
