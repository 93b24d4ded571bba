// SPDX-License-Identifier: Apache-2.0
/**
 * The second process of `doctor`: gets at the memory of its parent in both ways, answers how that went, and ends.
 */
import { closeSync, openSync, readSync } from "node:fs"
import { HostMemory as HostMemoryLayer } from "@tensorferry/backend-torch-copy"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { Answer, Question } from "./processProbe.ts"

const compare = (found: Uint8Array, cookie: string): string =>
  Buffer.from(found).toString("hex") === cookie ? "" : "it leads to other bytes"

const mapIt = ({ handle, cookie }: typeof Question.Type): Effect.Effect<string> =>
  Effect.gen(function* () {
    const memory = yield* HostMemory
    const storage = yield* memory.open(handle)
    return compare(storage.bytes ?? new Uint8Array(), cookie)
  }).pipe(
    Effect.scoped,
    Effect.provide(HostMemoryLayer.layer),
    Effect.catch(({ reason }) => Effect.succeed(reason.detail))
  )

/** The kernel asks for the same permission here as for process_vm_readv. */
const readIt = ({ handle, address, cookie }: typeof Question.Type): string => {
  const read = Result.try({
    try: () => {
      const file = openSync(`/proc/${handle.pid}/mem`, "r")
      const found = new Uint8Array(cookie.length / 2)
      const length = Result.try(() => readSync(file, found, 0, found.length, BigInt(address)))
      closeSync(file)
      return Result.isSuccess(length) ? compare(found, cookie) : "the address cannot be read"
    },
    catch: (cause) => (cause as NodeJS.ErrnoException).code ?? String(cause)
  })
  return Result.getOrElse(read, (code) => `the system refuses it (${code})`)
}

process.once("message", (message) => {
  const question = Schema.decodeUnknownResult(Question)(message)
  if (Result.isFailure(question)) return process.disconnect()
  const answer = Effect.map(mapIt(question.success), (mapped) => ({ mapped, read: readIt(question.success) }))
  Effect.runFork(
    Effect.map(answer, (known) => process.send?.(Schema.encodeSync(Answer)(known), () => process.disconnect()))
  )
})
