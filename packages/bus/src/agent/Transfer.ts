// SPDX-License-Identifier: Apache-2.0
/**
 * One transfer of a batch, collective over the pair's agents: they agree on what each is about to do, then move it.
 *
 * A group counts its collectives, so a rank that entered one cannot leave it. A transfer that is given up while it waits
 * for the others, because the batch or the pair has ended, therefore stays in the group behind its command, in its turn:
 * - Others that come with something else read that its batch is over, and meet again in the next collective.
 * - Where the others come with the same, as they may not know yet, it declines the move that follows.
 *
 * Invariant: a command that waits ends as soon as its batch or pair does; a move that began ends with the group alone.
 */

import { availableParallelism } from "node:os"
import { Natural } from "@tensorferry/core/base/Numbers"
import { exchangePayloads, jsonPayloads, type Payloads } from "@tensorferry/core/group/Exchange"
import { executeReshardPlan } from "@tensorferry/core/reshard/executeReshardPlan"
import { busyPoll, defaultBusyPollMillis } from "@tensorferry/core/service/BusyPolling"
import { CopyService, copyError } from "@tensorferry/core/service/CopyService"
import type { ProcessGroupError } from "@tensorferry/core/service/ProcessGroup"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Semaphore from "effect/Semaphore"
import { type BusError, busError } from "../BusError.ts"
import type { Transfer } from "../command/Command.ts"
import { type Batch, signalKey } from "./Batch.ts"
import type { Direction } from "./BatchPlan.ts"
import type { TransferNeeds } from "./BatchServices.ts"
import { fatesOf, giveUp, goneBy, isGone, markPrefix } from "./Claim.ts"
import { lossAmong, lossError } from "./Fate.ts"
import { type PairSettings, storeFailed } from "./Pair.ts"

const op = "Transfer"

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
  const [first] = agents
  const peer = first === undefined ? {} : { peer: first }
  const detail = `Batch ${id}, pair ${pair.name}${named}: ${tag}: ${error.reason.detail}`
  if (tag === "PeerGone") {
    pair.fate.end({ tag: "PairBroken", ...peer, detail })
    return lossError(op, pair.fate.loss()!)
  }
  return busError(
    tag === "DeadlineExceeded" ? "RemoteMissing" : tag === "CollectiveMismatch" ? "BatchMismatch" : "TransferFailed",
    {
      op,
      ...peer,
      ...(error.reason.paramName === undefined ? {} : { paramName: error.reason.paramName }),
      detail,
      remedy:
        tag === "DeadlineExceeded"
          ? "See whether the processes of these agents began the same transfer, or start the agents with a longer --deadline."
          : error.reason.remedy,
      isRetryable: true
    }
  )
}

const Intent = Schema.Struct({
  batch: Schema.String,
  deal: Schema.String,
  direction: Schema.Int,
  /** Which transfer of the batch in this direction, counted from 1. */
  number: Natural,
  /** Of the contents, where the client states one. */
  version: Schema.optionalKey(Natural)
})
type Intent = typeof Intent.Type
const intents = jsonPayloads(Intent)

/** The first rank that is about to do something else, and what each is about to do as far as it can be read. */
interface OtherIntents {
  readonly rank: number
  readonly intents: ReadonlyArray<Intent | undefined>
}

const isSame = (a: Intent | undefined, b: Intent): boolean =>
  a?.batch === b.batch && a.deal === b.deal && a.direction === b.direction

/** What all ranks are about to do. */
interface Agreed {
  readonly version: number | undefined
  /** The largest that a rank states: those of a transfer that failed somewhere count differently afterwards. */
  readonly number: number
}

/**
 * What ranks state of intents alike. Answers that say the same are not read: transfers of small batches repeat, and this is
 * part of each.
 */
const sameIntent = (own: Intent): Payloads<Intent, Agreed, OtherIntents> => {
  const expected = intents.encode(own)
  return {
    encode: () => expected,
    decodeAll: (payloads) => {
      if (payloads.every((payload) => Buffer.compare(payload, expected) === 0)) {
        return Result.succeed({ version: own.version, number: own.number })
      }
      const all = payloads.map((payload) => Result.getOrElse(intents.decodeAll([payload]), () => [])[0])
      const other = all.findIndex((intent) => !isSame(intent, own))
      if (other >= 0) return Result.fail({ rank: other, intents: all })
      // Every rank compares with the first that states a version, so that all find the same rank to differ.
      const version = all.find((intent) => intent?.version !== undefined)?.version
      const odd = all.findIndex((intent) => intent?.version !== undefined && intent.version !== version)
      if (odd >= 0) return Result.fail({ rank: odd, intents: all })
      return Result.succeed({ version, number: Math.max(...all.map((intent) => intent?.number ?? 0)) })
    }
  }
}

/** What all ranks are about to do, this rank's collective after its collective; who differs is named on all of them. */
const agreeOnIntent = (
  batch: Batch,
  direction: Direction,
  number: number,
  version: number | null,
  { store }: PairSettings
): Effect.Effect<Agreed, BusError | ProcessGroupError> => {
  const { pair, id, deal } = batch
  const own: Intent = { batch: id, deal: deal.id, direction, number, ...(version === null ? {} : { version }) }
  const payloads = sameIntent(own)
  const described = (of: Intent) => `batch ${of.batch} to ${pair.members.sides[of.direction === 0 ? 1 : 0].name}`
  const once = exchangePayloads(pair.group, "transfer", payloads, own)

  const judge = Effect.fnUntraced(function* (others: OtherIntents) {
    const marks = yield* Effect.mapError(store.list(markPrefix(pair)), (error) => storeFailed(op, error))
    // What another rank waits in is over: it comes again, with something else.
    if (others.intents.some((intent) => intent !== undefined && isGone(pair, intent.deal, marks))) return
    const agent = pair.members.agents[others.rank]!
    const intent = others.intents[others.rank]
    if (intent !== undefined && isSame(intent, own)) {
      const first = others.intents.findIndex((each) => each?.version !== undefined)
      const [stated, by] = [others.intents[first]?.version, pair.members.agents[first]]
      return yield* busError("VersionMismatch", {
        op,
        peer: agent,
        detail: `Batch ${id}: agent ${by} transfers version ${stated}, agent ${agent} version ${intent.version}.`,
        remedy: "Let both sides transfer the same version, or receive without stating one.",
        isRetryable: true
      })
    }
    return yield* busError("BatchMismatch", {
      op,
      peer: agent,
      detail: `Pair ${pair.name}: this agent transfers ${described(own)}, agent ${agent} ${intent === undefined ? "something unknown" : described(intent)}.`,
      remedy: "Send the same batches in the same order on all ranks, as send on one side and recv on the other."
    })
  })

  /** A collective of before this rank came, in which the others waited too long for it. */
  const isOver = (error: ProcessGroupError): boolean =>
    error.reason._tag === "DeadlineExceeded" && error.ranks.includes(pair.group.members[pair.group.rank]!)

  return Effect.gen(function* () {
    for (;;) {
      const met = yield* Effect.result(once)
      if (Result.isSuccess(met)) return met.success
      if ("intents" in met.failure) yield* judge(met.failure)
      else if (!isOver(met.failure)) return yield* met.failure
      const loss = lossAmong(fatesOf(batch.claim))
      if (loss !== undefined) return yield* lossError(op, loss)
    }
  })
}

/** Fails the move of those who came with the same, although this rank gave it up. */
const decline = ({ id, pair, isOfHost }: Batch): Effect.Effect<void> => {
  const detail = `Agent ${pair.members.agents[pair.rank]} gave batch ${id} up.`
  const refuse = copyError("TransferFailed", [pair.rank], { op, detail, remedy: "Register the batch again." })
  return isOfHost
    ? Effect.ignore(Context.get(pair.services, CopyService).run({ refuse }))
    : // Ranks that are in another collective fail at once, whatever it is.
      Effect.ignore(pair.group.barrier(`batch ${id} was given up`))
}

/** The error of a transfer; where another agent gave the batch up, that is what it says. */
const explain = (batch: Batch, error: BusError | Failure, { store }: PairSettings): Effect.Effect<BusError> =>
  Effect.gen(function* () {
    const { claim, pair, deal } = batch
    const failed = error._tag === "BusError" ? (error as BusError) : transferFailed(batch, error as Failure)
    if (failed.reason._tag !== "TransferFailed" && failed.reason._tag !== "BatchMismatch") return failed
    const marks = yield* Effect.orElseSucceed(store.list(markPrefix(pair)), () => new Map<string, string>())
    const agent = pair.members.agents.find((each) => marks.has(`${markPrefix(pair)}${deal.id}/${each}`))
    if (agent !== undefined) claim.fate.end(goneBy(claim, agent, "it gave the batch up"))
    const loss = lossAmong(fatesOf(claim))
    return loss === undefined ? failed : lossError(op, loss)
  })

/** Ends a batch of whose memory a part is no more: what would travel, or has arrived, is not the tensor. */
const failWhereDamaged = Effect.fnUntraced(function* (
  { claim, damaged }: Batch,
  { rank, store }: PairSettings
): Effect.fn.Return<void, BusError> {
  const tensor = damaged()
  if (tensor === undefined) return
  yield* giveUp(claim, rank, `its client made the memory of ${tensor} shorter`, store)
  return yield* lossError(op, claim.fate.loss()!)
})

type Stated = Pick<Transfer, "transferType" | "version">

const transfer = Effect.fnUntraced(function* (
  batch: Batch,
  { transferType: type, version: stated }: Stated,
  settings: PairSettings
) {
  const { pair, moves, claim, changes } = batch
  const isSource = type === "send"
  const direction: Direction = isSource ? pair.side : pair.side === 0 ? 1 : 0
  const way = moves[direction]
  const fates = fatesOf(claim)
  yield* failWhereDamaged(batch, settings)
  const lost = lossAmong(fates)
  if (lost !== undefined) return yield* lossError(op, lost)
  if ("refused" in way) {
    const { refused, detail, remedy } = way
    return yield* busError(refused, { op, detail, remedy })
  }
  const { plan, tensors, options, movesNothing } = way
  const leads = pair.rank === (pair.side === 0 ? 0 : pair.members.sides[0].agents.length)
  const counts = batch.counts[direction]!
  const begun = isSource ? ++counts.begun : undefined
  const signal = (number: number) =>
    Semaphore.withPermits(
      batch.signal,
      1
    )(Effect.mapError(settings.store.put(signalKey(batch, direction), `${number}`), (error) => storeFailed(op, error)))
  const announces = isSource && leads
  let stage: "waits" | "moves" | "given up" = "waits"
  const announcing = Deferred.makeUnsafe<void, BusError>()
  const announced = Deferred.await(announcing)
  const move = Effect.gen(function* () {
    if (stage === "given up") return
    if (movesNothing) yield* announced
    const { number, version } = yield* agreeOnIntent(batch, direction, begun ?? counts.ended + 1, stated, settings)
    counts.begun = Math.max(counts.begun, number)
    if (movesNothing) {
      counts.ended = number
      return version
    }
    if (stage !== "waits") {
      yield* decline(batch)
      return
    }
    stage = "moves"
    yield* announced
    if (announces && number !== begun) yield* signal(number)
    const update: Effect.Effect<unknown, BusError | Failure, TransferNeeds> =
      changes === undefined
        ? executeReshardPlan(plan, isSource ? tensors : undefined, isSource ? undefined : tensors, options)
        : changes(direction, way, isSource, version)
    yield* Effect.provideContext(update, yield* batch.services)
    yield* failWhereDamaged(batch, settings)
    counts.ended = number
    return version
  }).pipe(Effect.catch((error) => Effect.flatMap(explain(batch, error as BusError | Failure, settings), Effect.fail)))
  const moving = yield* Effect.forkIn(Effect.exit(Semaphore.withPermits(pair.turn, 1)(move)), pair.transfers, {
    startImmediately: true
  })
  // The signal stands before any rank can be through. That is after the agreement where nothing follows it, else when
  // the transfer itself begins. It does not wait for its turn: the receivers may wait for the signal.
  const announce = Effect.exit(announces ? signal(begun!) : Effect.void)
  yield* Effect.forkIn(
    Effect.flatMap(announce, (exit) => Deferred.done(announcing, exit)),
    pair.transfers,
    { startImmediately: true }
  )
  const moved = Effect.flatMap(Fiber.await(moving), (exit): Effect.Effect<number | undefined, BusError> => {
    if (Exit.isSuccess(exit)) return exit.value
    const loss = lossAmong(fates)
    return loss === undefined ? Effect.interrupt : Effect.fail(lossError(op, loss))
  })
  const givenUp = Effect.flatMap(Effect.raceAllFirst(fates.map(({ ended }) => ended)), (loss) => {
    if (stage === "moves") return Effect.never
    stage = "given up"
    return Effect.fail(lossError(op, loss))
  })
  return yield* Effect.onInterrupt(Effect.raceFirst(moved, givenUp), () => {
    if (stage === "moves") return Fiber.interrupt(moving)
    stage = "given up"
    return Effect.void
  })
})

/**
 * Moves the batch; collective over the pair's agents. Answers the version that some rank states. Its steps are short and wait
 * for each other, so the thread stays awake between them, as in a run of the copy service.
 */
export const transferBatch = (
  batch: Batch,
  stated: Stated,
  settings: PairSettings
): Effect.Effect<number | undefined, BusError> =>
  Effect.suspend(() => {
    const stopPolling = busyPoll(defaultBusyPollMillis(availableParallelism(), batch.pair.group.size))
    return Effect.ensuring(transfer(batch, stated, settings), Effect.sync(stopPolling))
  })
