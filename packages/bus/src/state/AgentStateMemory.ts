/** An agent's state within one process. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { AgentState, type AgentStateShape } from "./AgentState.ts"

export const make = (): AgentStateShape => {
  const values = new Map<string, Uint8Array>()
  return {
    put: (entries) =>
      Effect.sync(() => {
        for (const [name, value] of entries) {
          if (value === undefined) values.delete(name)
          else values.set(name, value)
        }
      }),
    get: (name) => Effect.sync(() => values.get(name))
  }
}

export const layerMemory: Layer.Layer<AgentState> = Layer.sync(AgentState, make)
