// SPDX-License-Identifier: Apache-2.0
/**
 * Prepares batches of a replay pipeline in the background: packed by the collector, then copied into the device slot.
 *
 * Invariant: however a preparation ends, `submitted` and `ended` of its batch end too.
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import type * as Scope from "effect/Scope"
import type { ReplayTransferBackendShape, ReplayTransferError } from "../../service/ReplayTransferBackend.ts"
import { inSpan } from "../../service/Spans.ts"
import type { Tensor } from "../../tensor/Tensor.ts"
import type { ReplayPackRequestsShape } from "../ReplayPackRequests.ts"
import { batchError, pipelineClosed, type ReplayPipelineError, transferFailed } from "../ReplayPipelineError.ts"
import { collectSpan } from "../ReplaySpans.ts"
import type { PipelineAccounts } from "./accounts.ts"
import type { Prepared } from "./pipelineState.ts"

/** What preparations of one pipeline share. */
export interface PreparingInput {
  readonly backend: ReplayTransferBackendShape
  readonly requests: ReplayPackRequestsShape
  /** In which preparations run. */
  readonly scope: Scope.Scope
  readonly rows: number
  readonly rowBytes: number
  readonly seed: number
  readonly hostSlots: ReadonlyArray<Tensor>
  readonly deviceSlots: ReadonlyArray<Tensor>
  /** By slot: what must have happened before the device slot is written again. */
  readonly consumed: ReadonlyArray<Effect.Effect<void>>
  /** The consumer's wait makes the copy. */
  readonly isDeferred: boolean
  readonly accounts: PipelineAccounts
}

const now = Clock.monotonicTimeNanos

/** A call into the backend for a batch; its failure becomes the batch's. */
export const transfer = <A>(
  batch: Prepared,
  call: Effect.Effect<A, ReplayTransferError>
): Effect.Effect<A, ReplayPipelineError> => Effect.mapError(call, (error) => transferFailed(batch, error))

export const makePreparing = (input: PreparingInput) => {
  const { backend, requests, rows, seed, hostSlots, deviceSlots, consumed, accounts } = input

  const spanOf = <A, E>(effect: Effect.Effect<A, E>, name: string, { tick, slot }: Prepared): Effect.Effect<A, E> =>
    inSpan(effect, name, () => ({ tick, slot, rows, bytes: rows * input.rowBytes }))

  const pack = Effect.fnUntraced(function* ({ tick, slot }: Prepared) {
    const start = yield* now
    const packed = yield* requests.pack({ tick, slot, seed, rows })
    accounts.packed((yield* now) - start, packed.redrawn)
    yield* collectSpan(packed)
    return packed
  })

  const prepare = Effect.fnUntraced(function* (batch: Prepared) {
    const { slot } = batch
    // A copy that was given up on, and still reads the host slot.
    if ((yield* transfer(batch, backend.slotState(slot))) === "submitted") {
      yield* Effect.ignore(backend.waitReady(slot))
      if ((yield* transfer(batch, backend.slotState(slot))) === "submitted") {
        return yield* batchError("DeadlineExceeded", batch, {
          op: "waitReady",
          detail: "An earlier copy of the slot does not end.",
          remedy: "See whether the device still works."
        })
      }
    }
    const packed = yield* spanOf(pack(batch), "replay.pack", batch)
    yield* consumed[slot]!
    const start = yield* now
    yield* transfer(batch, backend.clearReady(slot))
    const submission = { slot, destination: deviceSlots[slot]!, source: hostSlots[slot]! }
    const submitted = transfer(batch, backend.submitH2d(submission))
    accounts.submitted(yield* spanOf(submitted, "replay.submit", batch))
    yield* Deferred.succeed(batch.submitted, packed)
    // A deferred copy happens in the consumer's wait, which nobody may make in its place.
    if (input.isDeferred) return
    yield* spanOf(transfer(batch, backend.waitReady(slot)), "replay.copy", batch)
    const seconds = yield* transfer(batch, backend.copySeconds(slot))
    accounts.copied(seconds ?? Number((yield* now) - start) / 1e9)
  })

  const inBackground = (batch: Prepared): Effect.Effect<Fiber.Fiber<unknown>> =>
    prepare(batch).pipe(
      Effect.onExit((exit) => {
        const isInterrupted = Exit.isFailure(exit) && Cause.hasInterruptsOnly(exit.cause)
        const end = isInterrupted ? Exit.fail(pipelineClosed("prepare", batch.tick)) : exit
        const unsubmitted = Exit.isFailure(end) ? Deferred.failCause(batch.submitted, end.cause) : Effect.void
        return Effect.andThen(unsubmitted, Deferred.done(batch.ended, end))
      }),
      Effect.exit,
      Effect.forkIn(input.scope)
    )

  return { inBackground, spanOf }
}
