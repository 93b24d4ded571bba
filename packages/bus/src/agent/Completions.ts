// SPDX-License-Identifier: Apache-2.0
/**
 * Tells clients that their commands are done: first the reply, then the semaphore. The semaphore's name is removed, also
 * where its client has died.
 *
 * Invariant: replies go after their lifetime, and the oldest go first where there are too many, so the state never fills.
 */
import { monotonicMillis } from "@tensorferry/core/service/RunningTime"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type { BusError } from "../BusError.ts"
import { encodeReply, type Reply, replyKey, replyOk, replyWith } from "../command/Reply.ts"
import type { AgentStateError, AgentStateShape } from "../state/AgentState.ts"
import type { Value } from "../wire/Value.ts"

export interface Completions {
  /** The command has failed with this error, or has answered this value, if any. */
  readonly complete: (semaphoreName: string | null, error: BusError | undefined, value?: Value) => Effect.Effect<void>
  /** Removes replies that are too old by `monotonicMillis`. */
  readonly expire: (nowMillis: number) => Effect.Effect<void, AgentStateError>
}

/** A reply takes a few hundred bytes. */
const mostReplies = 20_000
/** A message may quote what a client sent. */
const longestText = 4_000

/** Semaphores of queues; nobody waits on them for a completion. */
const isReserved = (name: string): boolean => name.startsWith("/cq_")

const replyOf = (error: BusError | undefined, value: Value | undefined): Reply => {
  if (error === undefined) return value === undefined ? replyOk : replyWith(value)
  const { _tag, ...fields } = error.reason
  const cut = (text: string) => text.slice(0, longestText)
  return {
    type: "Error",
    version: 1,
    tag: _tag,
    message: cut(error.message),
    fields: { ...fields, detail: cut(fields.detail), remedy: cut(fields.remedy) }
  }
}

export const makeCompletions = (state: AgentStateShape, lifetime: Duration.Duration): Completions => {
  /** Oldest first. */
  const given = new Map<string, number>()
  const lifetimeMillis = Duration.toMillis(lifetime)
  const removeFirst = (count: number) => {
    const keys = [...given.keys()].slice(0, count)
    for (const key of keys) given.delete(key)
    return keys.map((key) => [key, undefined] as const)
  }
  const tell = Effect.fnUntraced(function* (name: string, error: BusError | undefined, value: Value | undefined) {
    const key = replyKey(name)
    given.delete(key)
    given.set(key, yield* monotonicMillis)
    const old = given.size > mostReplies ? removeFirst(given.size - mostReplies) : []
    yield* state.complete(name, [...old, [key, encodeReply(replyOf(error, value))]])
  })
  return {
    complete: (name, error, value) => {
      if (name === null) return Effect.void
      if (isReserved(name))
        return Effect.logWarning(
          `A command names ${name}, a semaphore of a queue, for its completion; the agent does not post it.`
        )
      return Effect.catch(tell(name, error, value), (failure) =>
        Effect.logWarning(`A client could not be notified that its command has ended: ${failure.message}`)
      )
    },
    expire: (now) =>
      Effect.suspend(() => {
        const isOld = (at: number) => now - at > lifetimeMillis
        const count = [...given.values()].findIndex((at) => !isOld(at))
        const old = removeFirst(count < 0 ? given.size : count)
        return old.length === 0 ? Effect.void : state.put(old)
      })
  }
}
