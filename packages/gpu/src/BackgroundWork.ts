// SPDX-License-Identifier: Apache-2.0
/**
 * Work on devices that nobody awaits: copies that were queued and go on by themselves, whatever becomes of their caller.
 *
 * Invariant: memory that others allocated on the same device is given back only behind such work, so that it may be freed
 * at any time. A queue asks its device only when somebody wants to know.
 */
import * as Effect from "effect/Effect"
import type { Vendor } from "./Addon.ts"

/** Native work that goes on beside JavaScript, and the wait for its end. */
export interface BackgroundWork {
  /** True where something runs; `action` is then called once, when all that runs now has ended. */
  readonly whenIdle: (action: () => void) => boolean
}

/** By device, for all that this process has open there. */
const works = new Map<string, Set<BackgroundWork>>()

const keyOf = (vendor: Vendor, ordinal: number): string => `${vendor}:${ordinal}`

/** What is announced on a device at present. */
export const backgroundOf = (vendor: Vendor, ordinal: number): Iterable<BackgroundWork> =>
  works.get(keyOf(vendor, ordinal)) ?? []

/** Announces work on a device; answers how to withdraw it. */
export const addBackground = (vendor: Vendor, ordinal: number, work: BackgroundWork): (() => void) => {
  const key = keyOf(vendor, ordinal)
  const known = works.get(key) ?? new Set()
  works.set(key, known.add(work))
  return () => {
    known.delete(work)
    if (known.size === 0) works.delete(key)
  }
}

/** A device that does not answer any more is given up after this. */
const patience = "15 seconds"

/** Ends when what runs on the device now has ended. */
export const idle = (work: BackgroundWork): Effect.Effect<void> =>
  Effect.callback<void>((resume) => {
    if (!work.whenIdle(() => resume(Effect.void))) resume(Effect.void)
  }).pipe(Effect.timeoutOption(patience), Effect.asVoid)

/** Ends when all that is announced on a device is idle; each piece of work is given up after 15 seconds. */
export const backgroundIdle = (vendor: Vendor, ordinal: number): Effect.Effect<void> =>
  Effect.suspend(() => Effect.forEach([...backgroundOf(vendor, ordinal)], idle, { discard: true }))
