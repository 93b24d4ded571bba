// SPDX-License-Identifier: Apache-2.0
/**
 * A driver's part in an NVSHMEM job: joined when first needed, by all ranks together, with one symmetric block that all
 * programs share; left when the drivers of all ranks are closed.
 *
 * Invariants: every step that waits for other PEs has the group's deadline; where it passes, or a PE is gone, the process's
 * NVSHMEM is marked unusable and never finalised. Words are zero and runs counted alike on all ranks when `ensure` has ended.
 */
import { createHash } from "node:crypto"
import type { CopyDriverError } from "@tensorferry/core/service/CopyDriver"
import type { NativeStreamCalls } from "@tensorferry/gpu/Addon"
import { libraryNames as deviceLibraryNames } from "@tensorferry/gpu/libraries"
import { describeFailure } from "@tensorferry/native/describeFailure"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import { runJob, type Start } from "@tensorferry/native/NativeJob"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import type { NativeExchange, NativeSession } from "./Addon.ts"
import type { DriverParts } from "./driverParts.ts"
import { departureOf, markUnusable, reasonUnusable, setDeparture } from "./LibraryState.ts"
import { type BlockLayout, blockBytes, wholeSlot } from "./layout.ts"
import { deviceOptions, sendSlots } from "./options.ts"
import type { Statement } from "./Publication.ts"

/** A job that this rank has joined. */
export interface Member {
  readonly name: string
  readonly session: NativeSession
  readonly exchange: NativeExchange
  readonly calls: NativeStreamCalls
  readonly layout: BlockLayout
  /** Runs begun since the words were zero. */
  runs: number
  mustReset: boolean
}

const uniqueIdBytes = 128

/** How long a closed driver keeps its caller for the sake of an orderly end. */
const patience = Duration.seconds(2)

/** Most of the free memory that the block takes, where no size is asked for that is smaller. */
const shareOfFree = 0.25

export const makeMembership = (parts: DriverParts) => {
  const { addon, library, gpu, group, options, errors, agreement } = parts
  const { ordinal } = gpu
  let member: Member | undefined

  /** A step of the library, ended by the group's deadline; then nothing of the library can be relied on. */
  const step = <A>(op: string, start: Start<A>): Effect.Effect<A, CopyDriverError> =>
    group.keepAlive(runJob(addon, start, () => {})).pipe(
      Effect.mapError((failure) => ofNative(failure, op)),
      Effect.timeoutOrElse({
        duration: group.deadline,
        orElse: () => {
          const detail = `Not all PEs came to the step "${op}" within ${Duration.format(group.deadline)}.`
          return Effect.andThen(
            markUnusable(ordinal, detail),
            Effect.fail(errors.fail("TransportFailed", detail, { op, scope: "service" }))
          )
        }
      })
    )

  const ofNative = (failure: NativeFailure, op: string): CopyDriverError => {
    if (failure.code !== "OutOfMemory") return errors.ofNative(failure, op)
    return errors.fail("TransportFailed", describeFailure(failure), { op, scope: "service" })
  }

  /** The root's identity of a new job, on all ranks; or the root's failure, on all ranks. */
  const shareIdentity = agreement.fromRoot(
    "identity",
    () => {
      const made = addon.createUniqueId(library)
      return made.code === "Ok" ? Result.succeed(made.value) : Result.fail(errors.ofNative(made, "join"))
    },
    { detail: "Rank 0 could not start a job.", op: "join", byteLength: uniqueIdBytes }
  )

  const leave = (session: NativeSession): Effect.Effect<void> =>
    step("leave", (done) => addon.startLeave(session, done)).pipe(
      Effect.catch(({ reason }) => markUnusable(ordinal, reason.detail)),
      Effect.asVoid
    )

  const abandon = (session: NativeSession, why: string): Effect.Effect<void> =>
    Effect.andThen(
      markUnusable(ordinal, why),
      Effect.sync(() => addon.abandon(session))
    )

  /** What all ranks can have. */
  const layoutOf = (statements: ReadonlyArray<Statement>): Omit<BlockLayout, "address"> => ({
    peCount: group.size,
    slots: Math.min(...statements.map(({ slots }) => slots)),
    sendSlots,
    slotBytes: wholeSlot(Math.min(...statements.map(({ slotBytes }) => slotBytes)))
  })

  const openBlock = (name: string, session: NativeSession, statements: ReadonlyArray<Statement>) =>
    Effect.gen(function* () {
      const layout = layoutOf(statements)
      const byteLength = blockBytes(layout)
      const allocated = yield* Effect.result(
        step<bigint>("allocate", (done) => addon.startAllocate(session, byteLength, done))
      )
      const address = yield* agreement.settle("allocated", allocated)
      const made = addon.createExchange(session, address, byteLength, layout.slots)
      const ready =
        made.code === "Ok"
          ? yield* Effect.result(step("reset", (done) => addon.startReset(made.value.exchange, done)))
          : Result.fail(errors.ofNative(made, "join"))
      if (made.code === "Ok") {
        member = {
          name,
          session,
          ...made.value,
          layout: { ...layout, address: Number(address) },
          runs: 0,
          mustReset: false
        }
      }
      yield* agreement.settle("ready", ready)
      return member!
    })

  const join = (statements: ReadonlyArray<Statement>): Effect.Effect<Member, CopyDriverError> =>
    Effect.gen(function* () {
      yield* Effect.timeoutOption(group.keepAlive(departureOf(ordinal)), group.deadline)
      const identity = yield* shareIdentity
      const files = deviceLibraryNames("cuda", deviceOptions(options).libraries)
      const joined = yield* Effect.result(
        step("join", (done: Parameters<typeof addon.startJoin>[7]) =>
          addon.startJoin(library, files.runtime, files.driver, ordinal, identity, group.rank, group.size, done)
        )
      )
      const agreed = yield* Effect.result(agreement.settle("joined", joined))
      if (Result.isFailure(agreed)) {
        if (Result.isSuccess(joined)) yield* abandon(joined.success, "Not all PEs joined the job.")
        return yield* agreed.failure
      }
      const session = agreed.success
      const name = createHash("sha256").update(identity).digest("hex")
      return yield* Effect.onError(openBlock(name, session, statements), () =>
        Effect.suspend(() => {
          const made = member
          member = undefined
          if (made !== undefined) addon.closeExchange(made.exchange)
          return reasonUnusable(ordinal) === undefined ? leave(session) : Effect.sync(() => addon.abandon(session))
        })
      )
    })

  /** After runs that did not end well on all ranks: nothing is under way any more, and all words are zero. */
  const reset = (known: Member): Effect.Effect<void, CopyDriverError> =>
    Effect.gen(function* () {
      const quiet = yield* Effect.result(step("quiet", (done) => addon.startQuiet(known.exchange, done)))
      yield* agreement.settle("quiet", quiet)
      const zero = yield* Effect.result(step("reset", (done) => addon.startReset(known.exchange, done)))
      yield* agreement.settle("reset", zero)
      known.runs = 0
      known.mustReset = false
    })

  /** Leaves the job in order, if all others do; says so where that cannot be. */
  const part = (known: Member): Effect.Effect<void> =>
    Effect.gen(function* () {
      const why = reasonUnusable(ordinal)
      if (why !== undefined) {
        addon.abandon(known.session)
        return
      }
      const reversed = Array.from({ length: group.size }, (_, rank) => group.size - 1 - rank)
      const farewell = Effect.gen(function* () {
        yield* step("quiet", (done) => addon.startQuiet(known.exchange, done))
        addon.closeExchange(known.exchange)
        const all = yield* group.subgroup(reversed)
        yield* all.barrier("nvshmem/farewell")
      })
      const exit = yield* Effect.exit(farewell)
      if (Exit.isSuccess(exit)) yield* leave(known.session)
      else yield* abandon(known.session, "Not all PEs left the job together.")
    })

  return {
    member: (): Member | undefined => member,
    /** What this rank says of itself. */
    standing: (
      slotBytes: number,
      slots: number
    ): Pick<Statement, "slotBytes" | "slots" | "job" | "runs" | "mustReset"> => {
      const fitting = Math.floor((gpu.facts.freeBytes * shareOfFree) / (slots + sendSlots))
      return {
        slotBytes: options.slotBytes === undefined ? Math.min(slotBytes, fitting) : slotBytes,
        slots,
        job: member?.name ?? "",
        runs: member?.runs ?? 0,
        mustReset: member?.mustReset ?? false
      }
    },
    /** The job of all ranks, ready for a run. Every rank calls it, with what all say of themselves. */
    ensure: (statements: ReadonlyArray<Statement>): Effect.Effect<Member, CopyDriverError> =>
      Effect.gen(function* () {
        const names = new Set(statements.map(({ job }) => job))
        if (names.size > 1) {
          const lacking = statements.findIndex(({ job }) => job === "")
          const detail = `Not all ranks have a part in the same job${lacking < 0 ? "" : `: rank ${lacking} has none`}.`
          return yield* errors.fail("Broken", detail, { op: "prepare", scope: "service" })
        }
        if (member === undefined) return yield* join(statements)
        const isInStep = statements.every(({ runs, mustReset }) => !mustReset && runs === statements[0]!.runs)
        if (!isInStep) yield* reset(member)
        return member
      }),
    /** Memory that all PEs have at the same place of their heaps, until they leave the job. Every rank calls it alike. */
    allocate: (known: Member, byteLength: number): Effect.Effect<bigint, CopyDriverError> =>
      Effect.gen(function* () {
        const allocated = yield* Effect.result(
          step<bigint>("allocate", (done) => addon.startAllocate(known.session, byteLength, done))
        )
        return yield* agreement.settle("allocated", allocated)
      }),
    /** Makes the run fail on the others, which would wait for this rank. */
    decline: (known: Member): Effect.Effect<void> =>
      Effect.ignore(step("decline", (done) => addon.startDecline(known.exchange, done))),
    /** For who closes the driver: does not wait long for others, who may go on for a while. */
    close: Effect.suspend(() => {
      const known = member
      member = undefined
      if (known === undefined) return Effect.void
      return Effect.gen(function* () {
        const fiber = yield* Effect.forkDetach(part(known), { startImmediately: true })
        const ended = Effect.asVoid(Fiber.await(fiber))
        setDeparture(ordinal, ended)
        yield* Effect.timeoutOption(ended, patience)
      })
    })
  }
}

export type Membership = ReturnType<typeof makeMembership>
