// SPDX-License-Identifier: Apache-2.0
/**
 * Who uses a piece of memory right now, and what waits for them to stop.
 *
 * Invariant: a release that was asked for runs once, as soon as every pin taken before the request is gone. Pins taken
 * later do not delay it, so that memory in constant use still gives back what was freed in it.
 */

/** Pins taken between two requests, and the requests that wait for them and for earlier ones. */
interface Epoch {
  pins: number
  readonly waiting: Array<() => void>
}

export interface PinCount {
  /** Takes a pin; the function gives it back, once. */
  readonly pin: () => () => void
  /** Runs the function now, or when all present pins are gone. */
  readonly whenUnpinned: (release: () => void) => void
}

export const makePinCount = (): PinCount => {
  const epochs: Array<Epoch> = [{ pins: 0, waiting: [] }]

  const settle = (): void => {
    while (epochs[0]!.pins === 0) {
      const done = epochs[0]!.waiting.splice(0)
      if (epochs.length > 1) epochs.shift()
      for (const release of done) release()
      if (epochs.length === 1) return
    }
  }

  return {
    pin: () => {
      const epoch = epochs[epochs.length - 1]!
      epoch.pins += 1
      return () => {
        epoch.pins -= 1
        settle()
      }
    },
    whenUnpinned: (release) => {
      const last = epochs[epochs.length - 1]!
      if (last.pins > 0) {
        last.waiting.push(release)
        epochs.push({ pins: 0, waiting: [] })
      } else if (epochs.length > 1) epochs[epochs.length - 2]!.waiting.push(release)
      else release()
    }
  }
}

/** Takes one pin of each; the function gives all of them back. */
export const pinAll = (pins: Iterable<PinCount>): (() => void) => {
  const undo = Array.from(pins, (each) => each.pin())
  return () => {
    for (const unpin of undo) unpin()
  }
}
