// SPDX-License-Identifier: Apache-2.0
/**
 * A `CopyDriver` over a wire: how ranks agree on what they exchange, meet, and start, whatever carries the bytes.
 *
 * Invariants: the collectives of a preparation are reached by every rank whatever fails before them, and a failure on one
 * rank is the failure of all. Memory that is freed is not touched any more when the freeing returns. What a peer says is
 * decoded here before anything uses it.
 */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { readEnvironment } from "@tensorferry/core/group/ProcessGroupEnvironment"
import type { Message } from "@tensorferry/core/ir/Message"
import {
  CopyDriver,
  type CopyDriverError,
  type CopyDriverShape,
  type InFlight,
  type PeerPath,
  type Program
} from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { describeFailure } from "../describeFailure.ts"
import type { Done, NativeAnswer, NativeCode, NativeFailure } from "../NativeAddon.ts"
import { type JobControl, type NativeJobHandle, startJob } from "../NativeJob.ts"
import { makeDriverAgreement } from "./DriverAgreement.ts"
import { type Checked, type DriverErrors, driverErrors } from "./DriverErrors.ts"
import { encodeLists, findDisagreement } from "./disagreement.ts"
import { checkMessages } from "./MessageChecks.ts"
import { makeProgramEntries } from "./ProgramEntries.ts"
import { disagrees, exchangesOf, type Publication, publicationOf } from "./Publication.ts"
import { messagesWith, streamDigest, streamTable } from "./streamTable.ts"
import { nothingToMove } from "./Transfers.ts"
import { wireCapabilities } from "./wireCapabilities.ts"

/** What goes one way between this rank and a peer, as the wire is told of it. */
export interface WireFlow {
  /** How the sender names what it sends with the program. */
  readonly program: number
  readonly isSending: boolean
  /** Of all its parts: equal at both ends. */
  readonly digest: string
  /** As `streamTable` makes it. */
  readonly table: BigUint64Array
  readonly tensors: ReadonlyArray<Tensor>
}

/** One rank at its wire. `Published` is how it can be reached, `Peer` and `Flow` are the addon's. */
export interface Wire<Published, Peer, Flow> {
  /** What this rank tells the others, so that they can reach it. */
  readonly published: Published
  /** Of what ranks publish. */
  readonly schema: Schema.Codec<Published, unknown>
  /** The peer as it published itself; the same one as long as it publishes the same. */
  readonly meet: (rank: number, published: Published) => Result.Result<Peer, NativeFailure>
  /** Waits until the peer can be reached. A rank that only receives calls it where `connectsToReceive`. */
  readonly connect: (peer: Peer) => Effect.Effect<void, NativeFailure>
  /** Whether a rank that only receives connects too. */
  readonly connectsToReceive: boolean
  /** The path to a peer that was met, for reports. */
  readonly describe: (rank: number) => Omit<PeerPath, "peer">
  /** What goes to or comes from a peer in one program. */
  readonly addFlow: (peer: Peer, flow: WireFlow) => Result.Result<Flow, NativeFailure>
  /** A run under way fails. When this returns, memory of the flow is not touched any more. */
  readonly closeFlow: (flow: Flow) => void
  /** Carries out the flows of one run; `done` is called when all have ended. */
  readonly start: (flows: ReadonlyArray<Flow>, done: Done<undefined>) => NativeAnswer<NativeJobHandle>
  /** Lets this thread do the work of a short transfer for a moment. True where it has ended well; `done` is not called then. */
  readonly attend?: (transfer: NativeJobHandle) => boolean
}

const sameToken = "Set TENSORFERRY_TOKEN to the same secret on every rank."
const notUsable = "The program belongs to another driver, was closed, or its memory was freed."

/** What differs from the general remedies. */
const remedies = {
  InvalidProgram: "Prepare the messages again, equal on both ends, with storage that stays open.",
  TransportFailed: "Look up the native code, and check the network between the hosts."
}

const failureOf = (errors: DriverErrors, failure: NativeFailure): CopyDriverError => {
  const facts = { peer: failure.item < 0 ? undefined : failure.item, nativeCode: failure.nativeCode }
  if (failure.code === "PeerGone" || failure.code === "DeadlineExceeded") {
    return errors.fail("PeerGone", failure.detail, facts)
  }
  if (failure.code === "InvalidHandle") return errors.fail("InvalidProgram", failure.detail, facts)
  const remedy = failure.code === "PermissionDenied" ? { remedy: sameToken } : {}
  return errors.fail("TransportFailed", describeFailure(failure), { ...facts, ...remedy })
}

/** Ends the use of memory before it goes away. */
const watchMemory = (messages: ReadonlyArray<Message>, stop: () => void): Effect.Effect<void, never, Scope.Scope> =>
  Effect.asVoid(
    Effect.acquireRelease(
      Effect.sync(() => {
        const storages = new Set<Storage>(messages.flatMap(({ parts }) => parts.map(({ tensor }) => tensor.storage)))
        return [...storages].map((storage) => storage.onRevoke(stop))
      }),
      (unregister) =>
        Effect.sync(() => {
          for (const undo of unregister) undo()
        })
    )
  )

/** What fails with one peer before anything of the system was asked. */
export const peerFailure = (peer: number, code: NativeCode, detail: string): NativeFailure => ({
  code,
  op: "meet",
  detail: `Rank ${peer} ${detail}.`,
  nativeCode: 0,
  item: peer
})

/** The driver of one rank of a group over its wire. Ranks without the wire take part by `makeAbsentDriver`. */
export const makeWireDriver = <Published, Peer, Flow>(
  backend: string,
  jobs: JobControl,
  group: ProcessGroupShape,
  wire: Wire<Published, Peer, Flow>
): CopyDriverShape => {
  const { rank, size } = group
  const errors = driverErrors(backend, rank, remedies)
  const agreement = makeDriverAgreement(group, errors)
  const decodePublication = publicationOf(Schema.NullOr(wire.schema))
  const entries = makeProgramEntries<{ readonly flows: ReadonlyArray<Flow> }>(() =>
    errors.fail("InvalidProgram", notUsable)
  )
  /** Counts preparations: names what this rank sends. */
  let prepared = 0

  const publication = (messages: ReadonlyArray<Message>, program: number): Checked<Publication<Published | null>> =>
    Result.map(
      checkMessages(messages, {
        errors,
        worldSize: size,
        partFault: ({ device }) => (device.family === "cpu" ? undefined : "A part does not lie in host memory."),
        remedy: "Keep the storage open until the transfer is done, on the host, and name ranks of the group."
      }),
      () => ({ endpoint: wire.published, program, exchanges: exchangesOf(messages) })
    )

  const native = <A>(result: Result.Result<A, NativeFailure>): Checked<A> =>
    Result.mapError(result, (failure) => failureOf(errors, failure))

  /** The flows with one peer, and a way to it; they end with the scope. */
  const meet = Effect.fnUntraced(function* (
    messages: ReadonlyArray<Message>,
    own: number,
    rankOfPeer: number,
    published: Publication<Published | null>,
    flows: Array<Flow>
  ): Effect.fn.Return<void, CopyDriverError> {
    const { endpoint } = published
    const peer = yield* Effect.fromResult(
      native(
        endpoint === null
          ? Result.fail(peerFailure(rankOfPeer, "Unsupported", `has no ${backend}`))
          : wire.meet(rankOfPeer, endpoint)
      )
    )
    let connects = false
    for (const direction of ["send", "recv"] as const) {
      const some = messagesWith(messages, rankOfPeer, direction)
      const tensors = some.flatMap(({ parts }) => parts.map(({ tensor }) => tensor))
      const table = streamTable(tensors)
      if (Result.isFailure(table)) {
        return yield* errors.fail("InvalidProgram", `${table.failure}.`, {
          peer: rankOfPeer,
          op: "prepare",
          scope: "op"
        })
      }
      if (table.success.length === 0) continue
      const isSending = direction === "send"
      const program = isSending ? own : published.program
      const flow = { program, isSending, digest: streamDigest(some), table: table.success, tensors }
      flows.push(yield* Effect.fromResult(native(wire.addFlow(peer, flow))))
      connects ||= isSending || wire.connectsToReceive
    }
    if (connects) yield* Effect.mapError(wire.connect(peer), (failure) => failureOf(errors, failure))
  })

  const prepare: CopyDriverShape["prepare"] = (messages) =>
    Effect.gen(function* () {
      const number = prepared++
      const published = yield* agreement.agree("publish", publication(messages, number), decodePublication)
      if (disagrees(published)) {
        const payloads = yield* agreement.gather("lists", encodeLists(messages))
        yield* agreement.settle("compare", findDisagreement(errors, messages, payloads))
        return yield* errors.fail("InvalidProgram", "Ranks describe what they exchange in different ways.", {
          op: "prepare"
        })
      }
      const flows = yield* Effect.acquireRelease(
        Effect.sync((): Array<Flow> => []),
        (held) =>
          Effect.sync(() => {
            for (const flow of held) wire.closeFlow(flow)
          })
      )
      const peers = [...new Set(messages.map(({ peer }) => peer))]
      const met = yield* Effect.result(
        Effect.forEach(peers, (peer) => meet(messages, number, peer, published[peer]!, flows), {
          concurrency: "unbounded",
          discard: true
        })
      )
      yield* agreement.settle("connected", met)
      const program: Program = { messages, paths: peers.map((peer) => ({ peer, ...wire.describe(peer) })) }
      yield* entries.add(program, { flows })
      yield* watchMemory(messages, () => {
        for (const flow of flows) wire.closeFlow(flow)
      })
      return program
    })

  const begin = (flows: ReadonlyArray<Flow>): Effect.Effect<InFlight, CopyDriverError> =>
    Effect.suspend(() => {
      if (flows.length === 0) return Effect.succeed(nothingToMove)
      const started = startJob<undefined>(
        jobs,
        (done) => wire.start(flows, done),
        () => {},
        wire.attend
      )
      if (Result.isFailure(started)) return Effect.fail(failureOf(errors, started.failure))
      const job = started.success
      return Effect.succeed({
        isComplete: Effect.sync(job.isComplete),
        await: Effect.mapError(job.await, (failure) => failureOf(errors, failure)),
        cancel: job.cancel,
        movedBytes: Effect.sync(job.movedBytes)
      })
    })

  return {
    name: backend,
    rank,
    worldSize: size,
    capabilities: wireCapabilities,
    prepare,
    start: (program) =>
      entries.start(program, ({ isUsable, flows }) =>
        isUsable ? begin(flows) : Effect.fail(errors.fail("InvalidProgram", notUsable))
      )
  }
}

const absent = (peer: number): Result.Result<never, NativeFailure> =>
  Result.fail(peerFailure(peer, "Unsupported", "is asked for a wire that this rank lacks"))

/** The part in a wire's collectives of a rank that has no such wire, and so exchanges nothing over it. */
export const makeAbsentDriver = (backend: string, group: ProcessGroupShape): CopyDriverShape => {
  const nothing = { code: "Ok", value: undefined } as const
  const jobs: JobControl = { cancelJob: () => nothing, movedBytes: () => ({ code: "Ok", value: 0 }) }
  return makeWireDriver<unknown, never, never>(backend, jobs, group, {
    published: null,
    schema: Schema.Unknown,
    meet: absent,
    connect: () => Effect.void,
    connectsToReceive: false,
    describe: () => ({ path: backend, reason: "no such wire here" }),
    addFlow: (peer) => absent(peer),
    closeFlow: () => {},
    start: () => peerFailure(group.rank, "Unsupported", "has no such wire")
  })
}

/** The token of the options, else that of the environment. */
export const tokenOf = (options: { readonly token?: string }): Effect.Effect<string | undefined> =>
  options.token !== undefined
    ? Effect.succeed(options.token)
    : Effect.map(Effect.option(readEnvironment), (read) =>
        Option.isSome(read) && read.value.token !== undefined ? Redacted.value(read.value.token) : undefined
      )

/**
 * The layer of a driver over a wire. `open` opens the wire until the scope ends, with the token of the options or of the
 * environment. Nobody is met before the first preparation.
 */
export const wireDriverLayer = <A extends JobControl, Published, Peer, Flow>(
  backend: string,
  loadAddon: Effect.Effect<A, BackendError>,
  options: { readonly token?: string },
  open: (
    addon: A,
    group: ProcessGroupShape,
    token: string | undefined
  ) => Effect.Effect<Wire<Published, Peer, Flow>, BackendError, Scope.Scope>
): Layer.Layer<CopyDriver, BackendError, ProcessGroup> =>
  Layer.effect(
    CopyDriver,
    Effect.gen(function* () {
      const addon = yield* loadAddon
      const group = yield* ProcessGroup
      return makeWireDriver(backend, addon, group, yield* open(addon, group, yield* tokenOf(options)))
    })
  )
