// SPDX-License-Identifier: Apache-2.0
/** A registered batch for the time of a scope: cleaned up when the scope ends, however it ends. */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { BusError } from "../BusError.ts"
import { CleanupBatch } from "../command/Command.ts"
import { type BatchInput, type ModelBatchInput, TensorBusClient } from "./TensorBusClient.ts"

/** What a client does when a batch has come or gone. */
export interface BatchHandler {
  readonly batch: string
  /** Moves the tensors' contents to the other side. */
  readonly send: Effect.Effect<void, BusError>
  /** The same, and states which contents these are: a number that rises. Batches of changes need it. */
  readonly sendAs: (version: number) => Effect.Effect<void, BusError>
  /** Fills the tensors from the other side. */
  readonly receive: Effect.Effect<void, BusError>
  /** Whether a sent batch waits to be received. */
  readonly signal: Effect.Effect<boolean, BusError>
}

/** Registers the batch. A batch that the agent has lost by then needs no cleaning up. */
export const make = (
  input: BatchInput | ModelBatchInput
): Effect.Effect<BatchHandler, BusError, TensorBusClient | Scope.Scope> =>
  Effect.gen(function* () {
    const client = yield* TensorBusClient
    const { batch } = input
    const register = "model" in input ? client.registerModel(input) : client.registerTensors(input)
    // The agent carries out what was asked for although nobody waits any more; what it registers then, it cleans up next.
    const abandon = Effect.ignore(client.cast(new CleanupBatch({ batchId: batch })))
    yield* Effect.acquireRelease(
      Effect.onInterrupt(register, () => abandon),
      () => Effect.ignore(client.cleanupBatch(batch)),
      { interruptible: true }
    )
    return {
      batch,
      send: client.transfer(batch, "send"),
      sendAs: (version) => client.transfer(batch, "send", version),
      receive: client.transfer(batch, "recv"),
      signal: client.transferSignal(batch)
    }
  })
