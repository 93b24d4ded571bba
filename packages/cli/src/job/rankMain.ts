#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
/**
 * A rank process started by `reshard`: gets its job over the parent's channel, runs it, answers with a report or a
 * failure. Ends when the parent goes away.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as ProcessGroupTcp from "@tensorferry/core/group/ProcessGroupTcp"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import * as Cause from "effect/Cause"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Schema from "effect/Schema"
import { FromRank, ToRank, toFailure } from "./JobSpec.ts"
import { logsToParent, parentGone, sendToParent } from "./parentChannel.ts"
import { rankJob } from "./RankJob.ts"
import { receiveJob } from "./receiveJob.ts"

const encode = Schema.encodeSync(FromRank)

const tell = (message: FromRank): Effect.Effect<void> => sendToParent(encode(message))

/** At most this many progress messages per second; the last of a phase always goes. */
const progressMillis = 100

const makeProgress = () => {
  let last = 0
  return (phase: Parameters<Parameters<typeof rankJob>[1]>[0], done: number, total: number) =>
    Effect.suspend(() => {
      const now = performance.now()
      if (done < total && now - last < progressMillis) return Effect.void
      last = now
      return tell({ _tag: "Progress", phase, done, total })
    })
}

/** Milliseconds since the process began, when this program was loaded. */
const loaded = performance.now()

const job = Effect.gen(function* () {
  const { spec, rank, size, port } = yield* receiveJob(ToRank)
  const received = performance.now()
  const group = yield* ProcessGroupTcp.make({
    rank,
    size,
    host: "127.0.0.1",
    port,
    deadline: Duration.millis(spec.deadlineMillis),
    // All ranks run by now. Rank 0 knows who is missing, so it fails first and reports to the others.
    connectDeadline: Duration.millis(Math.max(1_000, spec.deadlineMillis) + (rank === 0 ? 0 : 1_000)),
    onListening: (bound) => tell({ _tag: "Listening", port: bound })
  })
  yield* tell({ _tag: "Joined" })
  const earlier = [
    { name: "process.load", start: 0, end: loaded },
    { name: "process.wait", start: loaded, end: received },
    { name: "group.join", start: received, end: performance.now() }
  ]
  return yield* Effect.provideService(rankJob(spec, makeProgress(), earlier), ProcessGroup, group)
})

const logs = logsToParent((log) => tell({ _tag: "Log", ...log }))

const main = Effect.gen(function* () {
  yield* tell({ _tag: "Started" })
  const exit = yield* Effect.exit(Effect.provide(Effect.scoped(job), logs))
  if (Exit.isSuccess(exit)) {
    yield* tell({ _tag: "Finished", report: exit.value })
    return
  }
  yield* tell({ _tag: "Failed", failure: toFailure(Cause.squash(exit.cause)) })
  process.exitCode = 1
})

const program = Effect.raceFirst(main, parentGone).pipe(
  Effect.ensuring(
    Effect.sync(() => {
      if (process.connected) process.disconnect()
    })
  )
)

NodeRuntime.runMain(program, { disableErrorReporting: true })
