// SPDX-License-Identifier: Apache-2.0
/**
 * `CopyDriver` between hosts: tensors travel over many connections of TCP, gathered from where they lie and scattered to where
 * they belong, on threads of their own.
 *
 * Invariants: the collectives of a preparation are reached by every rank whatever fails before them, and a failure on one
 * rank is the failure of all. Bytes go only where a receiver has said that its memory waits, and the sender is done when the
 * receiver has confirmed all of them. Memory that is freed is not touched any more when the freeing returns.
 */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { readEnvironment } from "@tensorferry/core/group/ProcessGroupEnvironment"
import type { Message } from "@tensorferry/core/ir/Message"
import {
  CopyDriver,
  type CopyDriverCapabilities,
  type CopyDriverError,
  type CopyDriverShape,
  type InFlight,
  type Program
} from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import { describeFailure } from "@tensorferry/native/describeFailure"
import { makeDriverAgreement } from "@tensorferry/native/driver/DriverAgreement"
import { type Checked, type DriverErrors, driverErrors } from "@tensorferry/native/driver/DriverErrors"
import { checkMessages } from "@tensorferry/native/driver/MessageChecks"
import { makeProgramEntries } from "@tensorferry/native/driver/ProgramEntries"
import { nothingToMove } from "@tensorferry/native/driver/Transfers"
import { type NativeFailure, resultOf } from "@tensorferry/native/NativeAddon"
import { startJob } from "@tensorferry/native/NativeJob"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type Addon, backendName, loadAddon, type NativeFlow } from "./Addon.ts"
import { encodeLists, findDisagreement } from "./disagreement.ts"
import { makeNetwork, type Network } from "./Network.ts"
import type { TcpOptions } from "./options.ts"
import { decodePublication, disagrees, type Exchanged, type Publication } from "./Publication.ts"
import { messagesWith, streamDigest, streamTable } from "./streamTable.ts"

/** What the driver promises; the conformance kit holds it to each flag. */
export const capabilities: CopyDriverCapabilities = {
  gather: true,
  requiresProcessGroupBarrier: false,
  requiresTaskId: false,
  deviceFamilies: ["cpu"],
  maxMessageBytes: Number.MAX_SAFE_INTEGER,
  pairwise: true
}

/** What differs from the general remedies. */
const remedies = {
  InvalidProgram: "Prepare the messages again, equal on both ends, with storage that stays open.",
  TransportFailed: "Look up the native code, and check the network between the hosts."
}

const sameToken = "Set TENSORFERRY_TOKEN to the same secret on every rank."
const notUsable = "The program belongs to another driver, was closed, or its memory was freed."

const failureOf = (errors: DriverErrors, failure: NativeFailure): CopyDriverError => {
  const facts = { peer: failure.item < 0 ? undefined : failure.item, nativeCode: failure.nativeCode }
  if (failure.code === "PeerGone" || failure.code === "DeadlineExceeded") {
    return errors.fail("PeerGone", failure.detail, facts)
  }
  if (failure.code === "InvalidHandle") return errors.fail("InvalidProgram", failure.detail, facts)
  const remedy = failure.code === "PermissionDenied" ? { remedy: sameToken } : {}
  return errors.fail("TransportFailed", describeFailure(failure), { ...facts, ...remedy })
}

/** What this rank exchanges, by peer. */
const exchangesOf = (messages: ReadonlyArray<Message>): ReadonlyArray<Exchanged> =>
  [...new Set(messages.map(({ peer }) => peer))].map((peer) => {
    const digest = (direction: Message["direction"]) => {
      const some = messagesWith(messages, peer, direction)
      return some.length === 0 ? "" : streamDigest(some)
    }
    return { peer, sends: digest("send"), receives: digest("recv") }
  })

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

/** The driver over a loaded addon for one rank of a group. It fails with BackendError where no address can be used. */
export const make = Effect.fnUntraced(function* (
  addon: Addon,
  group: ProcessGroupShape,
  token: string | undefined,
  options: TcpOptions = {}
): Effect.fn.Return<CopyDriverShape, BackendError, Scope.Scope> {
  const { rank, size } = group
  const errors = driverErrors(backendName, rank, remedies)
  const agreement = makeDriverAgreement(group, errors)
  const network: Network = yield* makeNetwork(addon, group, token, options)
  const entries = makeProgramEntries<{ readonly flows: ReadonlyArray<NativeFlow> }>(() =>
    errors.fail("InvalidProgram", notUsable)
  )
  /** Counts preparations: names what this rank sends. */
  let prepared = 0

  const publication = (messages: ReadonlyArray<Message>, program: number): Checked<Publication> =>
    Result.map(
      checkMessages(messages, {
        errors,
        worldSize: size,
        partFault: ({ device }) => (device.family === "cpu" ? undefined : "A part does not lie in host memory."),
        remedy: "Keep the storage open until the transfer is done, on the host, and name ranks of the group."
      }),
      () => ({ endpoint: network.published, program, exchanges: exchangesOf(messages) })
    )

  const native = <A>(result: Result.Result<A, NativeFailure>): Checked<A> =>
    Result.mapError(result, (failure) => failureOf(errors, failure))

  /** The flows with one peer, and a lane to it; they end with the scope. */
  const meet = Effect.fnUntraced(function* (
    messages: ReadonlyArray<Message>,
    own: number,
    rankOfPeer: number,
    published: Publication,
    flows: Array<NativeFlow>
  ): Effect.fn.Return<void, CopyDriverError> {
    const peer = yield* Effect.fromResult(native(network.meet(rankOfPeer, published.endpoint)))
    let sends = false
    for (const direction of ["send", "recv"] as const) {
      const tensors = messagesWith(messages, rankOfPeer, direction).flatMap(({ parts }) =>
        parts.map(({ tensor }) => tensor)
      )
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
      const added = addon.addFlow(network.endpoint, peer, program, isSending, table.success)
      flows.push(yield* Effect.fromResult(native(resultOf(added))))
      sends ||= isSending
    }
    if (sends) yield* Effect.mapError(network.connect(peer), (failure) => failureOf(errors, failure))
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
        Effect.sync((): Array<NativeFlow> => []),
        (held) =>
          Effect.sync(() => {
            for (const flow of held) addon.closeFlow(network.endpoint, flow)
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
      const paths = peers.map((peer) => ({ peer, path: "tcp", reason: network.describe(peer) }))
      const program: Program = { messages, paths }
      yield* entries.add(program, { flows })
      yield* watchMemory(messages, () => {
        for (const flow of flows) addon.closeFlow(network.endpoint, flow)
      })
      return program
    })

  const begin = (flows: ReadonlyArray<NativeFlow>): Effect.Effect<InFlight, CopyDriverError> =>
    Effect.suspend(() => {
      if (flows.length === 0) return Effect.succeed(nothingToMove)
      const started = startJob<undefined>(
        addon,
        (done) => addon.startTransfer(network.endpoint, flows, done),
        () => {}
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
    name: backendName,
    rank,
    worldSize: size,
    capabilities,
    prepare,
    start: (program) =>
      entries.start(program, ({ isUsable, flows }) =>
        isUsable ? begin(flows) : Effect.fail(errors.fail("InvalidProgram", notUsable))
      )
  }
})

/** The token of the options, else that of the environment. */
const tokenOf = (options: TcpOptions): Effect.Effect<string | undefined> =>
  options.token !== undefined
    ? Effect.succeed(options.token)
    : Effect.map(Effect.option(readEnvironment), (read) =>
        Option.isSome(read) && read.value.token !== undefined ? Redacted.value(read.value.token) : undefined
      )

/** Fails with "Unavailable" where the addon cannot be loaded, or no address can be used. */
export const layer = (options: TcpOptions = {}): Layer.Layer<CopyDriver, BackendError, ProcessGroup> =>
  Layer.effect(
    CopyDriver,
    Effect.gen(function* () {
      return yield* make(yield* loadAddon, yield* ProcessGroup, yield* tokenOf(options), options)
    })
  )
