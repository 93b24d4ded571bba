// SPDX-License-Identifier: Apache-2.0
/**
 * Makes a memory file and has a second process of this program get at it in both ways that ranks use: mapping the file,
 * and reading this process's memory.
 *
 * Invariants: the second process is no parent of this one, so it stands to it as one rank to another; it has ended when
 * the Effect ends.
 */
import { type ChildProcess, fork } from "node:child_process"
import { randomBytes } from "node:crypto"
import { fileURLToPath } from "node:url"
import { HostMemory as HostMemoryLayer } from "@tensorferry/backend-torch-copy"
import { HostMemory, HostMemoryHandle } from "@tensorferry/core/service/HostMemory"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { type Fact, fact } from "./Fact.ts"

/** What the second process gets: where the memory is, and what is in it. */
export const Question = Schema.Struct({
  handle: HostMemoryHandle,
  address: Schema.String,
  /** Hexadecimal. */
  cookie: Schema.String
})

/** How each way ended: "" where it led to the right bytes, else why not. */
export const Answer = Schema.Struct({ mapped: Schema.String, read: Schema.String })
export type Answer = typeof Answer.Type

const program = fileURLToPath(
  new URL(`./processProbeMain${import.meta.url.endsWith(".ts") ? ".ts" : ".js"}`, import.meta.url)
)

const cookieBytes = 16
const limit = Duration.seconds(10)

const startProcess = Effect.acquireRelease(
  Effect.sync(() => fork(program, [], { stdio: ["ignore", "ignore", "ignore", "ipc"], execArgv: [] })),
  (child: ChildProcess) => Effect.sync(() => void child.kill("SIGKILL"))
)

const ask = (question: typeof Question.Type): Effect.Effect<Answer, string> =>
  Effect.scoped(
    Effect.gen(function* () {
      const message = yield* Effect.orDie(Schema.encodeEffect(Question)(question))
      const child = yield* startProcess
      const answered = Effect.callback<Answer, string>((resume) => {
        child.once("message", (received) => {
          const decoded = Schema.decodeUnknownResult(Answer)(received)
          resume(Result.isSuccess(decoded) ? Effect.succeed(decoded.success) : Effect.fail("the answer cannot be read"))
        })
        child.once("error", (error) => resume(Effect.fail(error.message)))
        child.once("exit", (code) => resume(Effect.fail(`it ended with exit code ${code}`)))
        child.send(message, () => undefined)
      })
      return yield* Effect.timeoutOrElse(answered, {
        duration: limit,
        orElse: () => Effect.fail(`it did not answer within ${Duration.format(limit)}`)
      })
    })
  )

const wayFact = (name: string, works: string, why: string, remedy: string): Fact =>
  why === "" ? fact(name, works, { works: true }) : fact(name, `does not work: ${why}`, { works: false, why }, remedy)

/** The facts that the two ways are, from how they ended. */
export const processProbeFacts = ({ mapped, read }: Answer): ReadonlyArray<Fact> => [
  wayFact(
    "shared map",
    "works: a second process mapped the memory file",
    mapped,
    "Run all ranks as one user in one container; tensors go over TCP until then."
  ),
  wayFact(
    "memory reads",
    "allowed: a second process read this one's memory",
    read,
    "Only tensors that were not allocated to be shared need it, and go over TCP; allow ptrace between the ranks (ptrace_scope 0, or --cap-add SYS_PTRACE for a container)."
  )
]

/** Facts about memory files and the two ways to those of another process. Nothing fails. */
export const inspectProcessAccess: Effect.Effect<ReadonlyArray<Fact>> = Effect.gen(function* () {
  const memory = yield* HostMemory
  const storage = yield* memory.allocate(cookieBytes)
  const cookie = randomBytes(cookieBytes)
  storage.bytes?.set(cookie)
  const handle = yield* memory.share(storage)
  const made = fact("memory files", "work: one was created, sealed and mapped", { works: true })
  const question = { handle, address: String(storage.address), cookie: cookie.toString("hex") }
  const asked = yield* Effect.result(ask(question))
  if (Result.isSuccess(asked)) return [made, ...processProbeFacts(asked.success)]
  const unknown = fact(
    "shared map",
    `unknown: a second process was to try it, but ${asked.failure}`,
    { works: null, why: asked.failure },
    "See whether this user may start more processes."
  )
  return [made, unknown]
}).pipe(
  Effect.scoped,
  Effect.provide(HostMemoryLayer.layer),
  Effect.catch(({ reason }) =>
    Effect.succeed([
      fact("memory files", `do not work: ${reason.detail}`, { works: false, why: reason.detail }, reason.remedy)
    ])
  )
)
