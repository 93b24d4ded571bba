/**
 * What both ends of a TCP group are told, with defaults filled in.
 */
import * as Duration from "effect/Duration"
import type { Rank } from "../../base/Ids.ts"

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
