// SPDX-License-Identifier: Apache-2.0
/** Which addresses only this machine can reach. */
import { lookup } from "node:dns/promises"
import * as Effect from "effect/Effect"

const isLoopbackAddress = (address: string): boolean =>
  /^127\.\d+\.\d+\.\d+$/.test(address) || address === "::1" || address.startsWith("::ffff:127.")

/** A name is loopback if all its addresses are; a name that cannot be resolved is not. */
export const isLoopback = (host: string): Effect.Effect<boolean> =>
  isLoopbackAddress(host) || host === "localhost"
    ? Effect.succeed(true)
    : Effect.tryPromise(() => lookup(host, { all: true })).pipe(
        Effect.map((found) => found.length > 0 && found.every(({ address }) => isLoopbackAddress(address))),
        Effect.orElseSucceed(() => false)
      )
