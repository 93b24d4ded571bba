// SPDX-License-Identifier: Apache-2.0
/**
 * Starts the collector's process and sends it its job.
 *
 * Invariant: the process is gone when the scope has closed.
 */
import { type ChildProcess, fork } from "node:child_process"
import { fileURLToPath } from "node:url"
import { orAfterRunningTime } from "@tensorferry/core/service/RunningTime"
import { inSeconds, sayWaiting, untilWords } from "@tensorferry/core/service/sayWaiting"
import { type MessagePort, portChannel, type ReplayPackChannel } from "@tensorferry/replay/ReplayPackChannel"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { type ReplayError, replayError } from "./ReplayError.ts"
import { CollectorJob, CollectorState } from "./ReplayJob.ts"

const program = fileURLToPath(
  new URL(`./collectorMain${import.meta.url.endsWith(".ts") ? ".ts" : ".js"}`, import.meta.url)
)

/** Most output of the process that is kept for an error message. */
const keptOutput = 4_096

interface Running {
  readonly child: ChildProcess
  readonly output: () => string
  readonly ended: Deferred.Deferred<string>
}

const start = (): Running => {
  // The argument is for people who look at a list of processes.
  const child = fork(program, ["collector"], { stdio: ["ignore", "ignore", "pipe", "ipc"], execArgv: [] })
  const ended = Deferred.makeUnsafe<string>()
  let output = ""
  child.stderr?.on("data", (chunk) => {
    output = (output + String(chunk)).slice(-keptOutput)
  })
  const end = (how: string): void => void Deferred.doneUnsafe(ended, Effect.succeed(how))
  child.on("exit", (code, signal) => end(signal === null ? `ended with exit code ${code}` : `was ended by ${signal}`))
  child.on("error", (error) => {
    if (child.pid === undefined) end(`could not be started: ${error.message}`)
  })
  return { child, output: () => output.trim().split("\n").slice(-3).join(" | "), ended }
}

const stop = ({ child, ended }: Running): Effect.Effect<void> =>
  Effect.suspend(() => {
    // It ends by itself when its channel closes.
    if (child.connected) child.disconnect()
    return Effect.asVoid(
      Effect.timeoutOrElse(Deferred.await(ended), {
        duration: Duration.seconds(2),
        orElse: () =>
          Effect.andThen(
            Effect.sync(() => child.kill("SIGKILL")),
            Deferred.await(ended)
          )
      })
    )
  })

/** The channel of a collector that has filled its ring and serves. */
export const startCollector = Effect.fnUntraced(function* (
  job: CollectorJob,
  deadline: Duration.Duration
): Effect.fn.Return<ReplayPackChannel, ReplayError, Scope.Scope> {
  const running = yield* Effect.acquireRelease(Effect.sync(start), stop)
  const { child, ended, output } = running
  const failed = (detail: string) =>
    replayError("CollectorFailed", {
      scope: "peer",
      detail: `The collector's process ${detail}.${output() === "" ? "" : ` Its last output: ${output()}`}`,
      remedy: "See whether this user may start processes and map shared memory: tensorferry doctor."
    })
  const channel = portChannel(child as MessagePort)
  const state = Deferred.makeUnsafe<void, ReplayError>()
  yield* channel.listen({
    message: (message) => {
      const said = Option.getOrUndefined(Schema.decodeUnknownOption(CollectorState)(message))
      if (said?._tag === "CollectorStarted") channel.send(Schema.encodeSync(CollectorJob)(job))
      if (said?._tag === "CollectorReady") Deferred.doneUnsafe(state, Effect.void)
      if (said?._tag === "CollectorFailed") Deferred.doneUnsafe(state, Effect.fail(failed(`failed: ${said.message}`)))
    },
    closed: () => undefined
  })
  const gone = Effect.flatMap(Deferred.await(ended), (how) => Effect.fail(failed(how)))
  const ready = orAfterRunningTime(Effect.raceFirst(Deferred.await(state), gone), {
    duration: deadline,
    orElse: () => Effect.fail(failed(`was not ready within ${Duration.format(deadline)}`))
  })
  yield* sayWaiting(
    ready,
    (millis) => `Waited ${inSeconds(millis)} for the collector to fill the ring${untilWords(deadline, millis)}.`
  )
  return channel
})
