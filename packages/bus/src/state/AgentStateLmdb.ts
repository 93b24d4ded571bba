// SPDX-License-Identifier: Apache-2.0
/** An agent's state in an LMDB file beside its command queue. An agent begins with an empty one and removes it at its end. */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { inSeconds, sayWaiting, untilWords } from "@tensorferry/core/service/sayWaiting"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import { acquirePool, type NativePool, runJob } from "@tensorferry/native/NativeJob"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import { loadAddon, type NativeCompletion, type NativeFile } from "../Addon.ts"
import {
  AgentState,
  type AgentStateError,
  type AgentStateReason,
  type AgentStateShape,
  agentStateError,
  type StateEntries
} from "./AgentState.ts"

/** Which file, and which end of it. */
export interface LmdbStateOptions {
  /** Of the LMDB file; the same for the agent and its clients. */
  readonly path: string
  /** An agent begins with an empty file and removes it at its end; a client waits for the file and reads it. */
  readonly role: "agent" | "client"
  /** Most bytes of the file; 256 MiB by default. */
  readonly mapBytes?: number
  /** How long a client waits for the file to be there; 10 seconds by default. */
  readonly connectMillis?: number
}

const database = "pair_state"
const defaultMapBytes = 256 * 2 ** 20
const connectStepMillis = 20

const tags: Partial<Record<NativeFailure["code"], AgentStateReason["_tag"]>> = {
  OutOfMemory: "TooLarge",
  InvalidArgument: "TooLarge",
  NotFound: "NotServed",
  PeerGone: "NotServed",
  PermissionDenied: "Untrusted",
  InvalidHandle: "Damaged"
}

const remedies: Record<AgentStateReason["_tag"], string> = {
  TooLarge: "Use shorter names of pairs and batches.",
  NotServed: "Start the agent of this rank, and give both the same path.",
  Untrusted: "Use a folder of your own (TENSOR_BUS_DIRECTORY), and remove what lies at this path.",
  Damaged: "Remove the file while no agent and no client runs.",
  Unavailable: "Install LMDB 0.9 (Debian: apt-get install liblmdb0).",
  SystemFailure:
    "Look up the system's error number that is named here, and compare limits and permissions by tensorferry doctor."
}

const failureOf = (path: string, failure: NativeFailure): AgentStateError => {
  const isLibrary = failure.op === "dlopen" || failure.op === "dlsym" || failure.op === "mdb_version"
  const isSemaphore = failure.op === "sem_open"
  const tag = isLibrary ? "Unavailable" : isSemaphore ? "SystemFailure" : (tags[failure.code] ?? "SystemFailure")
  return agentStateError(tag, {
    op: failure.op,
    file: path,
    detail: failure.detail,
    remedy: remedies[tag],
    isRetryable: tag === "NotServed",
    nativeCode: failure.nativeCode
  })
}

const textEncoder = new TextEncoder()

/**
 * Opens the state. A client fails with NotServed where no agent made the file in time; a missing LMDB is Unavailable.
 */
export const make = Effect.fnUntraced(function* (options: LmdbStateOptions) {
  const { path, role } = options
  const addon = yield* loadAddon
  const fail = (failure: NativeFailure) => failureOf(path, failure)
  const pool = yield* Effect.mapError(acquirePool(addon, 1), fail)
  let current: NativeFile | undefined
  yield* Effect.addFinalizer(() =>
    Effect.sync(() => {
      if (current !== undefined) addon.closeFile(current, role === "agent")
      current = undefined
    })
  )
  const connectMillis = options.connectMillis ?? 10_000
  const open = runJob<NativeFile>(
    addon,
    (done) => addon.startOpenFile(pool, path, database, options.mapBytes ?? defaultMapBytes, role === "agent", done),
    () => {}
  )
  const connect =
    role === "agent"
      ? open
      : sayWaiting(
          Effect.retry(open, {
            while: ({ code }) => code === "NotFound" || code === "PeerGone",
            schedule: Schedule.spaced(connectStepMillis),
            times: Math.ceil(connectMillis / connectStepMillis)
          }),
          (millis) => `Waited ${inSeconds(millis)} for an agent that keeps ${path}${untilWords(connectMillis, millis)}.`
        )
  const turn = yield* Semaphore.make(1)
  /** The file that the path leads to: somebody may have removed the one that was open. */
  const file: Effect.Effect<NativeFile, NativeFailure> = Semaphore.withPermits(
    turn,
    1
  )(
    Effect.suspend(() => {
      if (current !== undefined) {
        const isCurrent = addon.isFileCurrent(current)
        if (isCurrent.code === "Ok" && isCurrent.value) return Effect.succeed(current)
        addon.closeFile(current, false)
        current = undefined
      }
      return Effect.uninterruptibleMask((restore) =>
        Effect.tap(restore(connect), (opened) =>
          Effect.sync(() => {
            current = opened
          })
        )
      ).pipe(
        Effect.tap((opened) => {
          const aside = addon.fileSetAside(opened)
          return aside.code === "Ok" && aside.value !== "" ? Effect.logWarning(aside.value) : Effect.void
        })
      )
    })
  )
  const use = <A>(work: (file: NativeFile) => Effect.Effect<A, NativeFailure>) =>
    Effect.mapError(Effect.flatMap(file, work), fail)

  const put = (entries: StateEntries, semaphoreName?: string) =>
    use((opened) =>
      runJob<undefined>(
        addon,
        (done) =>
          addon.startPut(
            pool,
            opened,
            entries.map(([name]) => textEncoder.encode(name)),
            entries.map(([, value]) => value),
            semaphoreName,
            done
          ),
        () => {}
      )
    )

  const scope = yield* Effect.scope
  /** Pools of one thread that no wait has at the moment: a thread is made for a wait only where all are taken. */
  const idle: Array<NativePool> = []
  const withThread = <A>(work: (thread: NativePool) => Effect.Effect<A, NativeFailure>) =>
    Effect.acquireUseRelease(
      Effect.suspend(() => {
        const thread = idle.pop()
        return thread === undefined ? Scope.provide(acquirePool(addon, 1), scope) : Effect.succeed(thread)
      }),
      work,
      (thread) => Effect.sync(() => idle.push(thread))
    )

  const expect = (semaphoreName: string) =>
    Effect.acquireRelease(
      Effect.suspend((): Effect.Effect<NativeCompletion, AgentStateError> => {
        const opened = addon.openCompletion(semaphoreName)
        return opened.code === "Ok" ? Effect.succeed(opened.value) : Effect.fail(fail(opened))
      }),
      (completion) => Effect.sync(() => addon.closeCompletion(completion))
    ).pipe(
      Effect.map((completion) => ({
        wait: (name: string, milliseconds: number) =>
          use((opened) =>
            withThread((thread) =>
              runJob<{ readonly isCompleted: boolean; readonly reply?: Uint8Array }>(
                addon,
                (done) =>
                  addon.startAwaitCompletion(thread, completion, opened, textEncoder.encode(name), milliseconds, done),
                () => {}
              )
            )
          ).pipe(Effect.map(({ isCompleted, reply }) => (isCompleted ? { reply } : undefined)))
      }))
    )

  if (role === "agent") {
    yield* use((opened) =>
      runJob<undefined>(
        addon,
        (done) => addon.startClear(pool, opened, done),
        () => {}
      )
    )
  } else yield* use(() => Effect.void)

  return {
    put: (entries) => put(entries),
    complete: (semaphoreName, entries) =>
      // Where the post itself failed, or nobody waits any more, this does nothing.
      Effect.tapError(put(entries, semaphoreName), () => Effect.sync(() => addon.completeWithoutReply(semaphoreName))),
    expect,
    get: (name) =>
      Effect.map(
        use((opened) =>
          runJob<ReadonlyArray<Uint8Array | undefined>>(
            addon,
            (done) => addon.startGet(pool, opened, [textEncoder.encode(name)], done),
            () => {}
          )
        ),
        ([value]) => value
      )
  } satisfies AgentStateShape
})

/** The state that `make` opens. */
export const layerLmdb = (options: LmdbStateOptions): Layer.Layer<AgentState, AgentStateError | BackendError> =>
  Layer.effect(AgentState, make(options))
