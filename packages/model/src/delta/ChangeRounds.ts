// SPDX-License-Identifier: Apache-2.0
/**
 * The two halves of an update of changes on one rank: before bytes move, when receivers state what they hold and senders what
 * changed; and afterwards, when what arrived is written, and what is not what was stated comes again.
 */
import { randomUUID } from "node:crypto"
import type { DType } from "@tensorferry/core/base/DType"
import { Natural32 } from "@tensorferry/core/base/Numbers"
import { exchangeResults } from "@tensorferry/core/group/Exchange"
import type { ReshardPlan } from "@tensorferry/core/ir/ReshardPlan"
import type { TransferOp } from "@tensorferry/core/ir/TransferOp"
import { touching } from "@tensorferry/core/reshard/InPlace"
import { ReshardError, reshardError } from "@tensorferry/core/reshard/ReshardError"
import { type CopyOp, CopyService } from "@tensorferry/core/service/CopyService"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import type { TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import type { TensorDict } from "@tensorferry/core/tensor/TensorDict"
import type { ReshardTransform } from "@tensorferry/core/transform/ReshardTransform"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { type Arrival, prepareArrivals, writtenBy } from "./Arrivals.ts"
import {
  baseFault,
  follow,
  needRows,
  needWords,
  type Proofs,
  readNeeds,
  readRows,
  versionFault
} from "./ChangeFence.ts"
import { type ChangeMoves, type FormedPart, type Receipt, rowWords } from "./ChangeMoves.ts"
import { type ChangePosts, encodeStatement } from "./ChangePosts.ts"
import type { ChangeScan, ScannedPart } from "./ChangeScan.ts"

/** What differs after an update: sender and task. */
const Written = { success: Schema.Array(Schema.Tuple([Natural32, Natural32])), failure: ReshardError }

/** What a rank works with. */
export interface ChangeWork {
  readonly plan: ReshardPlan
  readonly engine: TensorEngineShape
  readonly scanner: ChangeScan
  readonly moves: ChangeMoves
  readonly transform: ReshardTransform | undefined
}

/** What a rank held, and sent, before an update. */
export interface HeldBefore {
  /** The version that its destination is stated to hold. */
  readonly holds: string | null
  /** The version that its copies are of. */
  readonly base: string | undefined
  readonly heldProofs: Proofs
  readonly sentProofs: Proofs
}

/** One update as this rank is asked for it. */
export interface ChangeRequest {
  readonly version: string
  /** Tensors of the destination that do not hold the version. */
  readonly lost: ReadonlySet<string>
  readonly source: TensorDict | undefined
  readonly destination: TensorDict | undefined
}

/** What a rank knows before anything moves. */
export interface PreparedChanges {
  readonly arrivals: ReadonlyMap<TransferOp, Arrival>
  readonly scanned: ReadonlyMap<TransferOp, ReadonlyArray<ScannedPart>>
  readonly ops: ReadonlyArray<CopyOp>
  readonly receipts: ReadonlyMap<TransferOp, ReadonlyArray<Receipt>>
  /** What will be known of what each receiver holds, and of what is held from each sender. */
  readonly sentProofs: Proofs
  readonly heldProofs: Proofs
}

/** A failed exchange as the error of an update. */
const exchangeFailed = (rank: number) => (error: { readonly message: string }) =>
  error instanceof ReshardError
    ? error
    : reshardError("ExchangeFailed", { rank, detail: error.message, remedy: "See what the named rank printed." })

/** The type in which a part travels. */
const wireIn =
  (transform: ReshardTransform | undefined) =>
  ({ paramName, wireDtype }: TransferOp, { view }: ScannedPart): DType =>
    transform?.shouldTransform(paramName) === true ? view.dtype : wireDtype

/** What is queued for what arrives. */
const opsOf = (receipts: PreparedChanges["receipts"]): ReadonlyArray<CopyOp> =>
  [...receipts.values()].flatMap((parts) => parts.flatMap(({ ops }) => ops))

/** Where the parts of regions arrive, by what is stated of each. */
const receive = Effect.fnUntraced(function* (
  moves: ChangeMoves,
  arrivals: PreparedChanges["arrivals"],
  rows: Result.Result.Success<ReturnType<typeof readRows>>
) {
  const receipts = new Map<TransferOp, ReadonlyArray<Receipt>>()
  for (const [op, { parts }] of arrivals) {
    const received: Array<Receipt> = []
    for (const [part, each] of parts.entries()) {
      received.push(yield* moves.receive(op, part, each, rows.get(op)?.get(part)))
    }
    receipts.set(op, received)
  }
  return receipts
})

/** While an engine works for one region on its threads, this one takes the checksum of another. */
const regionsAtOnce = 4

/** The half before bytes move. */
export const makeChangePreparation = ({ plan, engine, scanner, moves, transform }: ChangeWork) => {
  const { rank, recvOps, sendOps } = plan
  const receivers = [...new Set(sendOps.map(({ peerRank }) => peerRank))]
  const senders = [...new Set(recvOps.map(({ peerRank }) => peerRank))]
  const wireOf = wireIn(transform)

  /** A source that an update overwrites would not be what is compared next time. */
  const sharedFault = (
    arrivals: PreparedChanges["arrivals"],
    scanned: PreparedChanges["scanned"],
    destination: TensorDict | undefined
  ) => {
    const isWritten = touching(writtenBy(arrivals, destination))
    const shared = sendOps.find((op) => scanned.get(op)!.some(({ view }) => isWritten(view)))
    return shared === undefined
      ? undefined
      : reshardError("TensorMismatch", {
          rank,
          paramName: shared.paramName,
          detail:
            "The source shares memory with the destination, so what changed cannot be told from what was written.",
          remedy: "Carry the plan out with executeReshardPlan."
        })
  }

  /** What leaves, and what is stated of it to each receiver. */
  const prepareSends = Effect.fnUntraced(function* (
    request: ChangeRequest,
    arrivals: PreparedChanges["arrivals"],
    needOf: ReturnType<typeof readNeeds>["needOf"]
  ) {
    const forming = new Map<string, Fiber.Fiber<FormedPart, ReshardError>>()
    const numbers = new Map<ScannedPart, number>()
    /** A part is formed once, whoever receives it, while the engine searches the next one. */
    const form = (op: TransferOp, part: ScannedPart) =>
      Effect.suspend(() => {
        const number = numbers.get(part) ?? numbers.size
        numbers.set(part, number)
        const key = `${number} ${wireOf(op, part)}`
        const known = forming.get(key)
        if (known !== undefined) return Effect.succeed(known)
        return Effect.tap(Effect.forkScoped(moves.form(part, wireOf(op, part))), (fiber) =>
          Effect.sync(() => forming.set(key, fiber))
        )
      })
    const scanned = yield* scanner.scan(sendOps, request.source, needOf, (op, parts) =>
      Effect.forEach(parts, (part) => form(op, part), { discard: true })
    )
    const shared = sharedFault(arrivals, scanned, request.destination)
    if (shared !== undefined) return yield* shared
    const ops: Array<CopyOp> = []
    const rows = new Map(receivers.map((receiver) => [receiver, [] as Array<number>]))
    for (const op of sendOps) {
      for (const [part, each] of scanned.get(op)!.entries()) {
        const sent = moves.send(op, part, yield* Effect.flatMap(form(op, each), Fiber.join))
        ops.push(...sent.ops)
        if (sent.row !== undefined) rows.get(op.peerRank)!.push(...sent.row)
      }
    }
    return { scanned, ops, rows }
  })

  /** Everything before bytes move. */
  const prepare = Effect.fnUntraced(function* (
    posts: ChangePosts,
    request: ChangeRequest,
    before: HeldBefore
  ): Effect.fn.Return<PreparedChanges, ReshardError, Scope.Scope> {
    const { version } = request
    const arrivals = yield* prepareArrivals(plan, engine, transform, request.destination)
    const stated = needRows(arrivals, request.lost)
    for (const sender of senders) {
      const proof = before.holds === null ? null : (before.heldProofs.get(sender) ?? null)
      const head = { version, holds: before.holds, proof, words: needWords }
      yield* posts.state("holds", sender, encodeStatement(head, stated.get(sender) ?? []))
    }
    const held = yield* posts.hear("holds", receivers)
    const early = versionFault(rank, held, version)
    if (early !== undefined) return yield* early
    const { known, needOf } = readNeeds(held, before.base, before.sentProofs)
    const leaving = yield* posts.busy(receivers, prepareSends(request, arrivals, needOf))
    const sentProofs = new Map<number, string>()
    for (const receiver of receivers) {
      const isKnown = known.has(receiver)
      const proof = (isKnown ? before.sentProofs.get(receiver) : undefined) ?? randomUUID()
      const head = { version, holds: isKnown ? before.base! : null, proof, words: rowWords }
      const bytes = encodeStatement(head, leaving.rows.get(receiver)!)
      sentProofs.set(receiver, follow(proof, bytes))
      yield* posts.state("changed", receiver, bytes)
    }
    const changed = yield* posts.hear("changed", senders)
    const fault = versionFault(rank, changed, version) ?? baseFault(rank, changed, before.holds, before.heldProofs)
    if (fault !== undefined) return yield* fault
    const rows = yield* Effect.fromResult(readRows(rank, changed, recvOps))
    const receipts = yield* receive(moves, arrivals, rows)
    const heldProofs = new Map([...changed].map(([peer, { bytes, head }]) => [peer, follow(head.proof ?? "", bytes)]))
    const ops = [...leaving.ops, ...opsOf(receipts)]
    return { arrivals, scanned: leaving.scanned, ops, receipts, sentProofs, heldProofs }
  })

  return { receivers, senders, prepare }
}

/** The half after bytes moved. */
export const makeChangeCompletion = ({ plan: { rank, sendOps }, moves, transform }: ChangeWork) => {
  const wireOf = wireIn(transform)

  /** Writes what arrived; gives the regions that are not what was stated. */
  const write = (receipts: PreparedChanges["receipts"]) =>
    Effect.filter(
      [...receipts.keys()],
      (op) =>
        Effect.map(
          Effect.forEach(receipts.get(op)!, (receipt) => receipt.write),
          (parts) => parts.includes(false)
        ),
      { concurrency: regionsAtOnce }
    )

  /** Completes regions of which anything came. */
  const finalize = ({ arrivals, receipts }: PreparedChanges) =>
    Effect.forEach(
      arrivals,
      ([op, arrival]) =>
        arrival.finalize === undefined || receipts.get(op)!.every(({ ops }) => ops.length === 0)
          ? Effect.void
          : arrival.finalize,
      { discard: true }
    )

  const agreeOnWritten = (label: string, own: Result.Result<ReadonlyArray<TransferOp>, ReshardError>) =>
    Effect.flatMap(ProcessGroup, (group) =>
      Effect.mapError(
        exchangeResults(
          group,
          label,
          Written,
          Result.map(own, (ops) => ops.map(({ peerRank, taskId }) => [peerRank, taskId] as const))
        ),
        exchangeFailed(rank)
      )
    )

  /** Sends whole what receivers found to differ; `wrong` is by receiver. */
  const repair = Effect.fnUntraced(function* (
    prepared: PreparedChanges,
    wrong: ReadonlyArray<ReadonlyArray<readonly [sender: number, task: number]>>
  ) {
    const isWrong = (receiver: number, sender: number, task: number) =>
      wrong[receiver]!.some(([from, of]) => from === sender && of === task)
    const ops: Array<CopyOp> = []
    for (const op of sendOps) {
      if (!isWrong(op.peerRank, rank, op.taskId)) continue
      for (const [part, each] of prepared.scanned.get(op)!.entries()) {
        const formed = yield* moves.form({ ...each, sent: undefined }, wireOf(op, each))
        ops.push(...moves.send(op, part, formed).ops)
      }
    }
    const again = new Map([...prepared.arrivals].filter(([op]) => isWrong(rank, op.peerRank, op.taskId)))
    const receipts = yield* receive(moves, again, new Map())
    const service = yield* CopyService
    yield* service.submitAll([...ops, ...opsOf(receipts)])
    yield* service.run({ together: true })
    const completed = Effect.andThen(
      write(receipts),
      again.size === 0
        ? Effect.succeed([])
        : Effect.as(finalize({ ...prepared, receipts: new Map([...prepared.receipts, ...receipts]) }), [])
    )
    yield* agreeOnWritten("delta repaired", yield* Effect.result(completed))
  })

  /** Everything after bytes moved. Gives how many regions of all ranks came again. */
  const complete = Effect.fnUntraced(function* (prepared: PreparedChanges) {
    const group = yield* ProcessGroup
    const written = Effect.gen(function* () {
      const differing = yield* write(prepared.receipts)
      // What a transform brings together is completed together, once all of it is right.
      if (differing.length === 0) yield* finalize(prepared)
      return differing
    })
    const wrong = yield* agreeOnWritten("delta written", yield* Effect.result(group.keepAlive(written)))
    const repaired = wrong.flat().length
    if (repaired > 0) yield* repair(prepared, wrong)
    return repaired
  })

  return { complete }
}
