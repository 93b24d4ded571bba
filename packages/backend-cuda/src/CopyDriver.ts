// SPDX-License-Identifier: Apache-2.0
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
import {
  CopyDriver,
  type CopyDriverError,
  type CopyDriverShape,
  type InFlight,
  type Program
} from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { deviceDriverErrors, unavailable, unavailableBecause } from "@tensorferry/gpu/failures"
import { startTransfer } from "@tensorferry/gpu/ProgramTransfer"
import type { RunTimes } from "@tensorferry/gpu/RunTimes"
import { deviceOf, open } from "@tensorferry/gpu/TensorEngine"
import { firstEnded, processIdentity } from "@tensorferry/native/driver/ProcessIdentity"
import { makeProgramEntries, type ProgramEntry } from "@tensorferry/native/driver/ProgramEntries"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { makeConnections } from "./Connections.ts"
import { copyDriverCapabilitiesOf } from "./capabilities.ts"
import type { PreparedTransfer } from "./compileTransfer.ts"
import type { DriverParts } from "./driverParts.ts"
import { makeMappings } from "./Mappings.ts"
import type { CudaOptions } from "./options.ts"
import { makePushBarrier } from "./PushBarrier.ts"
import type { DriverKind } from "./planning/route.ts"
import { makePreparer } from "./prepareTransfer.ts"
import { makePushTransfers, makeUnsettledPushes, type UnsettledPushes } from "./pushTransfers.ts"

/** The driver, and what tests and benches ask of it besides. */
export interface CudaCopyDriver extends CopyDriverShape {
  /** How long the parts of the latest run that ended well took; undefined before there is one. */
  readonly lastRun: Effect.Effect<RunTimes | undefined>
}

type Entry = ProgramEntry<PreparedTransfer>

/** Why a program cannot start. */
const startFault = (
  { errors, connections }: DriverParts,
  { isUsable, mappings, connection, processes }: Entry
): CopyDriverError | undefined => {
  const op = "start"
  if (!isUsable) {
    return errors.fail("InvalidProgram", "The program was closed, or its memory was freed.", { op })
  }
  if (mappings.some((mapping) => !mapping.isOpen())) {
    return errors.fail("InvalidProgram", "A peer freed memory that the program uses.", { op })
  }
  if (connection !== undefined && (connection.isBroken || connection.number !== connections.number())) {
    return errors.fail("Broken", "The communicator was aborted.", { op, scope: "service" })
  }
  const ended = firstEnded(processIdentity(), processes)
  return ended === undefined
    ? undefined
    : errors.fail("PeerGone", "The process of the peer has ended.", { op, peer: ended })
}

/** Opens what all programs of the driver share, in an order in which the scope may close it. */
const openParts = Effect.fnUntraced(function* (
  kind: DriverKind,
  group: ProcessGroupShape,
  engine: TensorEngineShape,
  options: CudaOptions
): Effect.fn.Return<DriverParts & { readonly unsettled: UnsettledPushes }, BackendError, Scope.Scope> {
  const behind = deviceOf(engine) ?? deviceOf(yield* open(options, kind))
  if (behind === undefined) return yield* unavailable(kind, "The engine has no device.", "Report this.")
  const { memory } = behind
  const sharing = memory.sharingWith(group, kind)
  const parted = sharing.restart()
  const unsettled = makeUnsettledPushes()
  // Said when everything made below is closed.
  yield* Effect.addFinalizer(() =>
    memory.shutdown.announce(group, kind, sharing, () => {
      unsettled.settle()
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
  const errors = deviceDriverErrors(kind, group.rank)
  const mappings = makeMappings(gpu)
  const connections = makeConnections(gpu, group, errors)
  yield* Effect.addFinalizer(() => Effect.andThen(Effect.sync(mappings.closeAll), connections.close))
  return { kind, gpu, memory, group, options, errors, mappings, connections, sharing, unsettled }
})

/**
 * The driver of one rank over an open device. Options are as the backend's; it fails with BackendError where the device
 * or a library is missing.
 */
export const make = Effect.fnUntraced(function* (
  kind: DriverKind,
  group: ProcessGroupShape,
  engine: TensorEngineShape,
  options: CudaOptions = {}
): Effect.fn.Return<CudaCopyDriver, BackendError, Scope.Scope> {
  const parts = yield* openParts(kind, group, engine, options)
  const { gpu, errors, unsettled } = parts
  const prepareTransfer = makePreparer(parts)
  const entries = makeProgramEntries<PreparedTransfer>(() =>
    errors.fail("InvalidProgram", "The program belongs to another driver.", { op: "start" })
  )
  let lastRun: RunTimes | undefined

  const prepare: CopyDriverShape["prepare"] = (messages) =>
    Effect.gen(function* () {
      const prepared = yield* prepareTransfer(messages)
      // Every rank took part, so every earlier run has ended on every device.
      unsettled.settle()
      // Pushes have their ranks meet first, and what goes over a connection needs both ends in step.
      const needsGroup = prepared.meets || prepared.connection !== undefined
      const program: Program = { messages, paths: prepared.paths, needsGroup }
      yield* entries.add(program, prepared)
      return program
    })

  /** This rank's moves, as far as there are any. */
  const moveHere = (entry: Entry): Result.Result<InFlight, CopyDriverError> => {
    /** After an abort, or a failure in the middle of messages, nothing on the connection is in step any more. */
    const breakConnection = (): void => {
      if (entry.connection !== undefined) entry.connection.isBroken = true
    }
    return startTransfer(entry, {
      failed: (failure) => {
        breakConnection()
        return errors.ofNative(failure, "run")
      },
      finished: (times) => {
        lastRun = times
      },
      stopping: breakConnection
    })
  }

  const pushTogether = makePushTransfers({ barrier: makePushBarrier(group, errors), errors, unsettled })

  const begin = (entry: Entry): Effect.Effect<InFlight, CopyDriverError> =>
    Effect.suspend(() => {
      const fault = startFault(parts, entry)
      // Others would wait for a rank that stays away.
      if (entry.meets) {
        const occupy = entry.isPushedTo ? gpu.occupy : () => () => {}
        return pushTogether({ fault, occupy, moveHere: () => moveHere(entry) })
      }
      return Effect.fromResult(fault === undefined ? moveHere(entry) : Result.fail(fault))
    })

  return {
    name: kind,
    rank: group.rank,
    worldSize: group.size,
    capabilities: copyDriverCapabilitiesOf(kind),
    prepare,
    start: (program) => entries.start(program, begin),
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
