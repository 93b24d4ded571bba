// SPDX-License-Identifier: Apache-2.0
/** Failures of native code in words. */
import type { NativeFailure } from "./NativeAddon.ts"

/** Which call failed, and how. */
export const describeFailure = ({ op, detail }: NativeFailure): string => `${op}: ${detail}`
