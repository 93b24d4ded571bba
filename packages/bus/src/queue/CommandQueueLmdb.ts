// SPDX-License-Identifier: Apache-2.0
/**
 * A command queue that processes of one host share: an LMDB file and three named semaphores, as clients in other languages
 * know them.
 *
 * An agent makes the queue, or takes over what an agent before it left; it removes the queue when its scope ends. A client
 * that removes the queue under a living agent does no harm: the agent notices and makes it anew, and clients that had the
 * old one open go over to the new one.
 */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { inSeconds, sayWaiting, untilWords } from "@tensorferry/core/service/sayWaiting"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import { acquirePool, runJob } from "@tensorferry/native/NativeJob"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Semaphore from "effect/Semaphore"
import { loadAddon, type NativeQueue, type NativeQueueStatus, type NativeTaken } from "../Addon.ts"
import {
  CommandQueue,
  type CommandQueueError,
  type CommandQueueReason,
  type CommandQueueShape,
  commandQueueError,
  defaultCapacity,
  defaultDeadline,
  defaultMost
} from "./CommandQueue.ts"
import { readCommands, writeCommands } from "./readCommands.ts"

/** Which file the queue is kept in, and which end of it this process is. */
export interface LmdbQueueOptions {
  /** The file; its lock file and the semaphores are named after it. */
  readonly path: string
  readonly role: "agent" | "client"
  /** Equal for all who open the queue; 50000 by default, as other clients have it. */
  readonly capacity?: number
  /** Most bytes of the file; 1 GiB by default. */
  readonly mapBytes?: number
  /** How long a client waits for the agent to be there; 10 seconds by default. */
  readonly connectDeadline?: Duration.Input
}

const defaultMapBytes = 2 ** 30

const tags: Partial<Record<NativeFailure["code"], CommandQueueReason["_tag"]>> = {
  DeadlineExceeded: "Full",
  OutOfMemory: "Full",
  NotFound: "NotServed",
  PeerGone: "NotServed",
  AlreadyExists: "Busy",
  PermissionDenied: "Untrusted",
  InvalidHandle: "Damaged"
}

const remedies: Record<CommandQueueReason["_tag"], string> = {
  Full: "See whether the agent is alive, or wait longer.",
  TooLarge: "Register the tensors in several batches.",
  NotServed: "Start the agent of this rank, and give both the same path.",
  Busy: "Stop the other agent, or give this one another rank, or a queue of another name (TENSOR_BUS_COMMAND_QUEUE_PATH).",
  Untrusted: "Use a folder of your own (TENSOR_BUS_DIRECTORY), and remove what lies at this path.",
  Damaged: "Remove the file while no agent and no client runs.",
  Corrupt: "Send the command again; if it happens again, look at the disk and memory of this machine.",
  Unavailable: "Install LMDB 0.9 (Debian: apt-get install liblmdb0).",
  SystemFailure:
    "Look up the system's error number that is named here, and compare limits and permissions by tensorferry doctor."
}

const failureOf = (path: string, role: LmdbQueueOptions["role"], failure: NativeFailure): CommandQueueError => {
  const isLibrary = failure.op === "dlopen" || failure.op === "dlsym" || failure.op === "mdb_version"
  const tag = isLibrary ? "Unavailable" : (tags[failure.code] ?? "SystemFailure")
  return commandQueueError(tag, {
    op: failure.op,
    file: path,
    detail: failure.detail,
    remedy:
      tag === "NotServed" && role === "agent" ? "Make the folder of the queue, or name another one." : remedies[tag],
    isRetryable: tag === "Full" || tag === "NotServed",
    nativeCode: failure.nativeCode
  })
}

const millisOf = (duration: Duration.Input): number =>
  Math.max(0, Duration.toMillis(Duration.fromInputUnsafe(duration)))

const messagesOf = ({ bytes, lengths }: NativeTaken): ReadonlyArray<Uint8Array> => {
  let end = 0
  return lengths.map((length) => {
    end += length
    return bytes.subarray(end - length, end)
  })
}

/**
 * One end of the queue in a file. It is closed with the scope; another agent on the same file is refused with
 * CommandQueueError.
 */
export const make = Effect.fnUntraced(function* (options: LmdbQueueOptions) {
  const { path, role } = options
  const capacity = options.capacity ?? defaultCapacity
  const mapBytes = options.mapBytes ?? defaultMapBytes
  const connectMillis = millisOf(options.connectDeadline ?? "10 seconds")
  const addon = yield* loadAddon
  const fail = (failure: NativeFailure) => failureOf(path, role, failure)
  // A wait for commands must not keep a command from being put in.
  const putPool = yield* Effect.mapError(acquirePool(addon, 1), fail)
  const takePool = yield* Effect.mapError(acquirePool(addon, 1), fail)
  let refused = 0
  /** Taken out and not yet returned: a wait that is interrupted in its last moment has taken all the same. */
  const taken: Array<Uint8Array> = []
  /** Places of commands that are lost, each of which fails one call. */
  const corrupt: Array<number> = []

  const lostAt = (place: number): CommandQueueError =>
    commandQueueError("Corrupt", {
      op: "dequeue",
      file: path,
      detail: `Entry ${place} of the queue ${path} is not what was put there, so its command is lost.`,
      remedy: remedies.Corrupt,
      isRetryable: true
    })

  const opening = runJob<NativeQueue>(
    addon,
    (done) => addon.startOpenQueue(putPool, path, role === "agent", capacity, mapBytes, connectMillis, done),
    () => {}
  )
  const open =
    role === "agent"
      ? opening
      : sayWaiting(
          opening,
          (millis) =>
            `Waited ${inSeconds(millis)} for an agent that serves ${path}${untilWords(connectMillis, millis)}.`
        )
  let current: NativeQueue | undefined
  yield* Effect.addFinalizer(() =>
    Effect.sync(() => {
      if (current !== undefined) addon.closeQueue(current, role === "agent")
      current = undefined
    })
  )
  const turn = yield* Semaphore.make(1)
  const isOpenBut = (gone: NativeQueue | undefined) => current !== undefined && current !== gone
  /** One caller at a time, of whom only the first finds that there is something to do. */
  const reopen = (gone: NativeQueue | undefined): Effect.Effect<NativeQueue, NativeFailure> =>
    Effect.suspend(() => {
      if (isOpenBut(gone)) return Effect.succeed(current!)
      if (current !== undefined) addon.closeQueue(current, false)
      current = undefined
      // The finalizer must know of it before anything can interrupt.
      return Effect.uninterruptibleMask((restore) =>
        Effect.tap(restore(open), (opened) =>
          Effect.sync(() => {
            current = opened
          })
        )
      ).pipe(
        Effect.tap((opened) => {
          const aside = addon.queueSetAside(opened)
          return aside.code === "Ok" && aside.value !== "" ? Effect.logWarning(aside.value) : Effect.void
        })
      )
    })
  /** The queue that is open; opened again where the caller found `gone` to be replaced. */
  const queueUnless = (gone: NativeQueue | undefined) =>
    Effect.suspend(() => (isOpenBut(gone) ? Effect.succeed(current!) : Semaphore.withPermits(turn, 1)(reopen(gone))))
  const use = <A>(
    work: (queue: NativeQueue) => Effect.Effect<A, NativeFailure>
  ): Effect.Effect<A, CommandQueueError> => {
    const attempt = (gone: NativeQueue | undefined): Effect.Effect<A, NativeFailure> =>
      Effect.flatMap(queueUnless(gone), (queue) =>
        Effect.catchIf(
          work(queue),
          (failure) => failure.code === "PeerGone",
          () => Effect.andThen(Effect.logWarning(`The command queue ${path} was replaced.`), attempt(queue))
        )
      )
    return Effect.mapError(attempt(undefined), fail)
  }
  yield* use(() => Effect.void)

  /** Waits for commands and adds them to those that were taken. */
  const takeOut = (most: number): Effect.Effect<void, CommandQueueError> =>
    use((queue) =>
      runJob<NativeTaken>(
        addon,
        (done) =>
          addon.startDequeue(takePool, queue, most, -1, (answer) => {
            if (answer.code === "Ok") {
              taken.push(...messagesOf(answer.value))
              corrupt.push(...answer.value.corrupt)
            }
            done(answer)
          }),
        () => {}
      )
    ).pipe(
      Effect.flatMap(({ skipped }) => {
        refused += skipped
        return skipped > 0 ? Effect.logWarning(`${skipped} entries of ${path} were missing.`) : Effect.void
      })
    )

  return {
    enqueue: (messages, deadline = defaultDeadline) =>
      Effect.flatMap(writeCommands(messages), (entries) =>
        use((queue) =>
          runJob<undefined>(
            addon,
            (done) => addon.startEnqueue(putPool, queue, entries, millisOf(deadline), done),
            () => {}
          )
        )
      ),
    dequeue: (most = defaultMost) =>
      Effect.uninterruptibleMask((restore) =>
        Effect.gen(function* () {
          for (;;) {
            if (taken.length === 0) {
              const lost = corrupt.shift()
              if (lost !== undefined) {
                refused += 1
                return yield* lostAt(lost)
              }
              yield* restore(takeOut(most))
            }
            const messages = yield* readCommands(taken.splice(0, most), (count) => {
              refused += count
            })
            if (messages.length > 0) return messages
          }
        })
      ),
    status: Effect.map(
      use((queue) =>
        runJob<NativeQueueStatus>(
          addon,
          (done) => addon.startQueueStatus(putPool, queue, done),
          () => {}
        )
      ),
      (status) => ({ ...status, refused })
    )
  } satisfies CommandQueueShape
})

/** A queue in an LMDB file that Etha's Python clients read and write too. */
export const layerLmdb = (options: LmdbQueueOptions): Layer.Layer<CommandQueue, CommandQueueError | BackendError> =>
  Layer.effect(CommandQueue, make(options))
