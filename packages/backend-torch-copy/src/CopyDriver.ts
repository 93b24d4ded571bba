// SPDX-License-Identifier: Apache-2.0
/**
 * `CopyDriver` between processes of one host: the receiver fetches every byte once, straight from the sender's memory; only
 * where that cannot be reached, the sender writes it into a connection on loopback.
 *
 * Invariants: the collectives of a preparation are reached by every rank whatever fails before them, and a failure on one
 * rank is the failure of all; what was fetched from is pinned or mapped until the native side has stopped.
 */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
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
import { tensorByteLength } from "@tensorferry/core/tensor/Tensor"
import { describeFailure } from "@tensorferry/native/describeFailure"
import { makeDriverAgreement } from "@tensorferry/native/driver/DriverAgreement"
import { type Checked, type DriverErrors, driverErrors } from "@tensorferry/native/driver/DriverErrors"
import { makePeerFlags } from "@tensorferry/native/driver/PeerFlags"
import { mergePaths } from "@tensorferry/native/driver/PeerPaths"
import { makeProgramEntries, type ProgramEntry } from "@tensorferry/native/driver/ProgramEntries"
import { forkTransfer, nothingToMove } from "@tensorferry/native/driver/Transfers"
import { encodeMoves } from "@tensorferry/native/MoveTable"
import type { NativeAnswer, NativeFailure } from "@tensorferry/native/NativeAddon"
import { acquirePool, startJob } from "@tensorferry/native/NativeJob"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type Addon, backendName, loadAddon } from "./Addon.ts"
import { pinsOf } from "./checks.ts"
import { type CompiledMoves, compile, type Sender } from "./compile.ts"
import { flagMeans } from "./flagMeans.ts"
import { isAlive, makeMemoryPaths, type PathName } from "./memoryPath.ts"
import { makePeerMaps, type PeerMap, type PeerMaps } from "./PeerMaps.ts"
import { pinAll } from "./PinCount.ts"
import {
  decodePathOutcome,
  decodePublication,
  encodePathOutcome,
  encodePeerList,
  encodePublication,
  type Publication
} from "./Publication.ts"
import { checkHostMessages, publishedLists, publishedProcess } from "./publish.ts"
import { defaultThreads } from "./TensorEngine.ts"
import { type Fetch, makeSending } from "./tcp/sending.ts"
import { unavailableBecause } from "./unavailable.ts"

/** How the driver of host memory copies. */
export interface CopyDriverOptions {
  /** Threads that copy; 2 by default. */
  readonly threads?: number
  /** Steps of the ladder that are not taken, for tests and for hosts whose policy forbids them. */
  readonly forbid?: ReadonlyArray<PathName>
}

/** What the driver of host memory promises; the conformance kit holds it to each flag. */
export const capabilities: CopyDriverCapabilities = {
  gather: true,
  requiresProcessGroupBarrier: true,
  requiresTaskId: false,
  deviceFamilies: ["cpu"],
  maxMessageBytes: Number.MAX_SAFE_INTEGER,
  pairwise: true
}

/** What differs from the general remedies. */
const remedies = {
  InvalidProgram: "Prepare the messages again with storage that is open.",
  TransportFailed: "Look up the native code, and build the service again."
}

/** What the driver keeps beside a program. */
interface Compiled {
  readonly table: BigUint64Array
  readonly moves: CompiledMoves
  /** By rank, what peers send. */
  readonly fetches: ReadonlyMap<number, Fetch>
  /** Bytes of all moves, where there are so few, in mapped memory, that waking a thread would take longer. */
  readonly shortBytes: number | undefined
}

/** Bytes that a core copies while it would wake a thread. */
const mostShortBytes = 64 * 1024

const shortBytesOf = ({ moves, readFrom }: CompiledMoves): number | undefined => {
  if (readFrom.size > 0) return undefined
  const bytes = moves.reduce((sum, { dst }) => sum + tensorByteLength(dst), 0)
  return bytes <= mostShortBytes ? bytes : undefined
}

const notUsable = "The program belongs to another driver, was closed, or its memory was freed."

const cutRemedy = "Keep the file as it is until the transfer is done, and prepare the messages again."

/**
 * Fails where memory was taken away while it was in use: a peer's that is mapped, of which the missing part reads as zeros, or
 * what was written to.
 */
const checkCuts = (
  addon: Addon,
  errors: DriverErrors,
  { maps, faults }: CompiledMoves
): Effect.Effect<void, CopyDriverError> =>
  Effect.suspend(() => {
    for (const { peer, fault } of faults) {
      const detail = fault()
      if (detail !== undefined) return Effect.fail(errors.fail("TransportFailed", detail, { peer, remedy: cutRemedy }))
    }
    const isTrue = (answer: NativeAnswer<boolean | number>) => answer.code === "Ok" && Boolean(answer.value)
    if (!isTrue(addon.memoryCuts())) return Effect.void
    const cut = maps.find(({ map }) => isTrue(addon.isMemoryCut(map.memory.memory)))
    if (cut === undefined) return Effect.void
    const detail = "The file of the peer's memory was made shorter while it was in use."
    return Effect.fail(errors.fail("TransportFailed", detail, { peer: cut.peer, remedy: cutRemedy }))
  })

/** Maps of peers' memory that are given back with the scope. */
const holdMaps = (maps: PeerMaps): Effect.Effect<Array<PeerMap>, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync((): Array<PeerMap> => []),
    (held) =>
      Effect.sync(() => {
        for (const map of held) maps.release(map)
      })
  )

const failureOf = (errors: DriverErrors, { peers }: CompiledMoves, failure: NativeFailure): CopyDriverError => {
  const facts = { peer: peers[failure.item], nativeCode: failure.nativeCode }
  if (failure.code === "PeerGone") return errors.fail("PeerGone", failure.detail, facts)
  if (failure.code === "InvalidHandle") return errors.fail("InvalidProgram", failure.detail, facts)
  return errors.fail("TransportFailed", describeFailure(failure), facts)
}

/**
 * The driver over a loaded addon for one rank of a group. It fails with BackendError where no way to peers' memory
 * works.
 */
export const make = Effect.fnUntraced(function* (
  addon: Addon,
  group: ProcessGroupShape,
  options: CopyDriverOptions = {}
): Effect.fn.Return<CopyDriverShape, BackendError, Scope.Scope> {
  const identified = addon.identity()
  if (identified.code !== "Ok") return yield* unavailableBecause(identified)
  const identity = identified.value
  const { rank, size } = group
  const forbid = new Set(options.forbid)
  const maps = yield* Effect.acquireRelease(
    Effect.sync(() => makePeerMaps(addon)),
    (held) => Effect.sync(held.closeAll)
  )
  // Acquired after the maps, so that no thread reads them any more when they are closed.
  const pool = yield* Effect.mapError(acquirePool(addon, options.threads ?? defaultThreads), unavailableBecause)
  // Without flags, as on a host that forbids such memory, ranks tell each other through the group.
  const own = forbid.has("shared-map")
    ? undefined
    : Option.getOrUndefined(yield* Effect.option(makePeerFlags(flagMeans(addon, pool), group)))
  const driverScope = yield* Effect.scope
  const errors = driverErrors(backendName, rank, remedies)
  const agreement = makeDriverAgreement(group, errors)
  const sending = yield* makeSending({ addon, pool, agreement, errors })
  const entries = makeProgramEntries<Compiled>(() => errors.fail("InvalidProgram", notUsable))
  /** Counts preparations: names a program to other ranks. */
  let prepared = 0

  const publication = (messages: ReadonlyArray<Message>): Publication => {
    const checked = checkHostMessages(errors, size, messages)
    if (Result.isFailure(checked)) return { _tag: "Failed", reason: checked.failure.reason }
    const lists = new Map([...publishedLists(messages)].map(([peer, list]) => [peer, encodePeerList(list)]))
    return { _tag: "Published", process: publishedProcess(identity, own?.published), lists }
  }

  /** The ranks that send to this one; the first failure published, in order of ranks, is everybody's. */
  const readSenders = (
    payloads: ReadonlyArray<Uint8Array>,
    messages: ReadonlyArray<Message>
  ): Checked<ReadonlyMap<number, Sender>> =>
    Result.map(
      agreement.read(payloads, (payload) => decodePublication(payload, rank)),
      (all) => {
        const senders = new Map<number, Sender>()
        const partners = new Set(messages.map(({ peer }) => peer))
        for (const [peer, { process, list }] of all.entries()) {
          if (partners.has(peer) && process.flags !== undefined && process.space === identity.space) {
            own?.meet(peer, process, process.flags)
          }
          if (peer === rank || list === undefined) continue
          senders.set(peer, { process, list, memoryPaths: makeMemoryPaths(addon, maps, identity, forbid, process) })
        }
        return senders
      }
    )

  const prepare: CopyDriverShape["prepare"] = (messages) =>
    Effect.gen(function* () {
      const number = prepared++
      const senders = readSenders(
        yield* agreement.gather("publish", encodePublication(publication(messages))),
        messages
      )
      const held = yield* holdMaps(maps)
      const moves = Result.flatMap(senders, (known) =>
        compile(errors, messages, known, !forbid.has("tcp"), (map) => held.push(map))
      )
      maps.retire()
      const paths = yield* agreement.agree(
        "outcome",
        Result.map(moves, (ready) => ready.paths),
        decodePathOutcome,
        encodePathOutcome
      )
      const ready = yield* Effect.fromResult(moves)
      const fetchedBy = paths.flatMap((of, peer) =>
        of.filter((path) => path.peer === rank).map(({ path, reason }) => ({ peer, path, reason }))
      )
      const program: Program = { messages, paths: mergePaths([...ready.paths, ...fetchedBy]) }
      const isUsable = () => entries.find(program)?.isUsable ?? true
      const fetches = yield* sending.arrange(messages, number, ready, paths, isUsable)
      yield* entries.add(program, {
        table: encodeMoves(ready.moves),
        moves: ready,
        fetches,
        shortBytes: shortBytesOf(ready)
      })
      return program
    })

  /** Fetches from all peers that send, at the same time. */
  const fetchAll = ({ fetches }: Compiled): Effect.Effect<InFlight> =>
    fetches.size === 0
      ? Effect.succeed(nothingToMove)
      : forkTransfer(driverScope, (moved) =>
          Effect.forEach(
            fetches,
            ([peer, { program, into }]) =>
              Effect.mapError(sending.fetch(peer, program, into, moved), (detail) =>
                errors.fail("PeerGone", `${detail}.`, { peer })
              ),
            { concurrency: "unbounded", discard: true }
          )
        )

  const begin = (
    messages: ReadonlyArray<Message>,
    entry: ProgramEntry<Compiled>
  ): Effect.Effect<InFlight, CopyDriverError> => {
    if (!entry.isUsable) return Effect.fail(errors.fail("InvalidProgram", notUsable))
    const gone = [...entry.moves.readFrom].find(([, process]) => !isAlive(addon, process))?.[0]
    if (gone !== undefined) {
      return Effect.fail(errors.fail("PeerGone", "The process of the peer has ended.", { peer: gone }))
    }
    const { shortBytes } = entry
    if (shortBytes !== undefined) {
      const ran = addon.runMoves(entry.table)
      if (ran.code !== "Ok") return Effect.fail(failureOf(errors, entry.moves, ran))
      return Effect.map(Effect.andThen(checkCuts(addon, errors, entry.moves), fetchAll(entry)), (fetching) => ({
        ...fetching,
        movedBytes: Effect.map(fetching.movedBytes, (fetched) => shortBytes + fetched)
      }))
    }
    const unpin = pinAll(pinsOf(messages.flatMap((message) => message.parts.map((part) => part.tensor))))
    const started = startJob<undefined>(addon, (done) => addon.startMoves(pool, entry.table, false, done), unpin)
    if (Result.isFailure(started)) {
      unpin()
      return Effect.fail(failureOf(errors, entry.moves, started.failure))
    }
    const job = started.success
    return Effect.map(fetchAll(entry), (fetching): InFlight => {
      const direct = Effect.andThen(
        Effect.mapError(job.await, (failure) => failureOf(errors, entry.moves, failure)),
        checkCuts(addon, errors, entry.moves)
      )
      return {
        isComplete: Effect.suspend(() => (job.isComplete() ? fetching.isComplete : Effect.succeed(false))),
        await: Effect.asVoid(Effect.all([direct, fetching.await], { concurrency: 2 })),
        cancel: Effect.andThen(job.cancel, fetching.cancel),
        movedBytes: Effect.map(fetching.movedBytes, (fetched) => job.movedBytes() + fetched)
      }
    })
  }

  return {
    name: backendName,
    rank,
    worldSize: size,
    capabilities,
    prepare,
    ...(own === undefined ? {} : { flags: own.flags }),
    start: (program) => entries.start(program, (entry) => begin(program.messages, entry))
  }
})

/** Fails with "Unavailable" where the addon cannot be loaded. */
export const layer = (options: CopyDriverOptions = {}): Layer.Layer<CopyDriver, BackendError, ProcessGroup> =>
  Layer.effect(
    CopyDriver,
    Effect.gen(function* () {
      return yield* make(yield* loadAddon, yield* ProcessGroup, options)
    })
  )
