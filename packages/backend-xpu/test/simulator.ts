// SPDX-License-Identifier: Apache-2.0
/**
 * The two drivers under test: the simulated Level Zero driver, opened by the real loader with its validation layers, and
 * OpenCL on the processor. Where their packages are not installed, tests are skipped with the package's name.
 */
import { existsSync } from "node:fs"
import { assert } from "@effect/vitest"
import { findLibrary } from "@tensorferry/native/LibrarySearch"
import { levelZeroSimulator, loadControl } from "@tensorferry/simulators/libraries"
import type { XpuOptions } from "../src/options.ts"

/** The library that the loader opens as a driver. */
export const simulatorPath = levelZeroSimulator

/** See simulators/level-zero/simulator_control.h. */
export interface SimulatorReport {
  readonly violations: ReadonlyArray<{ readonly name: string; readonly detail: string }>
  readonly pending: number
  readonly commands: number
  readonly live: Readonly<Record<string, number>>
  readonly calls: Readonly<Record<string, number>>
}

interface Control {
  readonly openSimulator: (path: string) => {
    readonly configure: (text: string) => number
    readonly report: () => string
    readonly reset: () => void
  }
  readonly readMemory: (address: bigint, bytes: number) => Uint8Array
  readonly writeMemory: (address: bigint, bytes: Uint8Array) => void
  readonly setEnvironment: (name: string, text: string) => void
}

const control = loadControl("level_zero") as Control
const opened = control.openSimulator(simulatorPath)

export const { readMemory, writeMemory, setEnvironment } = control

/** What the loader reads when it starts, with the layers that check every call. */
export const loaderEnvironment: Readonly<Record<string, string>> = {
  ZE_ENABLE_ALT_DRIVERS: simulatorPath,
  ZE_ENABLE_VALIDATION_LAYER: "1",
  ZE_ENABLE_PARAMETER_VALIDATION: "1"
}

export const simulator = { ...opened, report: (): SimulatorReport => JSON.parse(opened.report()) }

export type Subject = "level-zero" | "opencl"

/** Why a driver cannot be tested here. */
export const lackOf = (subject: Subject): string | undefined => {
  if (subject === "level-zero") {
    return findLibrary(["libze_loader.so.1"]).found === undefined
      ? "the package libze1 is missing (scripts/system-packages.sh installs it)"
      : undefined
  }
  return findLibrary(["libOpenCL.so.1"]).found === undefined || !existsSync("/etc/OpenCL/vendors/pocl.icd")
    ? "the packages ocl-icd-libopencl1 and pocl-opencl-icd are missing (scripts/system-packages.sh installs them)"
    : undefined
}

for (const [name, text] of Object.entries(loaderEnvironment)) setEnvironment(name, text)

export const subjects: ReadonlyArray<Subject> = ["level-zero", "opencl"]

/** Name of a group of tests, with the reason where it is skipped. */
export const titleOf = (subject: Subject): string => {
  const lack = lackOf(subject)
  return lack === undefined ? subject : `${subject} (skipped: ${lack})`
}

export const optionsOf = (subject: Subject, options: XpuOptions = {}): XpuOptions => ({ driver: subject, ...options })

/** A fresh simulated driver with these settings. */
export const resetSimulator = (settings = ""): void => {
  simulator.reset()
  assert.strictEqual(simulator.configure(`pace=1 ${settings}`), 0, settings)
}

/** What the simulated driver objects to, and what is left of what a finished test should have given back. */
export const faults = (): ReadonlyArray<string> => {
  const { violations, live, pending } = simulator.report()
  return [
    ...violations.map(({ name, detail }) => `${name}: ${detail}`),
    ...Object.entries(live).flatMap(([kind, count]) => (count === 0 ? [] : [`${count} ${kind} left`])),
    ...(pending === 0 ? [] : [`${pending} commands left`])
  ]
}

export const assertClean = (what = ""): void => assert.deepStrictEqual(faults(), [], what)
