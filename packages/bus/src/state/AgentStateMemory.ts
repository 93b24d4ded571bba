// SPDX-License-Identifier: Apache-2.0
/** An agent's state within one process. Completions go by semaphores all the same: commands name nothing else. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { AgentState, type AgentStateShape, agentStateError, type StateEntries } from "./AgentState.ts"
import * as NamedSemaphore from "./NamedSemaphore.ts"

const failed = (error: { readonly message: string }) =>
  agentStateError("SystemFailure", {
    op: "semaphore",
    detail: error.message,
    remedy: "Look at the semaphores in /dev/shm."
  })

/** State within this process, lost with it. */
export const make = (): AgentStateShape => {
  const values = new Map<string, Uint8Array>()
  const put = (entries: StateEntries) =>
    Effect.sync(() => {
      for (const [name, value] of entries) {
        if (value === undefined) values.delete(name)
        else values.set(name, value)
      }
    })
  return {
    put,
    get: (name) => Effect.sync(() => values.get(name)),
    complete: (semaphoreName, entries) =>
      Effect.gen(function* () {
        yield* put(entries)
        const semaphore = yield* NamedSemaphore.open(semaphoreName)
        yield* Effect.ensuring(semaphore.post, Effect.ignore(NamedSemaphore.unlink(semaphoreName)))
      }).pipe(Effect.mapError(failed)),
    expect: (semaphoreName) =>
      Effect.map(Effect.mapError(NamedSemaphore.create(semaphoreName), failed), (semaphore) => ({
        wait: (name, milliseconds) =>
          semaphore.wait(milliseconds).pipe(
            Effect.map(() => ({ reply: values.get(name) })),
            Effect.catchReason("NamedSemaphoreError", "DeadlineExceeded", () => Effect.succeed(undefined)),
            Effect.mapError(failed)
          )
      }))
  }
}

/** State within this process, lost with it. */
export const layerMemory: Layer.Layer<AgentState> = Layer.sync(AgentState, make)
