// SPDX-License-Identifier: Apache-2.0
/**
 * The vendor's copy function alone, in a native loop, for comparisons. The loop is an addon of its own (native/), which
 * bundle.ts builds; it works with the libraries that a device of @tensorferry/gpu has opened.
 */
import { createRequire } from "node:module"
import { fileURLToPath } from "node:url"
import type { NativeLibraries } from "@tensorferry/gpu/Addon"
import type { Gpu } from "@tensorferry/gpu/Gpu"
import type { Done, NativeAnswer, NativeFailure } from "@tensorferry/native/NativeAddon"
import { type JobControl, type NativeJobHandle, runJob } from "@tensorferry/native/NativeJob"
import * as Effect from "effect/Effect"

/** What signals the end of copies, as the addon numbers it. */
const rawSignals = { nothing: 0, timedEvent: 1, event: 2, value: 3 } as const

/** Dense slots, one behind the other on either side, and how they are copied. */
export interface RawSlots {
  readonly destination: bigint
  /** Pinned. */
  readonly source: bigint
  readonly byteLength: number
  readonly slots: number
  /** Events that signal the end of copies, one behind every so many of a stream. */
  readonly signal: keyof typeof rawSignals
  readonly streams: number
  readonly copiesPerSignal: number
}

/** Seconds until all copies were queued, and until they had ended. */
export interface RawTimes {
  readonly submitSeconds: number
  readonly seconds: number
}

interface RawCopiesAddon extends JobControl {
  readonly startRawCopies: (
    libraries: NativeLibraries,
    ordinal: number,
    destination: bigint,
    source: bigint,
    byteLength: number,
    slots: number,
    signal: number,
    streams: number,
    copiesPerSignal: number,
    count: number,
    done: Done<RawTimes>
  ) => NativeAnswer<NativeJobHandle>
}

/** Where CMake builds the addon, beside this module or beside the bundle that this module is part of. */
export const rawCopiesPath = fileURLToPath(new URL("./native/build/Release/raw_copies.node", import.meta.url))

/** Times so many copies by the vendor's function alone, slot by slot. */
export const timeRawCopies = (gpu: Gpu, raw: RawSlots, count: number): Effect.Effect<RawTimes, NativeFailure> =>
  Effect.suspend(() => {
    const addon = createRequire(import.meta.url)(rawCopiesPath) as RawCopiesAddon
    return runJob<RawTimes>(
      addon,
      (done) =>
        addon.startRawCopies(
          gpu.libraries,
          gpu.ordinal,
          raw.destination,
          raw.source,
          raw.byteLength,
          raw.slots,
          rawSignals[raw.signal],
          raw.streams,
          raw.copiesPerSignal,
          count,
          done
        ),
      () => {}
    )
  })
