// SPDX-License-Identifier: Apache-2.0
/** How a process of a job enters the bus again after whatever ended: the pair where it is not there, then its batch. */
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import type { BusError } from "../src/BusError.ts"
import type { PairInput, TensorBusClientShape } from "../src/client/TensorBusClient.ts"

/** What goes away by itself, or by `initPair`. */
const passing = ["PairExists", "PairBroken", "UnknownPair", "BatchGone", "AgentGone"]

/** Tries until the batch is registered. A wait until a deadline is an error. */
export const join = (
  client: TensorBusClientShape,
  pair: PairInput,
  batch: string,
  tensor: Tensor
): Effect.Effect<void, BusError> => {
  const again = Effect.suspend(() => join(client, pair, batch, tensor))
  const passes = ({ reason }: BusError) => passing.includes(reason._tag)
  return Effect.catchIf(client.registerTensors({ batch, tensors: [[pair.pair, tensor]] }), passes, ({ reason }) =>
    reason._tag === "PairBroken" || reason._tag === "UnknownPair"
      ? Effect.andThen(
          Effect.catchIf(client.initPair(pair), passes, () => Effect.void),
          again
        )
      : again
  )
}
