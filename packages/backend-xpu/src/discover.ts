// SPDX-License-Identifier: Apache-2.0
/**
 * Finds out by which library this machine reaches Intel devices: opens Level Zero, then OpenCL, and lists devices.
 *
 * Invariant: says what was tried, what was missing and what helps, whichever step ends it; and of a choice among the two,
 * why it was made. Nothing on a device is touched.
 */

import { describeFailure } from "@tensorferry/native/describeFailure"
import { runJob } from "@tensorferry/native/NativeJob"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Addon, DeviceFacts, DriverName, NativePlatform, OpenedDriver } from "./Addon.ts"
import { driverLibraries, libraryNames, searchedPaths } from "./libraries.ts"
import type { Environment, XpuOptions } from "./options.ts"

export interface Discovered {
  readonly driver: DriverName
  readonly platform: NativePlatform
  /** The library's file. */
  readonly path: string
  /** At least one; processors that run OpenCL come last. */
  readonly devices: ReadonlyArray<DeviceFacts>
  /** Why this driver, and why not the other. */
  readonly reason: string
}

export interface Missing {
  readonly tried: ReadonlyArray<string>
  readonly cause: string
  readonly remedy: string
  readonly nativeCode: number
}

/** Names the driver where neither option nor code does. */
export const driverVariable = "TENSORFERRY_XPU_DRIVER"

const order: ReadonlyArray<DriverName> = ["level-zero", "opencl"]

const wantedDriver = (options: XpuOptions, environment: Environment): DriverName | "auto" | undefined => {
  if (options.driver !== undefined) return options.driver
  const named = environment[driverVariable]
  if (named === undefined || named === "" || named === "auto") return "auto"
  return order.find((driver) => driver === named)
}

/** In few words where the library is simply not there: what was tried is listed beside it. */
const problemOf = ({ problem = "not found" }: OpenedDriver): string => {
  const parts = problem.replace(/\.$/, "").split("; ")
  return parts.find((part) => !part.includes("No such file or directory")) ?? "its loader was not found"
}

/** Drivers that work, by what was asked for: opening one again would list the same. */
const opened = new Map<string, OpenedDriver>()

const openDriver = (addon: Addon, driver: DriverName, names: ReadonlyArray<string>) =>
  Effect.suspend(() => {
    const key = [driver, ...names].join("\n")
    const known = opened.get(key)
    if (known !== undefined) return Effect.succeed(known)
    return Effect.tap(
      runJob<OpenedDriver>(
        addon,
        (done) => addon.startOpenDriver(driver, names, done),
        () => {}
      ),
      (answer) => Effect.sync(() => answer.devices.length > 0 && opened.set(key, answer))
    )
  })

type Tried = Result.Result<Omit<Discovered, "reason">, Missing>

const inDriver = (
  addon: Addon,
  driver: DriverName,
  options: XpuOptions,
  environment: Environment
): Effect.Effect<Tried> => {
  const { title, variable, remedy } = driverLibraries[driver]
  const names = libraryNames(driver, options, environment)
  return Effect.match(openDriver(addon, driver, names), {
    onFailure: (failure): Tried =>
      Result.fail({
        tried: [],
        cause: describeFailure(failure),
        remedy: "Correct the option libraries: names and paths of files.",
        nativeCode: failure.nativeCode
      }),
    onSuccess: (answer): Tried => {
      const { platform, path, devices } = answer
      if (platform === undefined || path === undefined) {
        return Result.fail({
          tried: path === undefined ? searchedPaths(names) : [path],
          cause: `${title} cannot be used: ${problemOf(answer)}.`,
          remedy: `${remedy}, or name its file in ${variable}.`,
          nativeCode: answer.nativeCode
        })
      }
      if (devices.length > 0) return Result.succeed({ driver, platform, path, devices })
      return Result.fail({
        tried: [path],
        cause: `${title} shows no device.`,
        remedy: `${remedy}, or pass a device into the container.`,
        nativeCode: 0
      })
    }
  })
}

/** The driver that was asked for, or the first that has a device. */
export const discover = Effect.fnUntraced(function* (
  addon: Addon,
  options: XpuOptions,
  environment: Environment = process.env
): Effect.fn.Return<Discovered, Missing> {
  const wanted = wantedDriver(options, environment)
  if (wanted === undefined) {
    return yield* Effect.fail({
      tried: [],
      cause: `The variable ${driverVariable} names "${environment[driverVariable]}", which is no driver.`,
      remedy: `Set it to auto, ${order.join(" or ")}.`,
      nativeCode: 0
    })
  }
  const faults: Array<Missing> = []
  for (const driver of wanted === "auto" ? order : [wanted]) {
    const found = yield* inDriver(addon, driver, options, environment)
    if (Result.isFailure(found)) {
      faults.push(found.failure)
      continue
    }
    const chosen = wanted === "auto" ? `${driverLibraries[driver].title} has a device` : "chosen by name"
    return { ...found.success, reason: [...faults.map(({ cause }) => cause.replace(/\.$/, "")), chosen].join("; ") }
  }
  return yield* Effect.fail({
    tried: [...new Set(faults.flatMap(({ tried }) => tried))],
    cause: faults.map(({ cause }) => cause).join(" "),
    remedy: faults.map(({ remedy }) => remedy).join(" "),
    nativeCode: faults[0]!.nativeCode
  })
})
