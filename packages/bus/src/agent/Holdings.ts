// SPDX-License-Identifier: Apache-2.0
/**
 * The pairs and batches that an agent has, and how they go: a pair takes its batches with it, and each takes its names in
 * the store and in the state.
 *
 * Invariant: what is in these tables is open, and what was dropped is in none of them.
 */
import { readdirSync } from "node:fs"
import { processStart } from "@tensorferry/core/group/processStart"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import { type BusError, busError } from "../BusError.ts"
import { isAlive, type Owner } from "../liveness.ts"
import { type AgentStateShape, pairName, semaphoresOf, signalName, versionName } from "../state/AgentState.ts"
import { unlink } from "../state/NamedSemaphore.ts"
import { type Batch, signalKey } from "./Batch.ts"
import { fatesOf, giveUp, markPair } from "./Claim.ts"
import { lossAmong } from "./Fate.ts"
import { type Claim, memberPrefix, type Pair } from "./Held.ts"
import { type PairSettings, storeFailed } from "./Pair.ts"
import { areStill, type Registration } from "./Registration.ts"

/** Where Linux keeps named semaphores. */
const semaphoreFolder = "/dev/shm"

/** A client that was killed before it sent its command leaves a semaphore that no agent knows of. */
const removeSemaphoresOf = (pid: number): Effect.Effect<void> =>
  Effect.suspend(() => {
    const names = Result.getOrElse(
      Result.try(() => readdirSync(semaphoreFolder)),
      () => []
    ).filter((name) => name.startsWith(`sem.${semaphoresOf(pid).slice(1)}`))
    // The number may be another process's by now.
    if (processStart(pid) !== undefined) return Effect.void
    return Effect.forEach(names, (name) => Effect.ignore(unlink(`/${name.slice("sem.".length)}`)), { discard: true })
  })

const deadOwner = ({ owners }: Claim): Owner | undefined => owners.find((owner) => !isAlive(owner))

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

  /** `why` is what other agents are told of it. */
  const dropBatch = (batch: Batch, why: string) =>
    Effect.gen(function* () {
      batches.delete(batch.id)
      batch.claim.why = why
      yield* Scope.close(batch.scope, Exit.void)
      const unsignal = Effect.forEach([0, 1] as const, (direction) => store.remove(signalKey(batch, direction)))
      yield* Effect.ignore(Semaphore.withPermits(batch.signal, 1)(unsignal))
      const read = [signalName(batch.id), versionName(batch.id)]
      yield* Effect.ignore(state.put(read.map((name) => [name, undefined] as const)))
    })

  const dropPair = (pair: Pair, why: string) =>
    Effect.gen(function* () {
      if (pairs.get(pair.name) === pair) pairs.delete(pair.name)
      registrations.delete(pair.name)
      pair.fate.end({ tag: "PairBroken", peer: rank, detail: `Pair ${pair.name}: agent ${rank} left it: ${why}.` })
      yield* markPair(pair, why, store)
      yield* Scope.close(pair.transfers, Exit.void)
      for (const batch of [...batches.values()]) if (batch.claim.pairs.includes(pair)) yield* dropBatch(batch, why)
      yield* Scope.close(pair.scope, Exit.void)
      yield* Effect.forEach(pair.retired, (key) => Effect.ignore(store.remove(key)), { discard: true })
      yield* Effect.ignore(state.put([[pairName(pair.name), undefined]]))
    })

  /** A pair that lost a member may be made again; one that is whole may not. */
  const makeRoom = Effect.fnUntraced(function* (name: string) {
    const known = pairs.get(name)
    if (known === undefined) return
    if (known.fate.loss() === undefined) {
      const entries = yield* Effect.mapError(store.list(memberPrefix(name)), (error) => storeFailed("InitPair", error))
      if (areStill(name, registrations.get(name)!, known.members, entries)) {
        return yield* busError("PairExists", {
          op: "InitPair",
          detail: `Agent ${rank} has a pair ${name} already.`,
          remedy:
            "Use the pair that is there. To make it again, send LeavePair, then InitPair on all ranks; no agent needs a restart."
        })
      }
    }
    yield* dropPair(known, "it makes the pair again")
  })

  /** A batch that another agent dropped, or whose client has exited, gives its name to the next registration. */
  const makeRoomForBatch = (id: string): Effect.Effect<void, BusError> => {
    const known = batches.get(id)
    if (known === undefined) return Effect.void
    if (lossAmong(fatesOf(known.claim)) !== undefined || deadOwner(known.claim) !== undefined) {
      return dropBatch(known, "its client registered it again")
    }
    return Effect.fail(
      busError("BatchExists", {
        op: "RegisterTensors",
        detail: `Agent ${rank} has a batch ${id} already.`,
        remedy: "Send CleanupBatch first, or use another name."
      })
    )
  }

  /** Drops what clients hold that have exited: whoever waits learns of it at once, a transfer that moves ends first. */
  const dropDead = (inTurn: (batch: Batch, work: Effect.Effect<void>) => Effect.Effect<void>): Effect.Effect<void> =>
    Effect.suspend(() =>
      Effect.forEach(
        [...pairs.values()].flatMap(({ claims }) => [...claims]),
        (claim) => {
          const owner = claim.isDropping ? undefined : deadOwner(claim)
          return owner === undefined ? Effect.void : dropClaim(claim, owner, inTurn)
        },
        { discard: true }
      )
    )

  const dropClaim = Effect.fnUntraced(function* (
    claim: Claim,
    { pid }: Owner,
    inTurn: (batch: Batch, work: Effect.Effect<void>) => Effect.Effect<void>
  ) {
    claim.isDropping = true
    const why = `its client, process ${pid}, has exited`
    yield* Effect.logWarning(`Batch ${claim.batch} of pair ${claim.pair.name} is dropped: ${why}.`)
    yield* giveUp(claim, rank, why, store)
    yield* removeSemaphoresOf(pid)
    const batch = batches.get(claim.batch)
    if (batch?.claim !== claim) return
    yield* inTurn(
      batch,
      Effect.suspend(() => (batches.get(batch.id) === batch ? dropBatch(batch, why) : Effect.void))
    )
  })

  return { pairs, registrations, batches, batchOf, dropBatch, dropPair, makeRoom, makeRoomForBatch, dropDead }
}

export type Holdings = ReturnType<typeof makeHoldings>
