// SPDX-License-Identifier: Apache-2.0
/**
 * Memory of devices that clients share, opened for this process. An application that serves such memory provides the
 * service; without it, an agent refuses these tensors with a remedy.
 */

import type { Storage } from "@tensorferry/core/tensor/Storage"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type BusError, busError } from "../BusError.ts"
import { byteOffsetOf, type TorchCudaTensor } from "../payload/TensorPayload.ts"

/** What an importer offers: a client's tensor by its payload, held until the scope ends. */
export interface TensorImporterShape {
  /**
   * Opens the memory on the device of this agent, once the client's event has passed, and views it as the tensor; closed
   * by the scope. The reference count of PyTorch is the agent's business.
   */
  readonly open: (tensor: TorchCudaTensor) => Effect.Effect<Tensor, BusError, Scope.Scope>
}

/** The service that opens memory which clients hand over: of the host by name, of devices by handle. */
export class TensorImporter extends Context.Service<TensorImporter, TensorImporterShape>()(
  "@tensorferry/bus/agent/TensorImporter"
) {}

/** What a backend offers for memory of other processes; that of `@tensorferry/backend-cuda` is one. */
export interface DeviceImport {
  /** Memory of another process by its handle, as storage until the scope ends; waits for `event` where one is given. */
  readonly open: (request: {
    readonly handle: Uint8Array
    readonly byteOffset: number
    readonly byteLength: number
    readonly event?: Uint8Array
    readonly deadline?: Duration.Input
  }) => Effect.Effect<Storage, { readonly message: string }, Scope.Scope>
  /** Memory of no bytes, for tensors without elements. */
  readonly empty: Effect.Effect<Storage, { readonly message: string }, Scope.Scope>
}

const op = "RegisterTensors"

const unavailable = ({ message }: { readonly message: string }): BusError =>
  busError("MemoryUnavailable", {
    op,
    detail: message,
    remedy: "Keep the tensor alive in the client, and run client and agent as the same user with the same device."
  })

/** The importer over a backend. `deadline` bounds the wait for what the client's device still has to do. */
export const importerOver = (devices: DeviceImport, deadline: Duration.Input): TensorImporterShape => ({
  open: (payload) =>
    Effect.gen(function* () {
      const { memory } = payload
      const opening =
        memory === null
          ? devices.empty
          : devices.open({
              handle: memory.handle,
              byteOffset: memory.storageOffsetBytes,
              byteLength: memory.storageBytes,
              ...(memory.isEventSyncRequired && memory.event.length > 0 ? { event: memory.event } : {}),
              deadline
            })
      const storage = yield* Effect.mapError(opening, unavailable)
      const view = tensorView(storage, payload.dtype, payload.shape, {
        strides: payload.strides,
        byteOffset: memory === null ? 0 : byteOffsetOf(payload)
      })
      return yield* Result.isSuccess(view)
        ? Effect.succeed(view.success)
        : busError("InvalidPayload", { op, detail: `${view.failure.detail}.`, remedy: "Share the tensor again." })
    })
})
