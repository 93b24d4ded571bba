// SPDX-License-Identifier: Apache-2.0
/**
 * What the addon and the vendor's libraries report, as the errors of the services: which thing failed and what to do.
 */
import { type BackendError, backendError } from "@tensorferry/core/backend/BackendDescriptor"
import { type TensorError, tensorError } from "@tensorferry/core/service/TensorEngine"
import { describeFailure } from "@tensorferry/native/describeFailure"
import { type DriverErrors, driverErrors } from "@tensorferry/native/driver/DriverErrors"
import { refusalOf } from "@tensorferry/native/MoveChecks"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import { packageName } from "./Addon.ts"

/** A tensor error for a request that is wrong, before anything was done. */
export const refusal = refusalOf(packageName)

const nativeCodeOf = ({ nativeCode }: NativeFailure) => (nativeCode === 0 ? {} : { nativeCode })

/** A failure of work on tensors. */
export const tensorFailure = (op: string, failure: NativeFailure): TensorError => {
  if (failure.code === "InvalidArgument") return refusal("InvalidRequest", op, describeFailure(failure))
  const isClosed = failure.code === "Cancelled" || failure.code === "InvalidHandle"
  return tensorError(failure.code === "OutOfMemory" ? "OutOfMemory" : "DeviceFailure", {
    backend: packageName,
    op,
    detail: describeFailure(failure),
    remedy:
      failure.code === "OutOfMemory"
        ? "Free tensors, or ask for less; another process may use the device too."
        : isClosed
          ? "The engine was closed; build it again."
          : "Look up the native code; after a failure of the device the process must be started again.",
    ...nativeCodeOf(failure)
  })
}

/** A failure to set up what a layer needs. */
export const unavailable = (backend: string, detail: string, remedy: string, op = "open device"): BackendError =>
  backendError("Unavailable", { backend, op, detail, remedy, scope: "service" })

/** A backend error that says what is missing and what helps. */
export const unavailableBecause = (backend: string, failure: NativeFailure): BackendError =>
  backendError("Unavailable", {
    backend,
    op: failure.op,
    detail: failure.detail,
    remedy: "Run `tensorferry doctor`; look up the native code in the vendor's documentation.",
    scope: "service",
    ...nativeCodeOf(failure)
  })

/** Errors of a copy driver over this device layer. */
export const deviceDriverErrors = (backend: string, rank: number): DriverErrors =>
  driverErrors(backend, rank, {
    UnreachableMemory:
      "Allocate with this backend's engine on devices that access each other, or choose the backend cuda."
  })
