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
  copyDriverError,
  type InFlight,
  type PeerPath,
  type Program
} from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { encodeMoves } from "@tensorferry/native/MoveTable"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import { acquirePool, startJob } from "@tensorferry/native/NativeJob"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type Addon, backendName, loadAddon } from "./Addon.ts"
import { pinsOf } from "./checks.ts"
import { type CompiledMoves, compile, type Sender } from "./compile.ts"
import { makePeerMaps, type PeerMap } from "./PeerMaps.ts"
import { pinAll } from "./PinCount.ts"
import {
  decodeOutcome,
  decodePublication,
  encodeOutcome,
  encodePeerList,
  encodePublication,
  type Publication,
  type PublishedProcess
} from "./Publication.ts"
import { checkMessage, publishedLists, publishedProcess } from "./publish.ts"
import { isAlive, makeReach, type PathName } from "./reach.ts"
import { defaultThreads } from "./TensorEngine.ts"
import { type Fetch, makeSending } from "./tcp/sending.ts"
import { unavailableBecause } from "./unavailable.ts"

export interface CopyDriverOptions {
  /** Threads that copy; 2 by default. */
  readonly threads?: number
  /** Steps of the ladder that are not taken, for tests and for hosts whose policy forbids them. */
  readonly forbid?: ReadonlyArray<PathName>
}

export const capabilities: CopyDriverCapabilities = {
  gather: true,
  requiresProcessGroupBarrier: true,
  requiresTaskId: false,
  deviceFamilies: ["cpu"],
  maxMessageBytes: Number.MAX_SAFE_INTEGER
}

/** What the driver keeps beside a program. */
interface Compiled {
  readonly table: BigUint64Array
  readonly moves: CompiledMoves
  /** By rank, what peers send. */
  readonly fetches: ReadonlyMap<number, Fetch>
  isUsable: boolean
  /** Stops the latest start, if it has not ended. */
  cancel: Effect.Effect<void>
}

type Checked<A> = Result.Result<A, CopyDriverError>

const remedies = {
  PeerGone: "Start the peer again and build the service anew.",
  InvalidProgram: "Prepare the messages again with storage that is open.",
  TransportFailed: "Look at the native code; build the service anew."
} as const

/** Merges what this rank does and what its peers told, one entry per peer. */
const mergePaths = (paths: ReadonlyArray<PeerPath>): ReadonlyArray<PeerPath> => {
  const merged = new Map<number, PeerPath>()
  for (const path of paths) {
    const known = merged.get(path.peer)
    if (known === undefined) merged.set(path.peer, path)
    else if (known.path !== path.path) {
      merged.set(path.peer, {
        peer: path.peer,
        path: `${known.path}+${path.path}`,
        reason: `${known.reason}; ${path.reason}`
      })
    }
  }
  return [...merged.values()].sort((a, b) => a.peer - b.peer)
}

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
  const compiled = new WeakMap<Program, Compiled>()
  const driverScope = yield* Effect.scope
  /** Counts preparations: names a program to other ranks. */
  let prepared = 0

  const broken = (tag: keyof typeof remedies, detail: string, peer?: number, nativeCode?: number): CopyDriverError =>
    copyDriverError(tag, {
      backend: backendName,
      rank,
      detail,
      remedy: remedies[tag],
      ...(peer === undefined ? {} : { peer, scope: "peer" as const }),
      ...(nativeCode === undefined || nativeCode === 0 ? {} : { nativeCode })
    })

  const gather = (label: string, payload: Uint8Array) =>
    group
      .allGather(`${backendName}/${label}`, payload)
      .pipe(
        Effect.mapError(({ reason, ranks }) =>
          broken(reason._tag === "PeerGone" ? "PeerGone" : "TransportFailed", reason.detail, ranks[0])
        )
      )

  const publication = (messages: ReadonlyArray<Message>): Publication => {
    const fault = messages.map((message) => checkMessage(rank, size, message)).find(Result.isFailure)
    if (fault !== undefined) return { _tag: "Failed", reason: fault.failure.reason }
    const lists = new Map([...publishedLists(messages)].map(([peer, list]) => [peer, encodePeerList(list)]))
    return { _tag: "Published", process: publishedProcess(identity), lists }
  }

  /** What every peer says to this rank; the first failure published, in order of ranks, is everybody's. */
  const readPublications = (payloads: ReadonlyArray<Uint8Array>): Checked<ReadonlyMap<number, Sender>> => {
    const senders = new Map<number, Sender>()
    for (const [peer, payload] of payloads.entries()) {
      const decoded = decodePublication(payload, rank)
      if (Result.isFailure(decoded)) return Result.fail(broken("InvalidProgram", decoded.failure, peer))
      if (decoded.success._tag === "Failed") {
        const { _tag, ...fields } = decoded.success.reason
        return Result.fail(copyDriverError(_tag, fields))
      }
      const { process, list } = decoded.success
      if (peer === rank || list === undefined) continue
      senders.set(peer, { process, list, reach: makeReach(addon, maps, identity, forbid, process) })
    }
    return Result.succeed(senders)
  }

  /** Every rank's paths, or the first failure. */
  const readOutcomes = (payloads: ReadonlyArray<Uint8Array>): Checked<ReadonlyArray<ReadonlyArray<PeerPath>>> => {
    const paths: Array<ReadonlyArray<PeerPath>> = []
    for (const [peer, payload] of payloads.entries()) {
      const decoded = decodeOutcome(payload)
      if (Result.isFailure(decoded)) return Result.fail(broken("InvalidProgram", decoded.failure, peer))
      if (decoded.success._tag === "Failed") {
        const { _tag, ...fields } = decoded.success.reason
        return Result.fail(copyDriverError(_tag, fields))
      }
      paths.push(decoded.success.paths)
    }
    return Result.succeed(paths)
  }

  /** Tells how this rank fared, and fails with the first failure of any. */
  const agree = (label: string, own: Checked<ReadonlyArray<PeerPath>>) =>
    Effect.flatMap(
      gather(
        label,
        encodeOutcome(
          Result.isFailure(own)
            ? { _tag: "Failed", reason: own.failure.reason }
            : { _tag: "Compiled", paths: own.success }
        )
      ),
      (payloads) => Effect.fromResult(readOutcomes(payloads))
    )

  const sending = yield* makeSending({ addon, pool, rank, gather, agree, fault: broken })

  /** Makes the program unusable when a storage goes away under it. */
  const watchStorages = (messages: ReadonlyArray<Message>, entry: Compiled) =>
    Effect.acquireRelease(
      Effect.sync(() => {
        const storages = new Set(messages.flatMap((message) => message.parts.map((part) => part.tensor.storage)))
        return [...storages].map((storage) =>
          storage.onRevoke(() => {
            entry.isUsable = false
          })
        )
      }),
      (unregister) =>
        Effect.sync(() => {
          for (const undo of unregister) undo()
        })
    )

  const prepare: CopyDriverShape["prepare"] = (messages) =>
    Effect.gen(function* () {
      const number = prepared++
      const senders = readPublications(yield* gather("publish", encodePublication(publication(messages))))
      const held = yield* Effect.acquireRelease(
        Effect.sync((): Array<PeerMap> => []),
        (kept) =>
          Effect.sync(() => {
            for (const map of kept) maps.release(map)
          })
      )
      const moves = Result.flatMap(senders, (known) =>
        compile(rank, messages, known, !forbid.has("tcp"), (map) => held.push(map))
      )
      maps.retire()
      const paths = yield* agree(
        "outcome",
        Result.map(moves, (ready) => ready.paths)
      )
      const ready = yield* Effect.fromResult(moves)
      const state = { isUsable: true }
      const fetches = yield* sending.arrange(messages, number, ready, paths, () => state.isUsable)
      const fetchedBy = paths.flatMap((of, peer) =>
        of.filter((path) => path.peer === rank).map(({ path, reason }) => ({ peer, path, reason }))
      )
      const program: Program = { messages, paths: mergePaths([...ready.paths, ...fetchedBy]) }
      const entry: Compiled = Object.assign(state, {
        table: encodeMoves(ready.moves),
        moves: ready,
        fetches,
        cancel: Effect.void
      })
      compiled.set(program, entry)
      yield* watchStorages(messages, entry)
      yield* Effect.addFinalizer(() => {
        entry.isUsable = false
        return entry.cancel
      })
      return program
    })

  const failureOf = (entry: Compiled, failure: NativeFailure): CopyDriverError => {
    const peer = entry.moves.peers[failure.item]
    if (failure.code === "PeerGone") return broken("PeerGone", failure.detail, peer, failure.nativeCode)
    if (failure.code === "InvalidHandle") return broken("InvalidProgram", failure.detail, peer, failure.nativeCode)
    return broken("TransportFailed", `${failure.op}: ${failure.detail}`, peer, failure.nativeCode)
  }

  /** The rank whose process is gone, among those that are read without a map. */
  const gonePeer = (readFrom: ReadonlyMap<number, PublishedProcess>): number | undefined =>
    [...readFrom].find(([, process]) => !isAlive(addon, process))?.[0]

  /** Fetches from all peers that send, at the same time. */
  const fetchAll = (entry: Compiled) =>
    Effect.gen(function* () {
      let movedBytes = 0
      const fetches = Effect.forEach(
        entry.fetches,
        ([peer, { program, into }]) =>
          Effect.mapError(
            sending.fetch(peer, program, into, (byteLength) => {
              movedBytes += byteLength
            }),
            (detail) => broken("PeerGone", `${detail}.`, peer)
          ),
        { concurrency: "unbounded", discard: true }
      )
      const fiber = yield* Effect.forkIn(entry.fetches.size === 0 ? Effect.void : fetches, driverScope, {
        startImmediately: true
      })
      return {
        isComplete: () => fiber.pollUnsafe() !== undefined,
        await: Fiber.join(fiber),
        cancel: Fiber.interrupt(fiber),
        movedBytes: () => movedBytes
      }
    })

  const start = (program: Program): Effect.Effect<InFlight, CopyDriverError> =>
    Effect.suspend(() => {
      const entry = compiled.get(program)
      if (entry === undefined || !entry.isUsable) {
        return Effect.fail(
          broken("InvalidProgram", "The program is of another driver, closed, or its memory was freed.")
        )
      }
      const gone = gonePeer(entry.moves.readFrom)
      if (gone !== undefined) return Effect.fail(broken("PeerGone", "The process of the peer has ended.", gone))
      const unpin = pinAll(pinsOf(program.messages.flatMap((message) => message.parts.map((part) => part.tensor))))
      const started = startJob<undefined>(addon, (done) => addon.startMoves(pool, entry.table, false, done), unpin)
      if (Result.isFailure(started)) {
        unpin()
        return Effect.fail(failureOf(entry, started.failure))
      }
      return Effect.map(fetchAll(entry), (fetching) => {
        const job = started.success
        const direct = Effect.mapError(job.await, (failure) => failureOf(entry, failure))
        const cancel = Effect.andThen(job.cancel, fetching.cancel)
        entry.cancel = cancel
        return {
          isComplete: Effect.sync(() => job.isComplete() && fetching.isComplete()),
          await: Effect.asVoid(Effect.all([direct, fetching.await], { concurrency: 2 })),
          cancel,
          movedBytes: Effect.sync(() => job.movedBytes() + fetching.movedBytes())
        }
      })
    })

  return { name: backendName, rank, worldSize: size, capabilities, prepare, start }
})

/** Fails with "Unavailable" where the addon cannot be loaded. */
export const layer = (options: CopyDriverOptions = {}): Layer.Layer<CopyDriver, BackendError, ProcessGroup> =>
  Layer.effect(
    CopyDriver,
    Effect.gen(function* () {
      return yield* make(yield* loadAddon, yield* ProcessGroup, options)
    })
  )
