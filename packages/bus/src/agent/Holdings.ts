// SPDX-License-Identifier: Apache-2.0
/**
 * The pairs and batches that an agent has, and how they go: a pair takes its batches with it, and each takes its names in
 * the store and in the state.
 *
 * Invariant: what is in these tables is open, and what was dropped is in none of them.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import { type BusError, busError } from "../BusError.ts"
import { type AgentStateShape, pairName, signalName } from "../state/AgentState.ts"
import { type Batch, signalKey } from "./Batch.ts"
import { memberPrefix, type Pair, type PairSettings, storeFailed } from "./Pair.ts"
import { areStill, type Registration } from "./Registration.ts"

export const makeHoldings = ({ rank, store }: PairSettings, state: AgentStateShape) => {
  const pairs = new Map<string, Pair>()
  const registrations = new Map<string, Registration>()
  const batches = new Map<string, Batch>()

  /** Fails with UnknownBatch. */
  const batchOf = (op: string, id: string): Effect.Effect<Batch, BusError> => {
    const batch = batches.get(id)
    return batch !== undefined
      ? Effect.succeed(batch)
      : Effect.fail(
          busError("UnknownBatch", {
            op,
            detail: `There is no batch ${JSON.stringify(id.slice(0, 80))} on agent ${rank}.`,
            remedy: "Send RegisterTensors first; an agent also drops the batches of a client that exits."
          })
        )
  }

  const dropBatch = (batch: Batch) =>
    Effect.gen(function* () {
      batches.delete(batch.id)
      yield* Scope.close(batch.scope, Exit.void)
      yield* Effect.ignore(store.remove(signalKey(batch)))
      yield* Effect.ignore(state.put([[signalName(batch.id), undefined]]))
    })

  const dropPair = (pair: Pair) =>
    Effect.gen(function* () {
      pairs.delete(pair.name)
      registrations.delete(pair.name)
      for (const batch of [...batches.values()]) if (batch.pair === pair) yield* dropBatch(batch)
      yield* Effect.forEach(pair.retired, (key) => Effect.ignore(store.remove(key)), { discard: true })
      yield* Scope.close(pair.scope, Exit.void)
      yield* Effect.ignore(state.put([[pairName(pair.name), undefined]]))
    })

  /** A pair that lost a member may be made again; one that is whole may not. */
  const makeRoom = Effect.fnUntraced(function* (name: string) {
    const known = pairs.get(name)
    if (known === undefined) return
    if (!known.isBroken) {
      const entries = yield* Effect.mapError(store.list(memberPrefix(name)), (error) => storeFailed("InitPair", error))
      if (areStill(name, registrations.get(name)!, known.members, entries)) {
        return yield* busError("PairExists", {
          op: "InitPair",
          detail: `Agent ${rank} has a pair ${name} already.`,
          remedy: "Use another name, or use the pair that is there."
        })
      }
    }
    yield* dropPair(known)
  })

  return { pairs, registrations, batches, batchOf, dropBatch, dropPair, makeRoom }
}

export type Holdings = ReturnType<typeof makeHoldings>
