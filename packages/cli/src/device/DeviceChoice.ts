// SPDX-License-Identifier: Apache-2.0
/**
 * Which devices hold the tensors of a job, as `--device` says it: `cuda` gives each rank the device of its number on its host,
 * modulo their number; `cuda:0` puts all ranks on one device; `cuda:0,2` lets ranks take those in turn. Plain data.
 */
import * as Schema from "effect/Schema"

const mostDevices = 64

/** The vendor whose devices are used, and their numbers where they were stated. */
export const DeviceChoice = Schema.Struct({
  family: Schema.Literals(["cuda", "rocm"]),
  ordinals: Schema.optionalKey(Schema.Array(Schema.Int).check(Schema.isMinLength(1)))
})
export type DeviceChoice = typeof DeviceChoice.Type

/** What `parseDevices` takes, in words. */
export const deviceForms = "cuda, cuda:0, a list as cuda:0,1, or the same with rocm"

/** Undefined for anything else. */
export const parseDevices = (text: string): DeviceChoice | undefined => {
  const match = /^(cuda|rocm)(?::(\d{1,3}(?:,\d{1,3})*))?$/.exec(text)
  if (match === null) return undefined
  const family = match[1] === "rocm" ? "rocm" : "cuda"
  const ordinals = match[2]?.split(",").map(Number)
  if (ordinals === undefined) return { family }
  return ordinals.length > mostDevices || ordinals.some((one) => one >= mostDevices) ? undefined : { family, ordinals }
}

/** As one would write it. */
export const formatDevices = ({ family, ordinals }: DeviceChoice): string =>
  ordinals === undefined ? family : `${family}:${ordinals.join(",")}`

/** The options of a backend on GPUs that choose the device of the rank with this number on its host. */
export const deviceOptions = ({ family, ordinals }: DeviceChoice, localRank: number) => ({
  // Without it the first vendor that has a device is taken, which is this one unless both are there.
  ...(family === "rocm" ? { vendor: family } : {}),
  ...(ordinals === undefined ? {} : { device: ordinals[localRank % ordinals.length]! })
})

/** The same with options that were stated, which take precedence. */
export const optionsOnDevice = (choice: DeviceChoice, localRank: number, stated: unknown): object => ({
  ...deviceOptions(choice, localRank),
  ...(typeof stated === "object" && stated !== null ? stated : {})
})
