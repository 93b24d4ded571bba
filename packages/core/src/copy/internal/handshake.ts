// SPDX-License-Identifier: Apache-2.0
/**
 * How all ranks agree on a batch before any byte moves, and on the outcome afterwards.
 *
 * Round 1: every rank states its settings, the digest of its batch, the digest of the last batch that all had agreed on,
 * and what is wrong on its side; plans that differ are listed and refused. Equal digests of an agreed batch end the
 * handshake here. Round 2: digests per pair of ranks. Round 3, only after a disagreement: the operations of the pairs that differ, so that every rank can name them.
 * All ranks see the same answers and therefore reach the same verdict.
 *
 * Ranks that repeat a known batch do so without the others (see repeat.ts), so some may be ahead of the run that others
 * agree on. A rank that is ahead takes part without a batch: what it had to exchange in that run has been exchanged.
 *
 * A rank that leaves a run early (interrupted, or failed where others go on) is out of step: its next collective meets
 * others of another name. All ranks then meet in `resync`, however many collectives that takes, learn why, and count the
 * run as over; a rank that had only begun its next run goes on with it.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { type Digest, digestOf } from "../../base/Digest.ts"
import { DType } from "../../base/DType.ts"
import type { Rank } from "../../base/Ids.ts"
import { Shape } from "../../base/Region.ts"
import { exchangePayloads, type Payloads } from "../../group/Exchange.ts"
import { CopyError, copyError, type RunOptions } from "../../service/CopyService.ts"
import type { ProcessGroupError, ProcessGroupShape } from "../../service/ProcessGroup.ts"
import { fromGroupError } from "../CopyFailures.ts"
import { batchDigest, type CopyBatch, comparePair, type OpSummary, pairDigest, summarize } from "./batch.ts"
import { type Messages, makeMessages, remembered, remembering } from "./messages.ts"
import { oddPlan, PlanContents, plansDiffer } from "./plans.ts"
import type { Alarm } from "./signals.ts"

/** Version of the messages below. */
const protocol = 3

const Hello = Schema.Struct({
  protocol: Schema.Int,
  backend: Schema.String,
  /** Staging bytes, equal on all ranks because they decide where messages are cut. */
  stagingBytes: Schema.Int,
  /** Rounds of messages that this rank needs. */
  rounds: Schema.Int,
  batch: Schema.String,
  /** Digest of the plan that the run belongs to, and how many runs it takes on this rank. */
  plan: Schema.NullOr(Schema.String),
  runs: Schema.Int,
  agreed: Schema.String,
  /** Which run this is, among those since the ranks of this lineage first agreed. */
  run: Schema.Int,
  lineage: Schema.String,
  /** Tells services apart, from which a lineage gets its name. */
  service: Schema.String,
  /** No run is in progress: the rank takes part for others, which are in a run that it has behind it. */
  isIdle: Schema.Boolean,
  /** This rank's program is not compiled for its memory. */
  isStale: Schema.Boolean,
  /** This rank's driver must be rebuilt. */
  isBroken: Schema.Boolean,
  fault: Schema.NullOr(CopyError)
})

const PeerDigests = Schema.Array(Schema.Tuple([Schema.Int, Schema.String]))
const Digests = Schema.Struct({ sends: PeerDigests, recvs: PeerDigests })

const Summary = Schema.Struct({
  taskId: Schema.NullOr(Schema.Int),
  part: Schema.Int,
  sequence: Schema.Int,
  shape: Shape,
  dtype: DType,
  paramName: Schema.NullOr(Schema.String)
})
const Details = Schema.Struct({
  sends: Schema.Array(Schema.Tuple([Schema.Int, Schema.Array(Summary)])),
  recvs: Schema.Array(Schema.Tuple([Schema.Int, Schema.Array(Summary)]))
})

const Outcome = Schema.Struct({
  fault: Schema.NullOr(CopyError),
  /** The fault says only that another rank gave up. */
  isEcho: Schema.Boolean
})

const hellos = makeMessages(Hello)
const digests = makeMessages(Digests)
const details = makeMessages(Details)
const contents = makeMessages(PlanContents)
const outcomes = makeMessages(Outcome)

/** The messages of every run; a service keeps these from run to run. */
export const makeHandshakeMemory = () => ({ hello: remembering(hellos), outcome: remembering(outcomes) })
export type HandshakeMemory = ReturnType<typeof makeHandshakeMemory>

/** The collectives of a service's runs. */
export interface RunCollectives {
  readonly group: ProcessGroupShape
  readonly memory: HandshakeMemory
  readonly alarm: Alarm
  /** Carried out where ranks meet out of step: no further collective belongs to the run in progress. */
  readonly parted: Effect.Effect<void>
}

const Resync = Schema.Struct({
  /** How often this rank has tried: the one that waits longest left first, and knows why. */
  attempts: Schema.Int,
  fault: Schema.NullOr(CopyError)
})
type Resync = typeof Resync.Type
const resyncOfRank = makeMessages(Resync)
/** The failure of the rank that left first; what cannot be read has none. */
const resyncs: Payloads<Resync, CopyError | undefined, never> = {
  encode: resyncOfRank.encode,
  decodeAll: (payloads) => {
    let first: Resync | undefined
    for (const payload of payloads) {
      const answer = Result.getOrElse(resyncOfRank.decodeAll([payload]), () => [])[0]
      if (answer === undefined || answer.fault === null) continue
      if (first === undefined || answer.attempts > first.attempts) first = answer
    }
    return Result.succeed(first?.fault ?? undefined)
  }
}
/** More than the collectives that a driver and a run can have left. */
const resyncAttempts = 64

/** Meets all ranks wherever they are; the failure of the one that left first. Alerts from before are settled then. */
export const resync = Effect.fnUntraced(function* (
  { group, alarm }: Pick<RunCollectives, "group" | "alarm">,
  fault: CopyError | undefined
): Effect.fn.Return<CopyError | undefined, CopyError> {
  for (let attempts = 1; ; attempts++) {
    const met = yield* Effect.result(
      exchangePayloads(group, "copy resync", resyncs, { attempts, fault: fault ?? null })
    )
    if (Result.isSuccess(met)) {
      alarm.settle()
      return met.success
    }
    if (met.failure.reason._tag === "CollectiveMismatch" && attempts < resyncAttempts) continue
    return yield* fromGroupError(group.rank, "copy resync", met.failure)
  }
})

interface Standing {
  /** Nothing of the run has happened yet, so that it may begin again. */
  readonly isFresh?: boolean
  /** What is wrong on this rank. */
  readonly fault?: CopyError | undefined
}

const meet = <A>(
  run: RunCollectives,
  label: string,
  messages: Messages<A>,
  value: A,
  standing: Standing = {}
): Effect.Effect<ReadonlyArray<A>, CopyError> => {
  const { group } = run
  /** Ranks are in different collectives: one has left the run, or has only begun it. */
  const outOfStep = (error: ProcessGroupError): Effect.Effect<ReadonlyArray<A>, CopyError> =>
    Effect.gen(function* () {
      if (standing.isFresh !== true) yield* run.parted
      const cause = yield* resync(run, standing.fault)
      if (standing.isFresh === true) return yield* meet(run, label, messages, value, standing)
      return yield* cause ?? fromGroupError(group.rank, label, error)
    })
  // One handler for all failures: every run passes here twice, and each handler more would cost it.
  return Effect.catch(exchangePayloads(group, label, messages, value), (error) => {
    if (typeof error !== "number") {
      return error.reason._tag === "CollectiveMismatch"
        ? outOfStep(error)
        : Effect.fail(fromGroupError(group.rank, label, error))
    }
    return Effect.fail(
      copyError("Incompatible", [error], {
        rank: group.rank,
        peer: error,
        op: label,
        detail: `Rank ${error} sent a message that this version cannot read.`,
        remedy: "Run the same version on all ranks."
      })
    )
  })
}

/** This rank's place among the runs of all. */
export interface Place {
  readonly run: number
  /** Empty before the first agreement, and after a meeting that failed. */
  readonly lineage: string
}

export interface LocalState {
  readonly place: Place
  readonly service: string
  readonly isIdle: boolean
  /** What is left of the batch, where these ranks are ahead. */
  readonly left: (ahead: ReadonlySet<Rank>, run: number) => CopyBatch
  readonly backend: string
  readonly stagingBytes: number
  readonly rounds: number
  readonly batch: CopyBatch
  readonly plan: RunOptions["plan"]
  /** Digest of the batches of all ranks in the last successful handshake; empty at first. */
  readonly agreed: Digest
  readonly isStale: boolean
  readonly isBroken: boolean
  readonly fault: CopyError | undefined
}

export interface Agreement {
  readonly place: Place
  /** Ranks that have this run behind them. */
  readonly ahead: ReadonlySet<Rank>
  readonly agreed: Digest
  readonly mustPrepare: boolean
  readonly mustRebuild: boolean
  /** Rounds that every rank walks through, so that collectives stay in step. */
  readonly rounds: number
  /** Runs that the plan takes on the rank with most. */
  readonly runs: number
}

const describe = (rank: Rank, hello: typeof Hello.Type): string =>
  `rank ${rank} runs backend ${hello.backend}, protocol ${hello.protocol}, ${hello.stagingBytes} staging bytes`

const checkSettings = (hellos: ReadonlyArray<typeof Hello.Type>): CopyError | undefined => {
  const [first] = hellos
  const other = hellos.findIndex(
    (hello) =>
      hello.protocol !== first!.protocol ||
      hello.backend !== first!.backend ||
      hello.stagingBytes !== first!.stagingBytes
  )
  if (other < 0) return undefined
  const theirs = hellos[other]!
  return copyError("Incompatible", [0, other], {
    rank: 0,
    peer: other,
    op: "run",
    detail: `${describe(0, first!)}; ${describe(other, theirs)}.`,
    remedy: "Choose the same backend, version and staging bytes on all ranks."
  })
}

/** The first two ranks' views of their common operations that differ. */
const differingPairs = (all: ReadonlyArray<typeof Digests.Type>): ReadonlyArray<readonly [from: Rank, to: Rank]> => {
  const pairs: Array<readonly [Rank, Rank]> = []
  const sends = all.map((digests) => new Map(digests.sends))
  const recvs = all.map((digests) => new Map(digests.recvs))
  for (const from of all.keys()) {
    const peers = new Set([...sends[from]!.keys(), ...recvs.flatMap((list, to) => (list.has(from) ? [to] : []))])
    for (const to of [...peers].sort((a, b) => a - b)) {
      if (sends[from]!.get(to) !== recvs[to]?.get(from)) pairs.push([from, to])
    }
  }
  return pairs
}

/** Which run the ranks are to agree on, and which of them have it behind them. Numbers count only within a lineage. */
const standingOf = remembered((hellos: ReadonlyArray<typeof Hello.Type>) => {
  const [first] = hellos
  const isShared = first!.lineage !== "" && hellos.every(({ lineage }) => lineage === first!.lineage)
  const runs = hellos.map(({ run }) => run)
  const run = isShared ? Math.min(...runs) : Math.max(...runs)
  const ahead: ReadonlySet<Rank> = new Set(isShared ? [...runs.keys()].filter((rank) => runs[rank]! > run) : [])
  const lineage = isShared ? first!.lineage : digestOf(hellos.map(({ service }) => service))
  return { place: { run, lineage }, isShared, ahead }
})

/** A rank that answered for a run which it has not behind it; it has become another service meanwhile, or lost count. */
const absent = (rank: Rank): CopyError =>
  copyError("PartnerMissing", [rank], {
    rank,
    peer: rank,
    op: "run",
    isRetryable: true,
    detail: `Rank ${rank} is not in the run.`,
    remedy: "Run again on all ranks."
  })

/** What follows from all ranks' first messages alone, unless it is what is wrong with them. */
const verdictOf = remembered((hellos: ReadonlyArray<typeof Hello.Type>): Result.Result<Agreement, CopyError> => {
  const { place, ahead } = standingOf(hellos)
  const running = hellos.filter((_, rank) => !ahead.has(rank))
  const idle = hellos.findIndex(({ isIdle }, rank) => isIdle && !ahead.has(rank))
  const fault = running.find((hello) => hello.fault !== null)?.fault ?? checkSettings(hellos)
  if (fault != null) return Result.fail(fault)
  if (idle >= 0) return Result.fail(absent(idle))
  return Result.succeed({
    place,
    ahead,
    agreed: digestOf(hellos.map((hello, rank) => (ahead.has(rank) ? "" : hello.batch))),
    mustPrepare: ahead.size > 0 || hellos.some((hello) => hello.isStale || hello.isBroken),
    mustRebuild: hellos.some((hello) => hello.isBroken),
    rounds: Math.max(...running.map((hello) => hello.rounds)),
    runs: Math.max(...running.map((hello) => hello.runs))
  })
})

/** How the ranks met. */
export interface Meeting {
  /** The run that was agreed on. */
  readonly place: Place
  /** All ranks count runs alike. */
  readonly isShared: boolean
  /** This rank has the run behind it. */
  readonly isAhead: boolean
  /** The agreement, or what every rank fails with that is in the run. */
  readonly verdict: Result.Result<Agreement, CopyError>
}

/** Agrees on the batch. Fails where the ranks did not meet. */
export const agree = Effect.fnUntraced(function* (
  run: RunCollectives,
  local: LocalState
): Effect.fn.Return<Meeting, CopyError> {
  const digest = batchDigest(local.batch)
  const hello: typeof Hello.Type = {
    protocol,
    backend: local.backend,
    stagingBytes: local.stagingBytes,
    rounds: local.rounds,
    batch: digest,
    plan: local.plan?.digest ?? null,
    runs: local.plan?.runs ?? 1,
    agreed: local.agreed,
    run: local.place.run,
    lineage: local.place.lineage,
    service: local.service,
    isIdle: local.isIdle,
    isStale: local.isStale,
    isBroken: local.isBroken,
    fault: local.fault ?? null
  }
  const stated = yield* meet(run, "copy handshake", run.memory.hello, hello, { isFresh: true })
  // What ranks have reported until now belongs to earlier runs: nobody begins this one before all have agreed on it.
  run.alarm.settle()
  const { place, isShared, ahead } = standingOf(stated)
  const verdict = yield* Effect.result(agreeOnBatch(run, local, stated))
  return { place, isShared, isAhead: ahead.has(run.group.rank), verdict }
})

/** The rest of the agreement, once every rank has stated where it stands. */
const agreeOnBatch = Effect.fnUntraced(function* (
  run: RunCollectives,
  local: LocalState,
  stated: ReadonlyArray<typeof Hello.Type>
): Effect.fn.Return<Agreement, CopyError> {
  const { group } = run
  const agreement = yield* Effect.fromResult(verdictOf(stated))
  const { ahead, place } = agreement
  const batch = ahead.size === 0 ? local.batch : local.left(ahead, place.run)
  const odd = oddPlan(stated.map((hello, rank) => (ahead.has(rank) ? null : hello.plan)))
  if (odd !== undefined) {
    const own = ahead.has(group.rank) ? [] : (local.plan?.contents?.() ?? [])
    const listed = yield* meet(run, "copy plans", contents, own)
    // Plans between layouts have nothing to list; their batches name the tensor.
    if (listed.some(({ length }) => length > 0)) return yield* plansDiffer(listed, odd.rank, odd.other)
  } else if (ahead.size === 0 && stated.every((hello) => hello.agreed === agreement.agreed)) return agreement
  const toDigests = (ops: CopyBatch["sends"]) => [...ops].map(([peer, list]) => [peer, pairDigest(list)] as const)
  const all = yield* meet(run, "copy batch digests", digests, {
    sends: toDigests(batch.sends),
    recvs: toDigests(batch.recvs)
  })
  const pairs = differingPairs(all)
  if (pairs.length === 0) return odd === undefined ? agreement : yield* plansDiffer([], odd.rank, odd.other)
  const mine = (ops: CopyBatch["sends"], concerns: (peer: Rank) => boolean) =>
    [...ops].filter(([peer]) => concerns(peer)).map(([peer, list]) => [peer, list.map(summarize)] as const)
  const listed = yield* meet(run, "copy batch details", details, {
    sends: mine(batch.sends, (peer) => pairs.some(([from, to]) => from === group.rank && to === peer)),
    recvs: mine(batch.recvs, (peer) => pairs.some(([from, to]) => to === group.rank && from === peer))
  })
  for (const [from, to] of pairs) {
    const sends: ReadonlyArray<OpSummary> = new Map(listed[from]!.sends).get(to) ?? []
    const recvs: ReadonlyArray<OpSummary> = new Map(listed[to]?.recvs ?? []).get(from) ?? []
    const error = comparePair(from, to, sends, recvs)
    if (error !== undefined) return yield* error
  }
  return yield* copyError("Mismatch", pairs.flat(), {
    op: "run",
    detail: `Ranks ${pairs[0]![0]} and ${pairs[0]![1]} list their common operations in different ways.`,
    remedy: "Run the same version on all ranks."
  })
})

/**
 * The failure behind the others: a rank that lost a peer or waited for it in vain is not the first one, where that peer
 * reports a failure of its own.
 */
const rootFault = (outcomes: ReadonlyArray<typeof Outcome.Type>): CopyError | undefined => {
  const isSecondary = ({ reason }: CopyError): boolean =>
    (reason._tag === "PeerGone" || reason._tag === "DeadlineExceeded") &&
    reason.peer !== undefined &&
    (outcomes[reason.peer]?.fault ?? null) !== null
  const told = (isEcho: boolean) =>
    outcomes.flatMap((each) => (each.fault !== null && each.isEcho === isEcho ? [each.fault] : []))
  const own = told(false)
  // Among ranks that lost each other, one that waited in vain knows more than those that it left.
  const late = own.find(({ reason }) => reason._tag === "DeadlineExceeded")
  return own.find((fault) => !isSecondary(fault)) ?? late ?? own[0] ?? told(true)[0]
}

const rootOf = remembered(rootFault)

/** Reports to everybody how a step of the run ended here; the failure behind it where it failed on any rank. */
export const agreeOnOutcome = (
  run: RunCollectives,
  label: "copy staging" | "copy prepare" | "copy outcome",
  fault: CopyError | undefined,
  isEcho = false
): Effect.Effect<CopyError | undefined, CopyError> =>
  Effect.map(meet(run, label, run.memory.outcome, { fault: fault ?? null, isEcho }, { fault }), (outcomes) => {
    const root = rootOf(outcomes)
    if (root !== undefined) run.alarm.settle()
    return root
  })
