// SPDX-License-Identifier: Apache-2.0
/**
 * The settings of groups, checked and with defaults filled in.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type { Rank } from "../../base/Ids.ts"
import { type ProcessGroupError, processGroupError } from "../../service/ProcessGroup.ts"

export interface TcpSettings {
  readonly rank: Rank
  readonly size: number
  readonly host: string
  readonly port: number
  readonly token: string | undefined
  readonly deadline: Duration.Duration
  readonly connectDeadline: Duration.Duration
  readonly maxFrameBytes: number
}

/** How long the end of a connection may take: peers that do not answer must not keep a process from ending. */
export const closeGrace = ({ deadline }: TcpSettings): Duration.Duration => Duration.min(deadline, Duration.seconds(5))

export const addressOf = ({ host, port }: TcpSettings): string => `${host.includes(":") ? `[${host}]` : host}:${port}`

/** A duration that an option gives. Fails for one that is none, or is not longer than nothing. */
export const durationOf = (
  rank: Rank,
  option: "deadline" | "connectDeadline",
  input: Duration.Input
): Effect.Effect<Duration.Duration, ProcessGroupError> =>
  Effect.mapError(
    Effect.fromOption(Option.filter(Duration.fromInput(input), (known) => Duration.toMillis(known) > 0)),
    () =>
      processGroupError("RendezvousFailed", [rank], {
        rank,
        scope: "service",
        detail: `${option} is ${typeof input === "string" ? `"${input}"` : String(input)}, which is not a valid time to wait.`,
        remedy: `Give ${option} as a text such as "90 seconds", or as milliseconds above 0.`
      })
  )
