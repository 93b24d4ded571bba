// SPDX-License-Identifier: Apache-2.0
/**
 * What a connection may cost whose peer has not proved yet that it knows the token: bytes, time and a place.
 *
 * Invariant: strangers keep no place from anybody. Where one more comes than there are places, the oldest goes.
 */

/** Longest body of a frame of the handshake. */
export const handshakeBytes = 4096

/** How long a handshake may take. */
export const handshakeTime = "10 seconds"

/** Connections that have not proved themselves. */
export interface Lobby<T> {
  /** Takes a place; the oldest makes room where there is none. */
  readonly enter: (one: T) => void
  /** After the proof or the end. */
  readonly leave: (one: T) => void
}

/** A lobby with this many places; `evict` ends a connection. */
export const makeLobby = <T>(places: number, evict: (oldest: T) => void): Lobby<T> => {
  const inside = new Set<T>()
  return {
    enter: (one) => {
      for (const oldest of inside) {
        if (inside.size < places) break
        inside.delete(oldest)
        evict(oldest)
      }
      inside.add(one)
    },
    leave: (one) => void inside.delete(one)
  }
}
