/**
 * Memory of devices that clients share, opened for this process. An application that serves such memory provides the
 * service; without it, an agent refuses these tensors with a remedy.
 */
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { BusError } from "../BusError.ts"
import type { TorchCudaTensor } from "../payload/TensorPayload.ts"

export interface TensorImporterShape {
  /**
   * Opens the memory on the device of this agent, once the client's event has passed, and views it as the tensor; closed
   * by the scope. The reference count of PyTorch is the agent's business.
   */
  readonly open: (tensor: TorchCudaTensor) => Effect.Effect<Tensor, BusError, Scope.Scope>
}

export class TensorImporter extends Context.Service<TensorImporter, TensorImporterShape>()(
  "@tensorferry/bus/agent/TensorImporter"
) {}
