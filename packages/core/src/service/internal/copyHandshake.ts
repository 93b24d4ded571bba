/**
 * How all ranks agree on a batch before any byte moves, and on the outcome afterwards.
 *
 * Round 1: every rank states its settings, the digest of its batch, the digest of the last batch that all had agreed on,
 * and what is wrong on its side. Equal digests of an agreed batch end the handshake here. Round 2: digests per pair of
 * ranks. Round 3, only after a disagreement: the operations of the pairs that differ, so that every rank can name them.
 * All ranks see the same answers and therefore reach the same verdict.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { type Digest, digestOf } from "../../base/Digest.ts"
import { DType } from "../../base/DType.ts"
import type { Rank } from "../../base/Ids.ts"
import { Shape } from "../../base/Region.ts"
import { CopyError, copyError } from "../CopyService.ts"
import type { ProcessGroupError, ProcessGroupShape } from "../ProcessGroup.ts"
import { batchDigest, type CopyBatch, comparePair, type OpSummary, pairDigest, summarize } from "./copyBatch.ts"

/** Version of the messages below. */
const protocol = 1

const Hello = Schema.Struct({
  protocol: Schema.Int,
  backend: Schema.String,
  /** Staging bytes, equal on all ranks because they decide where messages are cut. */
  stagingBytes: Schema.Int,
  /** Rounds of messages that this rank needs. */
  rounds: Schema.Int,
  batch: Schema.String,
  agreed: Schema.String,
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

const Outcome = Schema.Struct({ fault: Schema.NullOr(CopyError) })

/** Turns a failure of the group into the service's error, naming the same ranks. */
export const fromGroupError = (rank: Rank, op: string, error: ProcessGroupError): CopyError =>
  copyError(
    error.reason._tag === "PeerGone"
      ? "PeerGone"
      : error.reason._tag === "DeadlineExceeded"
        ? "DeadlineExceeded"
        : "TransferFailed",
    error.ranks,
    {
      rank,
      ...(error.ranks[0] === undefined ? {} : { peer: error.ranks[0] }),
      op,
      scope: "peer",
      isRetryable: true,
      detail: error.message,
      remedy: error.reason.remedy
    }
  )

const exchange = <A, I>(group: ProcessGroupShape, label: string, schema: Schema.Codec<A, I>, value: A) => {
  const codec = Schema.fromJsonString(Schema.toCodecJson(schema))
  return Effect.gen(function* () {
    const text = yield* Effect.orDie(Schema.encodeEffect(codec)(value))
    const payloads = yield* Effect.mapError(group.allGather(label, new TextEncoder().encode(text)), (error) =>
      fromGroupError(group.rank, label, error)
    )
    const values: Array<A> = []
    for (const [rank, payload] of payloads.entries()) {
      const decoded = Schema.decodeUnknownResult(codec)(new TextDecoder().decode(payload))
      if (Result.isFailure(decoded)) {
        return yield* copyError("Incompatible", [rank], {
          rank: group.rank,
          peer: rank,
          op: label,
          detail: `Rank ${rank} sent a message that this version cannot read.`,
          remedy: "Run the same version on all ranks."
        })
      }
      values.push(decoded.success)
    }
    return values
  })
}

export interface LocalState {
  readonly backend: string
  readonly stagingBytes: number
  readonly rounds: number
  readonly batch: CopyBatch
  /** Digest of the batches of all ranks in the last successful handshake; empty at first. */
  readonly agreed: Digest
  readonly isStale: boolean
  readonly isBroken: boolean
  readonly fault: CopyError | undefined
}

export interface Agreement {
  readonly agreed: Digest
  readonly mustPrepare: boolean
  readonly mustRebuild: boolean
  /** Rounds that every rank walks through, so that collectives stay in step. */
  readonly rounds: number
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

/** Agrees on the batch, or fails on every rank with the same error. */
export const agree = Effect.fn("CopyService.agree")(function* (
  group: ProcessGroupShape,
  local: LocalState
): Effect.fn.Return<Agreement, CopyError> {
  const digest = batchDigest(local.batch)
  const hellos = yield* exchange(group, "copy handshake", Hello, {
    protocol,
    backend: local.backend,
    stagingBytes: local.stagingBytes,
    rounds: local.rounds,
    batch: digest,
    agreed: local.agreed,
    isStale: local.isStale,
    isBroken: local.isBroken,
    fault: local.fault ?? null
  })
  const fault = hellos.find((hello) => hello.fault !== null)?.fault ?? checkSettings(hellos)
  if (fault != null) return yield* fault
  const agreed = digestOf(hellos.map((hello) => hello.batch))
  const agreement: Agreement = {
    agreed,
    mustPrepare: hellos.some((hello) => hello.isStale || hello.isBroken),
    mustRebuild: hellos.some((hello) => hello.isBroken),
    rounds: Math.max(...hellos.map((hello) => hello.rounds))
  }
  if (hellos.every((hello) => hello.agreed === agreed)) return agreement
  const toDigests = (ops: CopyBatch["sends"]) => [...ops].map(([peer, list]) => [peer, pairDigest(list)] as const)
  const all = yield* exchange(group, "copy batch digests", Digests, {
    sends: toDigests(local.batch.sends),
    recvs: toDigests(local.batch.recvs)
  })
  const pairs = differingPairs(all)
  if (pairs.length === 0) return agreement
  const mine = (ops: CopyBatch["sends"], concerns: (peer: Rank) => boolean) =>
    [...ops].filter(([peer]) => concerns(peer)).map(([peer, list]) => [peer, list.map(summarize)] as const)
  const details = yield* exchange(group, "copy batch details", Details, {
    sends: mine(local.batch.sends, (peer) => pairs.some(([from, to]) => from === group.rank && to === peer)),
    recvs: mine(local.batch.recvs, (peer) => pairs.some(([from, to]) => to === group.rank && from === peer))
  })
  for (const [from, to] of pairs) {
    const sends: ReadonlyArray<OpSummary> = new Map(details[from]!.sends).get(to) ?? []
    const recvs: ReadonlyArray<OpSummary> = new Map(details[to]?.recvs ?? []).get(from) ?? []
    const error = comparePair(from, to, sends, recvs)
    if (error !== undefined) return yield* error
  }
  return yield* copyError("Mismatch", pairs.flat(), {
    op: "run",
    detail: `Ranks ${pairs[0]![0]} and ${pairs[0]![1]} list their common operations in different ways.`,
    remedy: "Run the same version on all ranks."
  })
})

/** Tells everybody how a step of the run ended here; fails on every rank where it failed on any. */
export const agreeOnOutcome = Effect.fn("CopyService.outcome")(function* (
  group: ProcessGroupShape,
  label: "copy staging" | "copy prepare" | "copy outcome",
  fault: CopyError | undefined
): Effect.fn.Return<void, CopyError> {
  const outcomes = yield* exchange(group, label, Outcome, { fault: fault ?? null })
  const first = outcomes.find((outcome) => outcome.fault !== null)?.fault
  if (first != null) return yield* first
})
