// SPDX-License-Identifier: Apache-2.0
/**
 * Whether this machine has the devices that a job names, asked before anything is read or written. Nothing on a device is
 * touched: the command itself takes none of their memory.
 */
import { backendError } from "@tensorferry/core/backend/BackendDescriptor"
import { modelError } from "@tensorferry/model/ModelError"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { type DeviceChoice, formatDevices } from "./DeviceChoice.ts"

/** Fails with Unavailable where a library or every device is missing, with InvalidUsage where a stated one is. */
export const requireDevices = Effect.fnUntraced(function* (choice: DeviceChoice) {
  const { family, ordinals = [] } = choice
  const missing = (detail: string, remedy: string) =>
    backendError("Unavailable", { backend: family, op: `--device ${formatDevices(choice)}`, detail, remedy })
  const [{ loadAddon }, { discover }] = yield* Effect.promise(() =>
    Promise.all([import("@tensorferry/gpu/Addon"), import("@tensorferry/gpu/discover")])
  )
  const addon = yield* loadAddon
  const found = discover(addon, { vendor: family })
  if (Result.isFailure(found)) {
    const { cause, remedy } = found.failure
    return yield* missing(
      cause,
      `${remedy} \`tensorferry doctor\` shows what this machine has, and where it was looked for.`
    )
  }
  const { count } = found.success
  const absent = ordinals.find((ordinal) => ordinal >= count)
  if (absent === undefined) return
  return yield* modelError("InvalidUsage", {
    op: `--device ${formatDevices(choice)}`,
    detail: `There is no device ${family}:${absent}; this machine shows ${count}.`,
    remedy: count === 1 ? `Name ${family}:0, or ${family} alone.` : `Name devices from 0 to ${count - 1}.`
  })
})
