// SPDX-License-Identifier: Apache-2.0
/**
 * A batch as one agent holds it: the tensors that it opened, and the plans that all its ranks agreed on.
 *
 * Ranks find each other's statements in the store, so the order in which batches are registered on different ranks does
 * not matter. How often a name was used says which statements belong together after a batch was cleaned up.
 */

import { exchangePayloads, jsonPayloads, type Payloads } from "@tensorferry/core/group/Exchange"
import type { MeshPlan } from "@tensorferry/core/ir/MeshPlan"
import { executeReshardPlan } from "@tensorferry/core/reshard/executeReshardPlan"
import type { HostMemory } from "@tensorferry/core/service/HostMemory"
import type { ProcessGroupError } from "@tensorferry/core/service/ProcessGroup"
import { type TensorDict, tensorDict } from "@tensorferry/core/tensor/TensorDict"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import { type BusError, busError } from "../BusError.ts"
import type { RegisterTensors, TransferType } from "../command/Command.ts"
import { awaitEntries, type KeyValueStoreShape } from "../store/KeyValueStore.ts"
import {
  type BatchPlans,
  type BatchStatement,
  type Direction,
  planOrder,
  plansOf,
  statementCodec
} from "./BatchPlan.ts"
import { batchDevice, batchServices, type TransferServices } from "./BatchServices.ts"
import { type Owner, seenOwner } from "./liveness.ts"
import { type OpenTensor, openTensor } from "./openTensor.ts"
import { checkName, type Pair, type PairSettings, storeFailed } from "./Pair.ts"

export interface Batch {
  readonly id: string
  /** How often this name was registered before, on every rank. */
  readonly generation: number
  /** Whose group carries the batch. */
  readonly pair: Pair
  readonly tensors: TensorDict
  readonly plans: BatchPlans
  readonly services: Effect.Effect<TransferServices, BusError>
  /** Clients whose end is noticed. */
  readonly owners: ReadonlyArray<Owner>
  readonly scope: Scope.Closeable
}

/** Distinct for every pair, every time that it was made, and every use of a name. */
const keyOf = (kind: string, pair: Pair, id: string, generation: number): string =>
  `${kind}/${pair.members.digest}/${encodeURIComponent(id)}/${generation}/`

/** "1" while a sent batch waits to be received. */
export const signalKey = ({ pair, id, generation }: Pick<Batch, "pair" | "id" | "generation">): string =>
  keyOf("signal", pair, id, generation)

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
  return pair.isBroken ? Result.fail(pairBroken(op, pair)) : Result.succeed(pair)
}

export const pairBroken = (commandOp: string, pair: Pair): BusError =>
  busError("PairBroken", {
    op: commandOp,
    detail: `An agent of pair ${pair.name} has exited.`,
    remedy: "Send InitPair again on all ranks, once their agents run."
  })

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

const bucketBytesOf = (command: RegisterTensors): Result.Result<number | null, BusError> => {
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

/** How many statements of batches that are over stay readable. */
const mostRetired = 64

const retire = Effect.fnUntraced(function* (pair: Pair, key: string, store: KeyValueStoreShape) {
  pair.retired.push(key)
  while (pair.retired.length > mostRetired) yield* Effect.ignore(store.remove(pair.retired.shift()!))
})

/** Every rank's statement, by rank of the group. */
const exchange = Effect.fnUntraced(function* (
  id: string,
  generation: number,
  pair: Pair,
  own: BatchStatement,
  settings: PairSettings
) {
  const { store, deadline } = settings
  const prefix = keyOf("batch", pair, id, generation)
  const key = `${prefix}${pair.rank}`
  const text = yield* Effect.orDie(Schema.encodeEffect(statementCodec)(own))
  let isComplete = false
  yield* Effect.acquireRelease(store.put(key, text, { isEphemeral: true }), () =>
    isComplete ? retire(pair, key, store) : Effect.ignore(store.remove(key))
  )
  const { agents } = pair.members
  const statements = yield* awaitEntries(
    store,
    prefix,
    (entries) =>
      Effect.gen(function* () {
        const texts = agents.map((_, at) => entries.get(`${prefix}${at}`))
        if (texts.includes(undefined)) return undefined
        return yield* Effect.forEach(texts, (each, at) =>
          Effect.mapError(Schema.decodeEffect(statementCodec)(each!), () =>
            busError("BatchMismatch", {
              op,
              peer: agents[at]!,
              detail: `Batch ${id}: agent ${agents[at]} registered it in a form of another version.`,
              remedy: "Run the same version on all ranks."
            })
          )
        )
      }),
    deadline,
    (entries) => {
      const missing = agents.filter((_, at) => !entries.has(`${prefix}${at}`))
      return `Batch ${id}: agents ${missing.join(", ")} of pair ${pair.name} did not register it`
    }
  )
  // From here on all ranks find the same, so the next use of the name is the next generation for all.
  isComplete = true
  pair.generations.set(id, generation + 1)
  return statements
})

const build = Effect.fnUntraced(function* (
  command: RegisterTensors,
  pairs: ReadonlyMap<string, Pair>,
  settings: PairSettings,
  scope: Scope.Closeable
) {
  const id = command.batchId
  yield* checkName(op, "batch", id)
  const names = command.tensors.map(([pair]) => pair)
  const pair = yield* Effect.fromResult(sharedPair(id, pairs, names))
  const generation = pair.generations.get(id) ?? 0
  const bucketBytes = yield* Effect.fromResult(bucketBytesOf(command))
  const opened: Array<OpenTensor> = []
  // All are opened, even where one fails: each payload carries a count that must be given back.
  const results = yield* Effect.forEach(command.tensors, ([, payload]) => Effect.result(openTensor(payload)))
  for (const result of results) {
    if (Result.isFailure(result)) return yield* result.failure
    opened.push(result.success)
  }
  const order = planOrder(names)
  const tensors = order.map((at) => opened[at]!.tensor)
  const device = yield* Effect.fromResult(batchDevice(id, tensors, settings))
  const statement: BatchStatement = {
    version: 2,
    family: device.family,
    tensors: order.map((at, place) => ({
      pair: names[at]!,
      dtype: tensors[place]!.dtype,
      shape: tensors[place]!.shape
    })),
    bucketBytes
  }
  const statements = yield* Effect.mapError(exchange(id, generation, pair, statement, settings), (error) =>
    error._tag === "KeyValueError" ? storeFailed(op, error) : error
  )
  const membersOf = (name: string) => (pairs.get(name) ?? pair).members
  const plans = yield* Effect.fromResult(plansOf(id, membersOf, statements, pair.rank, device))
  const owners = opened.flatMap(({ owner }) => seenOwner(owner) ?? [])
  return {
    id,
    generation,
    pair,
    tensors: tensorDict(plans.names.map((name, at) => [name, tensors[at]!] as const)),
    plans,
    services: batchServices(id, pair, settings.deviceTransports[device.family], scope),
    owners: [...new Map(owners.map((owner) => [owner.pid, owner])).values()],
    scope
  } satisfies Batch as Batch
})

/** Opens the tensors, waits for all ranks and plans; nothing is left of a batch that fails. */
export const registerBatch = (
  command: RegisterTensors,
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

interface Failure {
  readonly _tag: string
  readonly reason: {
    readonly _tag: string
    readonly detail: string
    readonly remedy: string
    readonly paramName?: string
  }
  readonly ranks?: ReadonlyArray<number>
}

/** A transfer failed; the error names the ranks of the group as agents. */
const transferFailed = (batch: Batch, error: Failure): BusError => {
  const { pair, id } = batch
  const agents = (error.ranks ?? []).map((rank) => pair.members.agents[rank]).filter((agent) => agent !== undefined)
  const named = agents.length === 0 ? "" : ` (agent ${agents.join(", ")})`
  const tag = error.reason._tag
  if (tag === "PeerGone") pair.isBroken = true
  const [first] = agents
  return busError(
    tag === "PeerGone"
      ? "PairBroken"
      : tag === "DeadlineExceeded"
        ? "RemoteMissing"
        : tag === "CollectiveMismatch"
          ? "BatchMismatch"
          : "TransferFailed",
    {
      op: "Transfer",
      ...(first === undefined ? {} : { peer: first }),
      ...(error.reason.paramName === undefined ? {} : { paramName: error.reason.paramName }),
      detail: `Batch ${id}, pair ${pair.name}${named}: ${tag}: ${error.reason.detail}`,
      remedy: tag === "PeerGone" ? "Send InitPair again on all ranks, once their agents run." : error.reason.remedy,
      isRetryable: tag !== "PeerGone"
    }
  )
}

const Intent = Schema.Struct({ batch: Schema.String, generation: Schema.Int, direction: Schema.Int })
type Intent = typeof Intent.Type
const intents = jsonPayloads(Intent)

/** A rank of the group that is about to do something else; without an intent where its answer cannot be read. */
interface OtherIntent {
  readonly rank: number
  readonly intent: Intent | undefined
}

/** Answers that say the same are not read: transfers of small batches repeat, and this is part of each. */
const sameIntent = (own: Intent): Payloads<Intent, void, OtherIntent> => {
  const expected = intents.encode(own)
  return {
    encode: () => expected,
    decodeAll: (payloads) => {
      const rank = payloads.findIndex((payload) => Buffer.compare(payload, expected) !== 0)
      if (rank < 0) return Result.void
      const [intent] = Result.getOrElse(intents.decodeAll([payloads[rank]!]), () => [])
      return Result.fail({ rank, intent })
    }
  }
}

/** All ranks say what they are about to do; who differs is named on all of them. */
const agreeOnIntent = (batch: Batch, direction: Direction): Effect.Effect<void, BusError | ProcessGroupError> => {
  const { pair, id, generation } = batch
  const own: Intent = { batch: id, generation, direction }
  const described = (of: Intent) => `batch ${of.batch} to ${pair.members.sides[of.direction === 0 ? 1 : 0].name}`
  return Effect.mapError(exchangePayloads(pair.group, "transfer", sameIntent(own), own), (error) => {
    if (!("intent" in error)) return error
    const agent = pair.members.agents[error.rank]!
    return busError("BatchMismatch", {
      op: "Transfer",
      peer: agent,
      detail: `Pair ${pair.name}: this agent transfers ${described(own)}, agent ${agent} ${error.intent === undefined ? "something unknown" : described(error.intent)}.`,
      remedy: "Send the same batches in the same order on all ranks, as send on one side and recv on the other."
    })
  })
}

/** Whether no rank has anything to move. All ranks find the same: it follows from what all stated. */
const movesNothing = ({ tensors }: MeshPlan): boolean => tensors.every(({ shape }) => shape.includes(0))

/** Moves the batch; collective over the pair's agents. */
export const transferBatch = (
  batch: Batch,
  type: TransferType,
  settings: PairSettings
): Effect.Effect<void, BusError> => {
  const { pair, id, plans, tensors } = batch
  const isSource = type === "send"
  const direction: Direction = isSource ? pair.side : pair.side === 0 ? 1 : 0
  const plan = plans.plans[direction]
  if (pair.isBroken) return Effect.fail(pairBroken("Transfer", pair))
  if (plan === undefined) {
    return Effect.fail(
      busError("PartialTarget", {
        op: "Transfer",
        detail: `Side ${pair.members.sides[direction === 0 ? 1 : 0].name} of batch ${id} holds contributions and cannot be a target.`,
        remedy: "Transfer the other way, or make pairs whose target is sharded or replicated."
      })
    )
  }
  const leads = pair.rank === (pair.side === 0 ? 0 : pair.members.sides[0].agents.length)
  const signal = (value: string) =>
    Effect.mapError(settings.store.put(signalKey(batch), value), (error) => storeFailed("Transfer", error))
  const move = Effect.gen(function* () {
    const announce = isSource && leads ? signal("1") : Effect.void
    const agree = agreeOnIntent(batch, direction)
    // The signal stands before any rank can be through. That is after the agreement where nothing follows it, else when
    // the transfer itself begins.
    if (movesNothing(plan)) {
      yield* Effect.andThen(announce, agree)
      if (!isSource && leads) yield* signal("0")
      return
    }
    yield* Effect.all([announce, agree], { concurrency: 2, discard: true })
    const update = executeReshardPlan(plan, isSource ? tensors : undefined, isSource ? undefined : tensors)
    yield* Effect.provideContext(update, yield* batch.services)
    if (!isSource && leads) yield* signal("0")
  })
  return Semaphore.withPermits(
    pair.turn,
    1
  )(move).pipe(
    Effect.mapError((error) => (error._tag === "BusError" ? error : transferFailed(batch, error as Failure)))
  )
}
