// SPDX-License-Identifier: Apache-2.0
/**
 * A rank's end of the channel to the process that started it. A closed channel means that nobody listens any more.
 *
 * Invariant: a rank whose parent is gone ends soon, also out of a wait that cannot be interrupted.
 */
import * as Effect from "effect/Effect"
import * as Logger from "effect/Logger"
import * as Schema from "effect/Schema"
import { graceMillis } from "./RankProcess.ts"

/** What a rank logs, for the people at the terminal of whoever started it. */
export const RankLog = {
  text: Schema.String,
  level: Schema.Literals(["Fatal", "Error", "Warn", "Info", "Debug", "Trace"])
}
export type RankLog = Schema.Struct<typeof RankLog>["Type"]

/** Hands what a rank logs to `tell`. */
export const logsToParent = (tell: (log: RankLog) => Effect.Effect<void>) =>
  Logger.layer([
    Logger.make(({ logLevel, message }) => {
      if (logLevel === "All" || logLevel === "None") return
      const text = (Array.isArray(message) ? message : [message]).map(String).join(" ")
      Effect.runFork(tell({ text, level: logLevel }))
    })
  ])

/** Ends when the message has left. */
export const sendToParent = (message: unknown): Effect.Effect<void> =>
  Effect.callback((resume) => {
    if (process.send === undefined || !process.connected) return resume(Effect.void)
    process.send(message, undefined, undefined, () => resume(Effect.void))
  })

/**
 * Ends when the channel closes: the parent's process is gone, so nobody waits for this rank. Whatever does not end by that
 * within the grace is killed with the process; an exit in order would wait for threads that native code keeps busy.
 */
export const parentGone = Effect.callback<void>((resume) => {
  const gone = () => {
    setTimeout(() => process.kill(process.pid, "SIGKILL"), graceMillis).unref()
    resume(Effect.void)
  }
  process.once("disconnect", gone)
  if (!process.connected) gone()
  return Effect.sync(() => void process.off("disconnect", gone))
})
