// SPDX-License-Identifier: Apache-2.0
/**
 * A batch as one agent holds it: the tensors that it opened, and the plans that all its ranks agreed on.
 *
 * Ranks find each other's statements in the store, so the order in which batches are registered on different ranks does
 * not matter.
 */

import type { HostMemory } from "@tensorferry/core/service/HostMemory"
import { isQuantized, recipeId, shapeOfValues } from "@tensorferry/core/tensor/QuantizedTensor"
import { isContiguous } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import { type BusError, busError } from "../BusError.ts"
import type { RegisterModel, RegisterTensors } from "../command/Command.ts"
import type { Entries } from "../store/KeyValueStore.ts"
import { type BatchChanges, makeBatchChanges } from "./BatchChanges.ts"
import { meetOnBatch } from "./BatchMeeting.ts"
import { type BatchMoves, meshMoves } from "./BatchMove.ts"
import { type BatchStatement, changesFault, type Direction, planOrder } from "./BatchPlan.ts"
import { batchDevice, batchServices, type TransferServices } from "./BatchServices.ts"
import { lossError, makeFate } from "./Fate.ts"
import type { Claim, Deal, Pair } from "./Held.ts"
import { type OpenTensor, openTensor } from "./openTensor.ts"
import { checkName, type PairSettings, waitOf } from "./Pair.ts"
import { formWire, heldTensors, namedCutFault, parseForm } from "./QuantizedHeld.ts"

export interface Batch {
  readonly id: string
  readonly claim: Claim
  readonly deal: Deal
  /** Whose group carries the batch. */
  readonly pair: Pair
  readonly moves: BatchMoves
  /** Moves what changed, where that is what the batch is for. */
  readonly changes: BatchChanges | undefined
  /** The tensor, by name or place, whose file its client made shorter; undefined where all are whole. */
  readonly damaged: () => string | undefined
  readonly services: Effect.Effect<TransferServices, BusError>
  /** Whoever reads or writes the signal takes it, so that nobody reads past what is being written. */
  readonly signal: Semaphore.Semaphore
  /** Transfers by direction, as numbers that all ranks agree on: the last that this rank began to send, and the last that ended. */
  readonly counts: readonly [TransferCounts, TransferCounts]
  /** Whether the tensors move by the services of the pair, which outlive the batch. */
  readonly isOfHost: boolean
  readonly scope: Scope.Closeable
}

/** How many transfers there were of a batch in one direction. */
export interface TransferCounts {
  begun: number
  ended: number
}

/** Before the keys of a batch's signals. */
export const signalPrefix = ({ pair, deal }: Pick<Batch, "pair" | "deal">): string =>
  `signal/${pair.members.digest}/${deal.id}/`

/**
 * The number of the last transfer in a direction that its sender began. A sent batch waits where this is more than the number
 * that ended here: each rank knows its own end, so nothing has to be taken back that the next transfer may have written.
 */
export const signalKey = (batch: Pick<Batch, "pair" | "deal">, direction: Direction): string =>
  `${signalPrefix(batch)}${direction}`

/** Whether a sent batch waits for this rank, by what stands under `signalPrefix`. */
export const isSignalled = (batch: Pick<Batch, "pair" | "deal" | "counts">, entries: Entries): boolean =>
  ([0, 1] as const).some((direction) => {
    const begun = Number(entries.get(signalKey(batch, direction)) ?? 0)
    return begun > batch.counts[direction].ended
  })

const op = "RegisterTensors"

const pairOf = (id: string, pairs: ReadonlyMap<string, Pair>, name: string): Result.Result<Pair, BusError> => {
  const pair = pairs.get(name)
  if (pair === undefined) {
    return Result.fail(
      busError("UnknownPair", {
        op,
        detail: `Batch ${id} names pair ${JSON.stringify(name.slice(0, 80))}, which this agent does not have.`,
        remedy: "Send InitPair first, and wait until it is done."
      })
    )
  }
  const loss = pair.fate.loss()
  return loss === undefined ? Result.succeed(pair) : Result.fail(lossError(op, loss))
}

/** The pairs of a batch must have the same ranks in the same order: they share one group. */
const sharedPair = (
  id: string,
  pairs: ReadonlyMap<string, Pair>,
  names: ReadonlyArray<string>
): Result.Result<Pair, BusError> => {
  const [first, ...others] = [...new Set(names)].sort()
  if (first === undefined) {
    return Result.fail(
      busError("InvalidCommand", { op, detail: `Batch ${id} has no tensors.`, remedy: "Register at least one." })
    )
  }
  return Result.flatMap(pairOf(id, pairs, first), (carrier) => {
    for (const name of others) {
      const pair = pairOf(id, pairs, name)
      if (Result.isFailure(pair)) return Result.fail(pair.failure)
      const { agents, sides } = pair.success.members
      if (
        agents.join() !== carrier.members.agents.join() ||
        sides[0].agents.length !== carrier.members.sides[0].agents.length
      ) {
        return Result.fail(
          busError("PairMismatch", {
            op,
            detail: `Batch ${id} joins pairs ${first} (agents ${carrier.members.agents.join(", ")}) and ${name} (agents ${agents.join(", ")}).`,
            remedy: "Register tensors of pairs with other ranks as batches of their own."
          })
        )
      }
    }
    return Result.succeed(carrier)
  })
}

const bucketBytesOf = (command: RegisterTensors | RegisterModel): Result.Result<number | null, BusError> => {
  if (command.bucketSize === null) return Result.succeed(null)
  const size = Number(command.bucketSize)
  return Number.isSafeInteger(size) && size > 0
    ? Result.succeed(size)
    : Result.fail(
        busError("InvalidCommand", {
          op,
          detail: `A bucket of ${command.bucketSize} bytes is not possible.`,
          remedy: "State a positive number of bytes, or none."
        })
      )
}

/** The form that a command states. What moves changes compares elements, and codes change together. */
const statedForm = ({ batchId, changesBytes }: RegisterTensors | RegisterModel, form: string) =>
  changesBytes === null
    ? parseForm(batchId, form)
    : Result.fail(
        busError("InvalidCommand", {
          op,
          detail: `Batch ${batchId} moves changes, and has a quantized form.`,
          remedy: "Leave one of both out."
        })
      )

/** A name stands for one tensor of a pair. */
const checkTensorNames = (
  id: string,
  pairs: ReadonlyArray<string>,
  opened: ReadonlyArray<OpenTensor>
): Effect.Effect<void, BusError> => {
  const seen = new Set<string>()
  for (const [at, { name }] of opened.entries()) {
    if (name === null) continue
    const key = JSON.stringify([pairs[at], name])
    if (seen.has(key)) {
      return Effect.fail(
        busError("InvalidCommand", {
          op,
          paramName: name,
          detail: `Batch ${id} has two tensors of this name in pair ${pairs[at]}.`,
          remedy: "Name each tensor of a pair differently."
        })
      )
    }
    seen.add(key)
  }
  return Effect.void
}

/** Among the claims of its pair until the scope ends. */
const makeClaim = (id: string, pair: Pair, pairs: ReadonlyArray<Pair>): Effect.Effect<Claim, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const claim: Claim = {
        batch: id,
        pair,
        pairs,
        fate: makeFate(),
        owners: [],
        deal: undefined,
        why: "its registration failed",
        isMarked: false,
        isDropping: false
      }
      pair.claims.add(claim)
      return claim
    }),
    (claim) => Effect.sync(() => pair.claims.delete(claim))
  )

/** What knows the names of systems, loaded only where a client states some. */
const modelBatches = Effect.promise(() => import("./ModelBatch.ts"))

/** Opens all tensors of a command, even where one fails: each payload carries a count that must be given back. */
const openAll = Effect.fnUntraced(function* (command: RegisterTensors | RegisterModel) {
  const opened: Array<OpenTensor> = []
  const results = yield* Effect.forEach(command.tensors, ([, payload]) => Effect.result(openTensor(payload)))
  for (const [at, result] of results.entries()) {
    if (Result.isFailure(result)) return yield* result.failure
    if (command._tag === "RegisterTensors") {
      opened.push(result.success)
      continue
    }
    const [name] = command.tensors[at]!
    if (!isContiguous(result.success.tensor))
      return yield* busError("UnsupportedTensor", {
        op: command._tag,
        paramName: name,
        detail: `Batch ${command.batchId}: the elements of ${name} do not lie densely.`,
        remedy: "Register tensors of a model as they are allocated, not views of them."
      })
    opened.push({ ...result.success, name })
  }
  return opened
})

const build = Effect.fnUntraced(function* (
  command: RegisterTensors | RegisterModel,
  pairs: ReadonlyMap<string, Pair>,
  settings: PairSettings,
  scope: Scope.Closeable
) {
  const id = command.batchId
  yield* checkName(op, "batch", id)
  const names = command.tensors.map(([pair]) => (command._tag === "RegisterModel" ? command.pairName : pair))
  const pair = yield* Effect.fromResult(sharedPair(id, pairs, names))
  const bucketBytes = yield* Effect.fromResult(bucketBytesOf(command))
  const wait = yield* Effect.fromResult(waitOf(command._tag, command, settings.deadline))
  const claim = yield* makeClaim(
    id,
    pair,
    [...new Set(names)].map((name) => pairs.get(name)!)
  )
  const opened = yield* openAll(command)
  const named = command._tag === "RegisterModel" ? yield* modelBatches : undefined
  const model = command._tag === "RegisterModel" ? yield* named!.openStatedModel(command) : undefined
  const owners = opened.flatMap(({ owner }) => owner ?? [])
  claim.owners = [...new Map(owners.map((owner) => [owner.pid, owner])).values()]
  yield* checkTensorNames(id, names, opened)
  const device = yield* Effect.fromResult(
    batchDevice(
      id,
      opened.map(({ tensor }) => tensor),
      settings
    )
  )
  const recipe = command.form === null ? undefined : yield* Effect.fromResult(statedForm(command, command.form))
  const held = yield* Effect.fromResult(heldTensors(id, names, opened, recipe))
  const cut = model === undefined ? undefined : namedCutFault(held, pair.members.sides[pair.side].agents.length)
  if (cut !== undefined)
    return yield* busError("UnsupportedTensor", {
      op: command._tag,
      paramName: cut[0],
      detail: `Batch ${id}: ${cut[0]}: ${cut[1]}.`,
      remedy: "Choose a form with smaller blocks, or degrees that cut whole ones."
    })
  const ordered = planOrder(held.map(({ pair: of }) => of)).map((at) => held[at]!)
  const statement: BatchStatement = {
    version: 7,
    family: device.family,
    tensors: ordered.map(({ pair: of, name, placements, value }) => ({
      pair: of,
      name,
      dtype: isQuantized(value) ? formWire : value.dtype,
      shape: shapeOfValues(value),
      ...(placements === undefined ? {} : { placements }),
      ...(isQuantized(value) ? { form: { id: recipeId(value.recipe), block: value.recipe.block } } : {})
    })),
    ...(model === undefined ? {} : { model: { side: model.side, placement: model.placement, digest: model.digest } }),
    bucketBytes,
    movesChanges: command.changesBytes !== null
  }
  const statements = yield* meetOnBatch(claim, statement, settings, wait)
  /** What all ranks find alike needs no telling. */
  const shared = <A>(found: Result.Result<A, BusError>) => {
    if (Result.isFailure(found)) claim.isMarked = true
    return Effect.fromResult(found)
  }
  const odd = changesFault(id, pair.members.agents, statements)
  if (odd !== undefined) return yield* shared(Result.fail(odd))
  const membersOf = (name: string) => (pairs.get(name) ?? pair).members
  const values = ordered.map(({ value }) => value)
  const moves =
    model === undefined
      ? yield* shared(meshMoves(id, pair, membersOf, statements, values, device))
      : yield* Effect.fromResult(
          named!.modelMoves(
            id,
            pair,
            yield* shared(named!.modelPlans(id, pair, statements, model)),
            new Map(ordered.map(({ name, value }) => [name!, value]))
          )
        )
  return {
    id,
    claim,
    deal: claim.deal!,
    pair,
    moves,
    changes: command.changesBytes === null ? undefined : makeBatchChanges(id, claim.deal!, command.changesBytes, scope),
    damaged: () => {
      const at = opened.findIndex(({ tensor }) => tensor.storage.fault?.() !== undefined)
      return at < 0 ? undefined : (opened[at]!.name ?? `tensor ${at}`)
    },
    services: batchServices(id, pair, settings.deviceTransports[device.family], scope),
    signal: Semaphore.makeUnsafe(1),
    counts: [
      { begun: 0, ended: 0 },
      { begun: 0, ended: 0 }
    ],
    isOfHost: settings.deviceTransports[device.family] === undefined,
    scope
  } satisfies Batch as Batch
})

/** Opens the tensors, waits for all ranks and plans; nothing is left of a batch that fails. */
export const registerBatch = (
  command: RegisterTensors | RegisterModel,
  pairs: ReadonlyMap<string, Pair>,
  settings: PairSettings,
  within: Scope.Scope
): Effect.Effect<Batch, BusError, HostMemory> =>
  Effect.uninterruptibleMask((restore) =>
    Effect.gen(function* () {
      const scope = yield* Scope.fork(within)
      return yield* Effect.onExit(restore(Scope.provide(build(command, pairs, settings, scope), scope)), (exit) =>
        exit._tag === "Failure" ? Scope.close(scope, exit) : Effect.void
      )
    })
  )
