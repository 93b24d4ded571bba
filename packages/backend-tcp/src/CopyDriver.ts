// SPDX-License-Identifier: Apache-2.0
/**
 * `CopyDriver` between hosts: tensors travel over many connections of TCP, gathered from where they lie and scattered to where
 * they belong, on threads of their own.
 *
 * Invariants: those of a driver over a wire. Bytes go only where a receiver has said that its memory waits, and the sender is
 * done when the receiver has confirmed all of them.
 */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import type { CopyDriver, CopyDriverShape } from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroup, ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { makeWireDriver, wireDriverLayer } from "@tensorferry/native/driver/WireDriver"
import { wireCapabilities } from "@tensorferry/native/driver/wireCapabilities"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import { type Addon, backendName, loadAddon } from "./Addon.ts"
import { makeNetwork } from "./Network.ts"
import type { TcpOptions } from "./options.ts"

/** What the driver promises; the conformance kit holds it to each flag. */
export const capabilities = wireCapabilities

/** The driver over a loaded addon for one rank of a group. It fails with BackendError where no address can be used. */
export const make = (
  addon: Addon,
  group: ProcessGroupShape,
  token: string | undefined,
  options: TcpOptions = {}
): Effect.Effect<CopyDriverShape, BackendError, Scope.Scope> =>
  Effect.map(makeNetwork(addon, group, token, options), (wire) => makeWireDriver(backendName, addon, group, wire))

/** Fails with "Unavailable" where the addon cannot be loaded, or no address can be used. */
export const layer = (options: TcpOptions = {}): Layer.Layer<CopyDriver, BackendError, ProcessGroup> =>
  wireDriverLayer(backendName, loadAddon, options, (addon, group, token) => makeNetwork(addon, group, token, options))
