// SPDX-License-Identifier: Apache-2.0
/**
 * The failure of a layer whose native side could not be set up.
 */
import { type BackendError, backendError } from "@tensorferry/core/backend/BackendDescriptor"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import { backendName } from "./Addon.ts"

export const unavailableBecause = (failure: NativeFailure): BackendError =>
  backendError("Unavailable", {
    backend: backendName,
    op: failure.op,
    detail: failure.detail,
    remedy: "Make sure that /proc is mounted and that the process may start threads and open files.",
    scope: "service",
    nativeCode: failure.nativeCode
  })
