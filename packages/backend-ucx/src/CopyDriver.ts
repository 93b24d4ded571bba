// SPDX-License-Identifier: Apache-2.0
/**
 * `CopyDriver` over UCX: tensors of the host travel over whatever transport UCX finds between two ranks, on a thread of its own.
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
import { makeFabric } from "./Fabric.ts"
import type { UcxOptions } from "./options.ts"

/** What the driver promises; the conformance kit holds it to each flag. */
export const capabilities = wireCapabilities

/** The driver over a loaded addon for one rank of a group. It fails with BackendError where UCX cannot be used. */
export const make = (
  addon: Addon,
  group: ProcessGroupShape,
  token: string | undefined,
  options: UcxOptions = {}
): Effect.Effect<CopyDriverShape, BackendError, Scope.Scope> =>
  Effect.map(makeFabric(addon, group, token, options), (wire) => makeWireDriver(backendName, addon, group, wire))

/** Fails with "Unavailable" where the addon or UCX cannot be loaded, or no transport works. */
export const layer = (options: UcxOptions = {}): Layer.Layer<CopyDriver, BackendError, ProcessGroup> =>
  wireDriverLayer(backendName, loadAddon, options, (addon, group, token) => makeFabric(addon, group, token, options))
