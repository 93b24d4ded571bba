/**
 * `CopyDriver` between devices: one driver, by three names. `cuda-ipc` moves bytes between memories that one end has mapped;
 * `nccl` packs them into few messages of a collectives library; `cuda` takes the first where it leads to the peer, else the
 * second, for each sender and receiver.
 *
 * Invariants: a program runs only while the memory, mappings and connection that it was made for are there; cancelling ends
 * when the device has stopped touching the regions, whatever the peers do.
 *
 * Where bytes flow one way, the receiver moves them: its `await` means that they are there and its `cancel` that none will
 * come. Where they flow both ways the senders do, which is faster; then all ranks meet when their own moves are done, and
 * memory that a rank frees after a run that did not get so far is not used again before the ranks have met once more.
 */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import type { Message } from "@tensorferry/core/ir/Message"
import {
  CopyDriver,
  type CopyDriverError,
  type CopyDriverShape,
  type InFlight,
  type Program
} from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { unavailable, unavailableBecause } from "@tensorferry/gpu/failures"
import { peerTimesOf, type RunTimes, runTimes } from "@tensorferry/gpu/RunTimes"
import { deviceOf, open } from "@tensorferry/gpu/TensorEngine"
import { driverErrors } from "@tensorferry/native/driver/DriverErrors"
import { mayBeAlive, processIdentity } from "@tensorferry/native/driver/ProcessIdentity"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { makeConnections } from "./Connections.ts"
import { copyDriverCapabilities } from "./capabilities.ts"
import { makeMappings } from "./Mappings.ts"
import type { CudaOptions } from "./options.ts"
import { makeMeetings } from "./PushBarrier.ts"
import type { DriverKind } from "./planning/route.ts"
import { makePreparer, type PreparedTransfer } from "./prepareTransfer.ts"

export interface CudaCopyDriver extends CopyDriverShape {
  /** How long the parts of the latest run that ended well took; undefined before there is one. */
  readonly lastRun: Effect.Effect<RunTimes | undefined>
}

/** What the driver keeps beside a program. */
interface Entry extends PreparedTransfer {
  isUsable: boolean
  /** Stops the latest start, if it has not ended. */
  cancel: Effect.Effect<void>
}

/** How long a cancelled rank waits for the others to stop pushing. */
const patience = Duration.seconds(2)

const nothingToDo: InFlight = {
  isComplete: Effect.succeed(true),
  await: Effect.void,
  cancel: Effect.void,
  movedBytes: Effect.succeed(0)
}

export const make = Effect.fnUntraced(function* (
  kind: DriverKind,
  group: ProcessGroupShape,
  engine: TensorEngineShape,
  options: CudaOptions = {}
): Effect.fn.Return<CudaCopyDriver, BackendError, Scope.Scope> {
  const behind = deviceOf(engine) ?? deviceOf(yield* open(options, kind))
  if (behind === undefined) return yield* unavailable(kind, "The engine has no device.", "Report this.")
  const { memory } = behind
  const sharing = memory.sharingWith(group, kind)
  const parted = sharing.restart()
  /** Let go of memory that peers may still write to, after runs that did not end together. */
  let strays: Array<() => void> = []
  const gather = () => {
    const all = strays
    strays = []
    for (const leave of all) leave()
  }
  // Said when everything made below is closed.
  yield* Effect.addFinalizer(() =>
    memory.farewells.say(group, kind, sharing, () => {
      gather()
      parted()
    })
  )
  // Transfers overlap what the engine does: copies within the rank, above all.
  const gpu = yield* Effect.mapError(behind.gpu.openLane, (failure) => unavailableBecause(kind, failure))
  if (kind === "nccl" && !gpu.hasCollectives) {
    return yield* unavailable(
      kind,
      "The library for collectives cannot be opened.",
      "Install it, or name its file in the option libraries.collectives or the environment (TENSORFERRY_NCCL)."
    )
  }
  const { rank, size } = group
  const self = processIdentity()
  const errors = driverErrors(kind, rank)
  const mappings = makeMappings(gpu)
  const connections = makeConnections(gpu, group, kind, errors)
  yield* Effect.addFinalizer(() => Effect.andThen(Effect.sync(mappings.closeAll), connections.close))
  const prepareTransfer = makePreparer({
    kind,
    gpu,
    memory,
    group,
    options,
    errors,
    mappings,
    connections,
    sharing
  })
  const entries = new WeakMap<Program, Entry>()
  let lastRun: RunTimes | undefined

  /** Makes the program unusable when a storage goes away under it. */
  const watchStorages = (messages: ReadonlyArray<Message>, entry: Entry) =>
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
      const prepared = yield* prepareTransfer(messages)
      // Every rank took part, so every earlier run has ended on every device.
      gather()
      const program: Program = { messages, paths: prepared.paths }
      const isFreed = messages.some((message) => message.parts.some(({ tensor }) => tensor.storage.isFreed()))
      const entry: Entry = { ...prepared, isUsable: !isFreed, cancel: Effect.void }
      entries.set(program, entry)
      yield* watchStorages(messages, entry)
      yield* Effect.addFinalizer(() => {
        entry.isUsable = false
        return entry.cancel
      })
      return program
    })

  /** Why a program cannot start. */
  const faultOf = (entry: Entry): CopyDriverError | undefined => {
    const op = "start"
    if (!entry.isUsable) {
      return errors.fail("InvalidProgram", "The program was closed, or its memory was freed.", { op })
    }
    if (entry.mappings.some((mapping) => !mapping.isOpen())) {
      return errors.fail("InvalidProgram", "A peer freed memory that the program uses.", { op })
    }
    if (
      entry.connection?.isBroken === true ||
      (entry.connection !== undefined && entry.connection.number !== connections.number())
    ) {
      return errors.fail("Broken", "The communicator was aborted.", { op, scope: "service" })
    }
    const gone = [...entry.processes].find(([, process]) => !mayBeAlive(self, process))?.[0]
    return gone === undefined
      ? undefined
      : errors.fail("PeerGone", "The process of the peer has ended.", { op, peer: gone })
  }

  /** After an abort, or a failure in the middle of messages, nothing on the connection is in step any more. */
  const breakConnection = ({ connection }: Entry): void => {
    if (connection !== undefined) connection.isBroken = true
  }

  const meetings = makeMeetings(group, kind, errors)

  /** This rank's moves, as far as there are any. */
  const moveHere = (entry: Entry): Result.Result<InFlight, CopyDriverError> => {
    if (entry.program === undefined) return Result.succeed(nothingToDo)
    const started = entry.program.start()
    const failed = (failure: NativeFailure): CopyDriverError => {
      breakConnection(entry)
      return errors.ofNative(failure, "run")
    }
    if (Result.isFailure(started)) return Result.fail(failed(started.failure))
    const job = started.success
    let taken: RunTimes | undefined
    return Result.succeed({
      isComplete: Effect.sync(job.isComplete),
      await: Effect.mapBoth(job.await, {
        onFailure: failed,
        onSuccess: (times) => {
          taken = runTimes(entry.spans, times)
          lastRun = taken
        }
      }),
      peerTimes: Effect.sync(() => (taken === undefined ? [] : peerTimesOf(taken))),
      cancel: Effect.suspend(() => {
        if (job.isComplete()) return Effect.void
        breakConnection(entry)
        return job.cancel
      }),
      movedBytes: Effect.sync(job.movedBytes)
    })
  }

  /** Moves where some push: with the others' leave, and until all are done. */
  const moveAndMeet = (entry: Entry, fault: CopyDriverError | undefined): Effect.Effect<InFlight, CopyDriverError> =>
    Effect.gen(function* () {
      let here: InFlight = nothingToDo
      let isCancelled = false
      let isCommitted = false
      let leave = () => {}
      const declined = () =>
        fault ??
        (isCancelled ? errors.fail("Broken", "The transfer was cancelled.", { op: "run", scope: "op" }) : undefined)
      const meeting = yield* meetings.meet({
        declined,
        committed: () => {
          isCommitted = true
          if (entry.isPushedTo) leave = gpu.occupy()
        },
        moves: Effect.suspend(() => {
          const refusal = declined()
          if (refusal !== undefined) return Effect.fail(refusal)
          const started = moveHere(entry)
          if (Result.isFailure(started)) return Effect.fail(started.failure)
          here = started.success
          return here.await
        }),
        met: (isTogether) => {
          if (isTogether) leave()
          else strays.push(leave)
        }
      })
      // Peers that push notice soon; one that is frozen is not waited for, and its memory here is kept apart.
      const peersStop = Effect.asVoid(Effect.timeoutOption(Effect.exit(meeting.await), patience))
      return {
        isComplete: Effect.sync(meeting.isOver),
        await: meeting.await,
        cancel: Effect.suspend(() => {
          isCancelled = true
          return Effect.andThen(
            here.cancel,
            Effect.suspend(() => (isCommitted ? peersStop : Effect.void))
          )
        }),
        movedBytes: Effect.suspend(() => here.movedBytes),
        peerTimes: Effect.suspend(() => here.peerTimes ?? Effect.succeed([]))
      }
    })

  const begin = (entry: Entry): Effect.Effect<InFlight, CopyDriverError> =>
    Effect.suspend(() => {
      const fault = faultOf(entry)
      // Others would wait for a rank that stays away.
      const begun = entry.meets
        ? moveAndMeet(entry, fault)
        : Effect.fromResult(fault === undefined ? moveHere(entry) : Result.fail(fault))
      return Effect.tap(begun, ({ cancel }) =>
        Effect.sync(() => {
          entry.cancel = cancel
        })
      )
    })

  return {
    name: kind,
    rank,
    worldSize: size,
    capabilities: copyDriverCapabilities,
    prepare,
    start: (program) =>
      Effect.suspend(() => {
        const entry = entries.get(program)
        return entry === undefined
          ? Effect.fail(errors.fail("InvalidProgram", "The program is of another driver.", { op: "start" }))
          : begin(entry)
      }),
    lastRun: Effect.sync(() => lastRun)
  }
})

/** Fails with "Unavailable" where there is no device, or nothing to reach it with. */
export const layer = (
  kind: DriverKind,
  options: CudaOptions = {}
): Layer.Layer<CopyDriver, BackendError, ProcessGroup | TensorEngine> =>
  Layer.effect(
    CopyDriver,
    Effect.gen(function* () {
      return yield* make(kind, yield* ProcessGroup, yield* TensorEngine, options)
    })
  )
