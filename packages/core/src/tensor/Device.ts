// SPDX-License-Identifier: Apache-2.0
/**
 * Where memory lives: a family that one `TensorEngine` serves, and the index within it.
 */
import * as Schema from "effect/Schema"

/** `cpu`, `cuda:1`, `xpu:0`: a family of lower-case letters, digits and dashes, with an index unless it is 0. */
export const DeviceText = Schema.String.check(Schema.isPattern(/^[a-z][a-z0-9_-]*(:\d{1,5})?$/))

/** Where memory lies: a family, as `cpu`, and the number of the device in it. */
export interface Device {
  readonly family: string
  readonly index: number
}

/** The host. */
export const cpu: Device = { family: "cpu", index: 0 }

/** Parses `family` or `family:index`; `undefined` for anything else. */
export const parseDevice = (text: string): Device | undefined => {
  const match = /^([a-z][a-z0-9_-]*)(?::(\d{1,5}))?$/.exec(text)
  return match === null ? undefined : { family: match[1]!, index: Number(match[2] ?? 0) }
}

/** As `cuda:0`. */
export const formatDevice = (device: Device): string =>
  device.index === 0 && device.family === "cpu" ? "cpu" : `${device.family}:${device.index}`

/** Whether both name one device. */
export const equalDevices = (a: Device, b: Device): boolean => a.family === b.family && a.index === b.index
