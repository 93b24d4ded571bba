/**
 * `CopyDriver` over NVSHMEM: one-sided, scheduled, pipelined. Every rank of the group is a PE; what it sends goes straight
 * into slots of the receiver, in an order that all ranks derive from the same schedule, and nothing on the way waits for the
 * host or for ranks that have no part in it.
 *
 * Invariants: a program runs only while the memory that it was made for is there; cancelling ends when the device has stopped
 * touching the regions, whatever the peers do. A rank that gives a run up tells the others on the device, before it lets go
 * of what waits there, so that nobody takes a part of that run for good. After such a run all ranks prepare again.
 *
 * A PE whose process has died takes the library of the others with it: they stop at once, and say that their processes must
 * be started again.
 */

import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import type { Message } from "@tensorferry/core/ir/Message"
import {
  CopyDriver,
  type CopyDriverError,
  type CopyDriverShape,
  type InFlight,
  type Program
} from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine, type TensorEngineShape, type TensorError } from "@tensorferry/core/service/TensorEngine"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import { unavailable, unavailableBecause } from "@tensorferry/gpu/failures"
import { peerTimesOf, type RunTimes, runTimes } from "@tensorferry/gpu/RunTimes"
import { deviceOf, open } from "@tensorferry/gpu/TensorEngine"
import { makeAgreement } from "@tensorferry/native/driver/DriverAgreement"
import { driverErrors } from "@tensorferry/native/driver/DriverErrors"
import { mayBeAlive, processIdentity } from "@tensorferry/native/driver/ProcessIdentity"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type Addon, loadAddon, packageName } from "./Addon.ts"
import { copyDriverCapabilities } from "./capabilities.ts"
import { markUnusable } from "./LibraryState.ts"
import { libraryNames, libraryVariable, searchedPaths } from "./libraries.ts"
import { type Member, type Membership, makeMembership } from "./Membership.ts"
import { deviceOptions, type NvshmemOptions } from "./options.ts"
import { decodeByteLength } from "./Publication.ts"
import { makePreparer, type PreparedExchange } from "./prepareExchange.ts"
import { addSymmetric } from "./symmetricTensors.ts"

export interface NvshmemCopyDriver extends CopyDriverShape {
  /** How long the parts of the latest run that ended well took; undefined before there is one. */
  readonly lastRun: Effect.Effect<RunTimes | undefined>
  /** Iterations of a program's schedule, and what unequal batches cost in it; undefined for programs of others. */
  readonly scheduleOf: (program: Program) => { readonly iterations: number; readonly imbalance: number } | undefined
  /**
   * A tensor in the symmetric heap, with unspecified contents: peers whose kernels reach it write into it straight away,
   * without a slot between. Collective: every rank asks for as many bytes, at the same point of its program. The memory
   * goes back to the heap when the drivers of all ranks are closed; after a run that failed, a peer may still be writing
   * into it until the next preparation.
   */
  readonly allocateSymmetric: (
    dtype: DType,
    shape: Shape
  ) => Effect.Effect<Tensor, CopyDriverError | TensorError, Scope.Scope>
}

const drivers = new WeakSet<CopyDriverShape>()

/** The driver of a layer of this package with what only it can do; undefined for drivers of others. */
export const nvshmemOf = (driver: CopyDriverShape): NvshmemCopyDriver | undefined =>
  drivers.has(driver) ? (driver as NvshmemCopyDriver) : undefined

/** What the driver keeps beside a program. */
interface Entry extends PreparedExchange {
  readonly member: Member
  isUsable: boolean
  /** Stops the latest start, if it has not ended. */
  cancel: Effect.Effect<void>
}

/** Between two looks whether the peers' processes are alive. */
const watchPeriod = Duration.millis(100)

const nothingToDo: InFlight = {
  isComplete: Effect.succeed(true),
  await: Effect.void,
  cancel: Effect.void,
  movedBytes: Effect.succeed(0)
}

/** Fails with "Unavailable" where there is no device or no library. `load` stands in for the addon in tests. */
export const make = Effect.fnUntraced(function* (
  group: ProcessGroupShape,
  engine: TensorEngineShape,
  options: NvshmemOptions = {},
  load: Effect.Effect<Addon, BackendError> = loadAddon
): Effect.fn.Return<NvshmemCopyDriver, BackendError, Scope.Scope> {
  const behind = deviceOf(engine) ?? deviceOf(yield* open(deviceOptions(options), packageName))
  if (behind === undefined) return yield* unavailable(packageName, "The engine has no device.", "Report this.")
  if (behind.gpu.vendor !== "cuda") {
    return yield* unavailable(
      packageName,
      `NVSHMEM is for devices of NVIDIA, not for ${behind.gpu.vendor}.`,
      "Choose the backend cuda."
    )
  }
  const addon = yield* load
  const names = libraryNames(options.libraries?.nvshmem)
  const opened = addon.openLibrary(names)
  if (opened.code !== "Ok") return yield* unavailableBecause(packageName, opened)
  const { library, problem } = opened.value
  if (library === undefined) {
    return yield* unavailable(
      packageName,
      `NVSHMEM's host library cannot be opened: ${problem} Tried: ${searchedPaths(names).join("; ")}.`,
      `Install nvidia-nvshmem-cu13 or -cu12, or name the file of libnvshmem_host in ${libraryVariable}.`
    )
  }
  const { rank, size } = group
  const errors = driverErrors(packageName, rank)
  const agreement = makeAgreement(group, packageName, errors)
  // Left when nothing runs any more: finalizers run in reverse order.
  let membership: Membership | undefined
  const symmetric = new Set<Storage>()
  yield* Effect.addFinalizer(() => {
    for (const storage of symmetric) storage.free()
    return membership?.close ?? Effect.void
  })
  // Transfers overlap what the engine does.
  const gpu = yield* Effect.mapError(behind.gpu.openLane, (failure) => unavailableBecause(packageName, failure))
  const parts = { addon, library, gpu, group, options, errors, agreement }
  const members = makeMembership(parts)
  membership = members
  const prepareExchange = makePreparer({ ...parts, membership: members })
  const self = processIdentity()
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
      const prepared = yield* prepareExchange.prepare(messages)
      const program: Program = { messages, paths: prepared.paths }
      const isFreed = messages.some((message) => message.parts.some(({ tensor }) => tensor.storage.isFreed()))
      const entry: Entry = { ...prepared, member: members.member()!, isUsable: !isFreed, cancel: Effect.void }
      entries.set(program, entry)
      yield* watchStorages(messages, entry)
      yield* Effect.addFinalizer(() => {
        entry.isUsable = false
        return entry.cancel
      })
      return program
    })

  const firstGone = ({ processes }: Entry): number | undefined =>
    [...processes].find(([, process]) => !mayBeAlive(self, process))?.[0]

  const peerGone = (peer: number): CopyDriverError =>
    errors.fail(
      "PeerGone",
      `The process of PE ${peer} has ended, and NVSHMEM of this process cannot be used without it.`,
      {
        op: "run",
        peer,
        scope: "service"
      }
    )

  /** Why a program cannot start. */
  const faultOf = (entry: Entry): CopyDriverError | undefined => {
    const op = "start"
    if (!entry.isUsable) {
      return errors.fail("InvalidProgram", "The program was closed, or its memory was freed.", { op })
    }
    if (entry.member !== members.member() || entry.member.mustReset) {
      return errors.fail("Broken", "A run before did not end well; prepare again.", { op, scope: "service" })
    }
    return undefined
  }

  /** What a failed run was due to. */
  const failureOf = (failure: NativeFailure): CopyDriverError =>
    failure.code === "PeerGone" && failure.item >= 0
      ? errors.fail("PeerGone", failure.detail, { op: "run", peer: failure.item })
      : errors.ofNative(failure, "run")

  const begin = (entry: Entry): Effect.Effect<InFlight, CopyDriverError> =>
    Effect.gen(function* () {
      const { member, program } = entry
      const fault = faultOf(entry)
      member.runs += 1
      addon.setRun(member.exchange, member.runs)
      if (fault !== undefined) {
        if (!member.mustReset && entry.processes.size > 0) yield* members.decline(member)
        member.mustReset = true
        return yield* fault
      }
      if (program === undefined) return nothingToDo
      const started = program.start()
      if (Result.isFailure(started)) {
        member.mustReset = true
        return yield* failureOf(started.failure)
      }
      const job = started.success
      let taken: RunTimes | undefined
      const death = Deferred.makeUnsafe<never, CopyDriverError>()
      const watch = Effect.gen(function* () {
        while (!job.isComplete()) {
          yield* Effect.sleep(watchPeriod)
          const gone = job.isComplete() ? undefined : firstGone(entry)
          if (gone === undefined) continue
          member.mustReset = true
          yield* markUnusable(gpu.ordinal, `The process of PE ${gone} ended during a run.`)
          yield* job.cancel
          yield* Deferred.fail(death, peerGone(gone))
        }
      })
      const watching = yield* Effect.forkDetach(watch)
      const ended = Effect.mapBoth(job.await, {
        onFailure: (failure) => {
          member.mustReset = true
          return failureOf(failure)
        },
        onSuccess: (times) => {
          taken = runTimes(entry.spans, times)
          lastRun = taken
        }
      })
      const wait = Effect.catch(ended, (error) => {
        // What stopped the run says more than that it was stopped.
        const gone = firstGone(entry)
        return gone === undefined
          ? Effect.fail(error)
          : Effect.andThen(
              markUnusable(gpu.ordinal, `The process of PE ${gone} ended during a run.`),
              Effect.fail(peerGone(gone))
            )
      })
      return {
        isComplete: Effect.sync(job.isComplete),
        await: Effect.ensuring(Effect.raceFirst(wait, Deferred.await(death)), Fiber.interrupt(watching)),
        cancel: Effect.suspend(() => {
          if (job.isComplete()) return Effect.void
          member.mustReset = true
          return job.cancel
        }),
        movedBytes: Effect.sync(job.movedBytes),
        peerTimes: Effect.sync(() => (taken === undefined ? [] : peerTimesOf(taken)))
      }
    })

  const allocateSymmetric: NvshmemCopyDriver["allocateSymmetric"] = (dtype, shape) =>
    Effect.gen(function* () {
      const byteLength = byteLengthOf(dtype, elementCount(shape))
      const asked = yield* agreement.agree("symmetric", Result.succeed(byteLength), decodeByteLength)
      const other = asked.findIndex((bytes) => bytes !== byteLength)
      if (other >= 0 || byteLength === 0) {
        const detail =
          other >= 0
            ? `Rank ${other} asks for ${asked[other]} bytes of symmetric memory where this rank asks for ${byteLength}.`
            : "A symmetric tensor has at least one byte."
        return yield* errors.fail("InvalidProgram", detail, {
          peer: other < 0 ? undefined : other,
          op: "allocate",
          scope: "op"
        })
      }
      const member = yield* prepareExchange.join
      const address = yield* members.allocate(member, byteLength)
      const storage = yield* behind.memory.foreignStorage(address, byteLength)
      symmetric.add(storage)
      const forget = addSymmetric(gpu.ordinal, { address: Number(address), byteLength })
      storage.onRevoke(forget)
      return yield* Effect.mapError(Effect.fromResult(tensorView(storage, dtype, shape)), ({ detail }) =>
        errors.fail("InvalidProgram", detail, { op: "allocate", scope: "op" })
      )
    })

  const driver: NvshmemCopyDriver = {
    name: packageName,
    rank,
    worldSize: size,
    capabilities: copyDriverCapabilities,
    prepare,
    start: (program) =>
      Effect.suspend(() => {
        const entry = entries.get(program)
        if (entry === undefined) {
          return Effect.fail(errors.fail("InvalidProgram", "The program is of another driver.", { op: "start" }))
        }
        return Effect.tap(begin(entry), ({ cancel }) =>
          Effect.sync(() => {
            entry.cancel = cancel
          })
        )
      }),
    lastRun: Effect.sync(() => lastRun),
    scheduleOf: (program) => entries.get(program),
    allocateSymmetric
  }
  drivers.add(driver)
  return driver
})

/** Fails with "Unavailable" where there is no device, or no library. */
export const layer = (
  options: NvshmemOptions = {}
): Layer.Layer<CopyDriver, BackendError, ProcessGroup | TensorEngine> =>
  Layer.effect(
    CopyDriver,
    Effect.gen(function* () {
      return yield* make(yield* ProcessGroup, yield* TensorEngine, options)
    })
  )
