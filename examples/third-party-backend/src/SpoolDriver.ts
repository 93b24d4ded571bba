// SPDX-License-Identifier: Apache-2.0
/**
 * A copy driver whose messages are files: the sender writes one under a temporary name and renames it into the receiver's
 * inbox, the receiver reads and removes it.
 *
 * Invariant: a file in an inbox is whole, because renaming is atomic. Names carry an identity that the ranks share when they
 * prepare a program, and count its starts, so a file that an aborted run left behind is never taken for one of another run.
 */
import { watch } from "node:fs"
import { mkdir, readdir, readFile, rename, rm, writeFile } from "node:fs/promises"
import * as path from "node:path"
import type { Rank } from "@tensorferry/core/base/Ids"
import type { Message } from "@tensorferry/core/ir/Message"
import type { CopyDriverCapabilities, CopyDriverError, CopyDriverShape } from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { makeDriverAgreement } from "@tensorferry/native/driver/DriverAgreement"
import { driverErrors } from "@tensorferry/native/driver/DriverErrors"
import { onePath } from "@tensorferry/native/driver/PeerPaths"
import { makeProgramEntries } from "@tensorferry/native/driver/ProgramEntries"
import { forkTransfer, messageBytes } from "@tensorferry/native/driver/Transfers"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"

export const capabilities: CopyDriverCapabilities = {
  gather: false,
  requiresProcessGroupBarrier: false,
  requiresTaskId: false,
  deviceFamilies: ["cpu"],
  maxMessageBytes: 2 ** 26
}

/** Files that a rank reads or writes at a time, in either direction. */
const concurrency = 4

/**
 * How long a receiver waits before it looks again by itself. The file system's own notice is faster, but file systems that
 * are shared between hosts do not give it for what other hosts write.
 */
const lookAgain = "200 millis"

const isAbsent = (cause: unknown): boolean => (cause as { readonly code?: unknown }).code === "ENOENT"

export const spoolDriver = (
  folder: string
): Effect.Effect<CopyDriverShape, CopyDriverError, ProcessGroup | Scope.Scope> =>
  Effect.gen(function* () {
    const group = yield* ProcessGroup
    const scope = yield* Effect.scope
    const { rank } = group
    const errors = driverErrors("spool", rank, {
      TransportFailed:
        "See that all ranks can write to the folder, that it has space, and that nothing else writes to it."
    })

    /** One call of the file system. It ends before its fiber does, so that nothing touches a region afterwards. */
    const fileCall = <A>(op: string, file: string, call: () => Promise<A>): Effect.Effect<A, CopyDriverError> =>
      Effect.uninterruptible(
        Effect.tryPromise({
          try: call,
          catch: (cause) => errors.fail("TransportFailed", `${file}: ${String(cause)}.`, { op })
        })
      )

    const inboxOf = (member: Rank): string => path.join(folder, `inbox-${member}`)
    const inbox = inboxOf(rank)
    yield* fileCall("open", inbox, () => mkdir(inbox, { recursive: true }))

    /** Replaced at every notice; who waits holds the one from before it looked. */
    let changed = Deferred.makeUnsafe<void>()
    yield* Effect.acquireRelease(
      Effect.sync(() =>
        watch(inbox, () => {
          const seen = changed
          changed = Deferred.makeUnsafe()
          Deferred.doneUnsafe(seen, Effect.void)
        })
      ),
      (watcher) => Effect.sync(() => watcher.close())
    )

    const fileOf = (run: string, from: Rank, to: Rank, index: number): string =>
      path.join(inboxOf(to), `${run}.${from}.${index}`)

    const send = Effect.fnUntraced(function* (run: string, message: Message) {
      const file = fileOf(run, rank, message.peer, message.index)
      const bytes = yield* messageBytes(errors, message)
      yield* fileCall("send", file, async () => {
        const unfinished = path.join(folder, `${run}.${rank}.${message.peer}.${message.index}.part`)
        await mkdir(inboxOf(message.peer), { recursive: true })
        await writeFile(unfinished, bytes)
        await rename(unfinished, file)
      })
    })

    /** Ends when the file is there. The service watches the deadline and interrupts. */
    const take = (file: string): Effect.Effect<Uint8Array, CopyDriverError> =>
      Effect.suspend(() => {
        const nextChange = Deferred.await(changed)
        const read = fileCall("receive", file, () =>
          readFile(file).catch((cause: unknown) => (isAbsent(cause) ? undefined : Promise.reject(cause)))
        )
        return Effect.filterOrElse(
          read,
          (found): found is NonNullable<typeof found> => found !== undefined,
          () => Effect.andThen(Effect.timeoutOption(nextChange, lookAgain), take(file))
        )
      })

    const receive = Effect.fnUntraced(function* (run: string, message: Message) {
      const file = fileOf(run, message.peer, rank, message.index)
      const found = yield* take(file)
      const bytes = yield* messageBytes(errors, message)
      if (found.byteLength !== bytes.byteLength) {
        const detail = `${file} has ${found.byteLength} bytes instead of ${bytes.byteLength}.`
        return yield* errors.fail("TransportFailed", detail, { peer: message.peer, op: "receive" })
      }
      bytes.set(found)
      yield* fileCall("receive", file, () => rm(file, { force: true }))
    })

    /** Removes what runs that did not end well left in this rank's inbox. */
    const sweep = (identity: string) =>
      fileCall("sweep", inbox, async () => {
        for (const name of await readdir(inbox)) {
          if (name.startsWith(identity)) await rm(path.join(inbox, name), { force: true })
        }
      }).pipe(Effect.ignore)

    /** An identity of rank 0's making, the same on all ranks. */
    const shareIdentity = Effect.map(
      makeDriverAgreement(group, errors).fromRoot("program", () => Result.succeed(Buffer.from(crypto.randomUUID())), {
        detail: "Rank 0 has no identity.",
        op: "prepare"
      }),
      (bytes) => new TextDecoder().decode(bytes)
    )

    const entries = makeProgramEntries<{ readonly identity: string; starts: number }>(() =>
      errors.fail("InvalidProgram", "The program was prepared by another driver.", { op: "start" })
    )

    return {
      name: "spool",
      rank,
      worldSize: group.size,
      capabilities,
      prepare: (messages) =>
        Effect.gen(function* () {
          const identity = yield* Effect.acquireRelease(shareIdentity, sweep)
          const program = { messages, paths: onePath(messages, "files", `inboxes in ${folder}`) }
          yield* entries.add(program, { identity, starts: 0 })
          return program
        }),
      start: (program) =>
        entries.start(program, (entry) => {
          const run = `${entry.identity}-${++entry.starts}`
          return forkTransfer(scope, (moved) => {
            const moving = (direction: Message["direction"], move: typeof send) =>
              Effect.forEach(
                program.messages.filter((message) => message.direction === direction),
                (message) => Effect.tap(move(run, message), () => Effect.sync(() => moved(message.byteLength))),
                { concurrency, discard: true }
              )
            // A send waits for nobody, so any number of them may go before a receive.
            return Effect.all([moving("send", send), moving("recv", receive)], { concurrency: 2, discard: true })
          })
        })
    }
  })
