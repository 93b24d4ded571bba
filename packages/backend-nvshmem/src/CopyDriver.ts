// SPDX-License-Identifier: Apache-2.0
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
import {
  CopyDriver,
  type CopyDriverError,
  type CopyDriverShape,
  type Program
} from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine, type TensorEngineShape, type TensorError } from "@tensorferry/core/service/TensorEngine"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import { deviceDriverErrors, unavailable, unavailableBecause } from "@tensorferry/gpu/failures"
import type { RunTimes } from "@tensorferry/gpu/RunTimes"
import { deviceOf, open } from "@tensorferry/gpu/TensorEngine"
import { makeDriverAgreement } from "@tensorferry/native/driver/DriverAgreement"
import { makeProgramEntries } from "@tensorferry/native/driver/ProgramEntries"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type Addon, loadAddon, type NativeLibrary, packageName } from "./Addon.ts"
import { copyDriverCapabilities } from "./capabilities.ts"
import { type KeptExchange, makeRuns } from "./exchangeRun.ts"
import { libraryNames, libraryVariable, searchedPaths } from "./libraries.ts"
import { type Membership, makeMembership } from "./Membership.ts"
import { deviceOptions, type NvshmemOptions } from "./options.ts"
import { decodeByteLength } from "./Publication.ts"
import { makePreparer } from "./prepareExchange.ts"
import { addSymmetric } from "./symmetricTensors.ts"

/** The driver, and what tests and benches ask of it besides. */
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

/** The library that the options or the machine name, or why it cannot be opened. */
const openNamed = (addon: Addon, names: ReadonlyArray<string>): Effect.Effect<NativeLibrary, BackendError> =>
  Effect.suspend(() => {
    const opened = addon.openLibrary(names)
    if (opened.code !== "Ok") return Effect.fail(unavailableBecause(packageName, opened))
    const { library, problem } = opened.value
    if (library !== undefined) return Effect.succeed(library)
    return Effect.fail(
      unavailable(
        packageName,
        `NVSHMEM's host library cannot be opened: ${problem} Tried: ${searchedPaths(names).join("; ")}.`,
        `Install nvidia-nvshmem-cu13 or -cu12, or name the file of libnvshmem_host in ${libraryVariable}.`
      )
    )
  })

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
  const library = yield* openNamed(addon, libraryNames(options.libraries?.nvshmem))
  const { rank, size } = group
  const errors = deviceDriverErrors(packageName, rank)
  const agreement = makeDriverAgreement(group, errors, "prepare")
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
  const prepareExchange = makePreparer(parts, members)
  const entries = makeProgramEntries<KeptExchange>(() =>
    errors.fail("InvalidProgram", "The program belongs to another driver.", { op: "start" })
  )
  let lastRun: RunTimes | undefined
  const begin = makeRuns(parts, members, (times) => {
    lastRun = times
  })

  const prepare: CopyDriverShape["prepare"] = (messages) =>
    Effect.gen(function* () {
      const prepared = yield* prepareExchange.prepare(messages)
      const program: Program = { messages, paths: prepared.paths }
      yield* entries.add(program, { ...prepared, member: members.member()! })
      return program
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
    start: (program) => entries.start(program, begin),
    lastRun: Effect.sync(() => lastRun),
    scheduleOf: (program) => entries.find(program),
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
