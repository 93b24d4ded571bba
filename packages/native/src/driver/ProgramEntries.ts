// SPDX-License-Identifier: Apache-2.0
/**
 * The life of prepared programs: what a driver keeps beside each, from `prepare` until the scope of the preparation ends.
 *
 * Invariant: an entry is usable until its scope closes or a storage under it is freed, whichever comes first, and never
 * again. A transfer that still runs when the scope closes is cancelled before anything else of the preparation is undone.
 */
import type { Message } from "@tensorferry/core/ir/Message"
import type { CopyDriverError, InFlight, Program } from "@tensorferry/core/service/CopyDriver"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"

/** What is known of any program, beside what its driver keeps. */
export interface ProgramLife {
  /** False once the program was closed or memory of it was freed. */
  isUsable: boolean
  /** Stops the latest start, if it has not ended. */
  cancel: Effect.Effect<void>
}

/** What a driver keeps beside a program. */
export type ProgramEntry<Kept> = Kept & ProgramLife

/** The programs of one driver. */
export interface ProgramEntries<Kept> {
  /** Keeps something beside a program, until the scope ends. */
  readonly add: (program: Program, kept: Kept) => Effect.Effect<ProgramEntry<Kept>, never, Scope.Scope>
  /** What is kept beside a program, usable or not; undefined for programs of other drivers. */
  readonly find: (program: Program) => ProgramEntry<Kept> | undefined
  /** Begins a transfer of a program, which ends with the program at the latest. Whether it is usable, `begin` asks. */
  readonly start: (
    program: Program,
    begin: (entry: ProgramEntry<Kept>) => Effect.Effect<InFlight, CopyDriverError>
  ) => Effect.Effect<InFlight, CopyDriverError>
}

const storagesOf = (messages: ReadonlyArray<Message>): ReadonlySet<Storage> =>
  new Set(messages.flatMap((message) => message.parts.map((part) => part.tensor.storage)))

/** Ends the use of a program when a storage under it is freed, from now on until the scope ends. */
const watchStorages = (messages: ReadonlyArray<Message>, life: ProgramLife): Effect.Effect<void, never, Scope.Scope> =>
  Effect.asVoid(
    Effect.acquireRelease(
      Effect.sync(() => {
        const storages = [...storagesOf(messages)]
        // A preparation takes a while, and memory that is freed meanwhile is not reported to those who ask later.
        if (storages.some((storage) => storage.isFreed())) life.isUsable = false
        return storages.map((storage) =>
          storage.onRevoke(() => {
            life.isUsable = false
          })
        )
      }),
      (unregister) =>
        Effect.sync(() => {
          for (const undo of unregister) undo()
        })
    )
  )

/** The entries of a driver that has no programs yet; `foreign` is why one of another driver cannot start. */
export const makeProgramEntries = <Kept extends object>(foreign: () => CopyDriverError): ProgramEntries<Kept> => {
  const entries = new WeakMap<Program, ProgramEntry<Kept>>()
  return {
    add: Effect.fnUntraced(function* (program: Program, kept: Kept) {
      const entry: ProgramEntry<Kept> = { ...kept, isUsable: true, cancel: Effect.void }
      entries.set(program, entry)
      yield* watchStorages(program.messages, entry)
      yield* Effect.addFinalizer(() => {
        entry.isUsable = false
        return entry.cancel
      })
      return entry
    }),
    find: (program) => entries.get(program),
    start: (program, begin) =>
      Effect.suspend(() => {
        const entry = entries.get(program)
        if (entry === undefined) return Effect.fail(foreign())
        return Effect.tap(begin(entry), ({ isComplete, cancel }) =>
          Effect.sync(() => {
            // A driver that gives up whenever it is cancelled would break over a transfer that has ended.
            entry.cancel = Effect.flatMap(isComplete, (hasEnded) => (hasEnded ? Effect.void : cancel))
          })
        )
      })
  }
}
