// SPDX-License-Identifier: Apache-2.0
/**
 * A rank's process, seen from inside: gets its work over the parent's channel, joins the group of the ranks, tells what it
 * finds out, and ends with the parent.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import { describeThrown } from "@tensorferry/core/base/UnknownCause"
import { makeSingle } from "@tensorferry/core/group/ProcessGroupInProcess"
import * as ProcessGroupTcp from "@tensorferry/core/group/ProcessGroupTcp"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import * as Cause from "effect/Cause"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { toFailure } from "../job/JobSpec.ts"
import { logsToParent, parentGone, sendToParent } from "../job/parentChannel.ts"
import { receiveJob } from "../job/receiveJob.ts"
import { FromRank, ToRank } from "./rankProcesses.ts"

const encode = Schema.encodeSync(FromRank)

const send = (message: typeof FromRank.Type): Effect.Effect<void> => sendToParent(encode(message))

/** Runs `body` as this rank's part of the work, with its group. */
export const runRankProgram = <Work, News, E>(
  codecs: { readonly work: Schema.Codec<Work, Schema.Json>; readonly news: Schema.Codec<News, Schema.Json> },
  body: (
    work: Work,
    group: ProcessGroupShape,
    tell: (news: News) => Effect.Effect<void>
  ) => Effect.Effect<void, E, Scope.Scope>
): void => {
  const tell = (news: News) => send({ _tag: "Told", news: Schema.encodeSync(codecs.news)(news) })
  const part = Effect.gen(function* () {
    const { rank, size, port, deadlineMillis, work } = yield* receiveJob(ToRank)
    const deadline = Duration.millis(deadlineMillis)
    const group =
      size === 1
        ? yield* makeSingle({ deadline })
        : yield* ProcessGroupTcp.make({
            rank,
            size,
            host: "127.0.0.1",
            port,
            deadline,
            onListening: (bound) => send({ _tag: "Listening", port: bound })
          })
    yield* send({ _tag: "Joined" })
    yield* body(yield* Schema.decodeEffect(codecs.work)(work), group, tell)
  })
  const main = Effect.gen(function* () {
    const logs = logsToParent((log) => send({ _tag: "Log", ...log }))
    const exit = yield* Effect.exit(Effect.provide(Effect.scoped(part), logs))
    if (Exit.isSuccess(exit)) return
    const { message, reason } = toFailure(Cause.squash(exit.cause))
    // Only what nobody meant to fail with needs a place in the code.
    const defect = exit.cause.reasons.find((one) => one._tag === "Die")?.defect
    yield* send({ _tag: "Failed", reason, message: defect === undefined ? message : describeThrown(defect) })
    process.exitCode = 1
  })
  const leave = Effect.sync(() => {
    if (process.connected) process.disconnect()
  })
  NodeRuntime.runMain(Effect.ensuring(Effect.raceFirst(main, parentGone), leave), { disableErrorReporting: true })
}
