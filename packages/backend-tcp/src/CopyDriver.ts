// SPDX-License-Identifier: Apache-2.0
/**
 * `CopyDriver` between hosts: tensors travel over many connections of TCP, gathered from where they lie and scattered to where
 * they belong, on threads of their own.
 *
 * Invariants: those of a driver over a wire. Bytes go only where a receiver has said that its memory waits, and the sender is
 * done when the receiver has confirmed all of them.
 */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { CopyDriver, type CopyDriverShape } from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { makeWireDriver, tokenOf, wireCapabilities } from "@tensorferry/native/driver/WireDriver"
import { resultOf } from "@tensorferry/native/NativeAddon"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import { type Addon, backendName, loadAddon } from "./Addon.ts"
import { makeNetwork } from "./Network.ts"
import type { TcpOptions } from "./options.ts"
import { PublishedEndpoint } from "./Publication.ts"

/** What the driver promises; the conformance kit holds it to each flag. */
export const capabilities = wireCapabilities

/** The driver over a loaded addon for one rank of a group. It fails with BackendError where no address can be used. */
export const make = Effect.fnUntraced(function* (
  addon: Addon,
  group: ProcessGroupShape,
  token: string | undefined,
  options: TcpOptions = {}
): Effect.fn.Return<CopyDriverShape, BackendError, Scope.Scope> {
  const network = yield* makeNetwork(addon, group, token, options)
  const { endpoint, published } = network
  return makeWireDriver(backendName, addon, group, {
    published,
    schema: PublishedEndpoint,
    meet: network.meet,
    connect: network.connect,
    // Receivers are dialed.
    connectsToReceive: false,
    describe: (peer) => ({ path: backendName, reason: network.describe(peer) }),
    addFlow: (peer, { program, isSending, table }) =>
      resultOf(addon.addFlow(endpoint, peer, program, isSending, table)),
    closeFlow: (flow) => {
      addon.closeFlow(endpoint, flow)
    },
    start: (flows, done) => addon.startTransfer(endpoint, flows, done)
  })
})

/** Fails with "Unavailable" where the addon cannot be loaded, or no address can be used. */
export const layer = (options: TcpOptions = {}): Layer.Layer<CopyDriver, BackendError, ProcessGroup> =>
  Layer.effect(
    CopyDriver,
    Effect.gen(function* () {
      return yield* make(yield* loadAddon, yield* ProcessGroup, yield* tokenOf(options), options)
    })
  )
