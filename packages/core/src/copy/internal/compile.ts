// SPDX-License-Identifier: Apache-2.0
/**
 * Compiles a batch: gives its messages memory and has the driver prepare them.
 *
 * Invariants: the ranks agree on every step before the next; what a failed compilation had taken is released.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import type { CopyDriverShape } from "../../service/CopyDriver.ts"
import type { CopyError } from "../../service/CopyService.ts"
import { type Tensor, tensorByteLength } from "../../tensor/Tensor.ts"
import { type CopyBatch, memoryKey } from "./batch.ts"
import type { Agreement, RunCollectives } from "./handshake.ts"
import type { CopyMachine } from "./machine.ts"
import type { CopyParts } from "./parts.ts"
import type { Round } from "./rounds.ts"
import type { CompiledProgram } from "./runState.ts"
import { settle } from "./settle.ts"

export const compile = Effect.fnUntraced(function* (
  { scope: serviceScope, capabilities, rounds: cut, calls }: CopyParts,
  machine: CopyMachine,
  collectives: RunCollectives,
  driver: CopyDriverShape,
  batch: CopyBatch,
  agreement: Agreement
): Effect.fn.Return<CompiledProgram, CopyError> {
  yield* machine.on({ _tag: "Compiling" })
  const scope = yield* Scope.fork(serviceScope)
  const drafts = cut.draftBatch(batch)

  const agreed = <A>(label: "copy staging" | "copy prepare", step: Effect.Effect<A, CopyError>) =>
    Effect.gen(function* () {
      const done = yield* Effect.result(step)
      if (Result.isFailure(done) && done.failure.reason.scope === "service") yield* machine.on({ _tag: "DriverFailed" })
      return yield* settle(collectives, machine, label, done)
    })

  const prepared = (buffers: ReadonlyMap<string, Tensor>) =>
    Effect.gen(function* () {
      const rounds: Array<Round> = []
      for (let index = 0; index < agreement.rounds; index++) {
        const round = cut.roundOf(cut.draftsOfRound(drafts, index), buffers)
        rounds.push({ ...round, program: yield* calls.bounded("prepare", driver.prepare(round.messages)) })
      }
      return rounds
    })

  const body = Effect.gen(function* () {
    const buffers = capabilities.gather
      ? new Map<string, Tensor>()
      : yield* agreed("copy staging", Scope.provide(cut.allocateStaging(drafts), scope))
    const rounds = yield* agreed("copy prepare", Scope.provide(prepared(buffers), scope))
    const program: CompiledProgram = {
      memory: memoryKey(batch),
      agreed: agreement.agreed,
      rounds,
      stagingBytes: [...buffers.values()].reduce((sum, buffer) => sum + tensorByteLength(buffer), 0),
      messages: drafts.length,
      scope
    }
    yield* machine.on({ _tag: "Compiled", program })
    return program
  })
  return yield* Effect.onError(body, () => Scope.close(scope, Exit.void))
})
