// SPDX-License-Identifier: Apache-2.0
/**
 * The ranks of a job as processes that meet over TCP: rank 0 serves a hub and is a member itself.
 *
 * Rules
 * - Without a token the group stays on the loopback interface. With one, both ends of every connection prove that they
 *   know it before anything else is read; it never travels. Traffic itself is neither encrypted nor authenticated.
 * - `make` ends when all ranks have joined, on every rank.
 * - All collectives pass through rank 0, so rank 0 must leave last: when it is gone, every other rank's calls fail and
 *   name it, also those of subgroups that it does not belong to.
 * - Deadlines follow the machine's clock, minus the time in which this process did not run.
 */
import { lookup } from "node:dns/promises"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as EffectScope from "effect/Scope"
import type { Rank } from "../base/Ids.ts"
import {
  ProcessGroup,
  type ProcessGroupError,
  type ProcessGroupShape,
  processGroupError
} from "../service/ProcessGroup.ts"
import { join } from "./internal/client.ts"
import { rendezvousFailed } from "./internal/errors.ts"
import { makeGroup } from "./internal/group.ts"
import { serve } from "./internal/server.ts"
import { durationOf, type TcpSettings } from "./internal/settings.ts"

/** Where the ranks of a group meet, and how long they wait. */
export interface TcpOptions {
  /** This process's rank, from 0. */
  readonly rank: Rank
  /** Number of processes of the job, equal on all ranks. */
  readonly size: number
  /** Where rank 0 listens and the others find it. */
  readonly host: string
  /** 0 on rank 0 takes any free port; `onListening` gets its number. */
  readonly port: number
  /** No-progress deadline of waits; 60 seconds by default. Give the same on every rank. */
  readonly deadline?: Duration.Input
  /** Shared secret; needed for any interface but loopback. */
  readonly token?: string
  /** How long all ranks have to join; 5 minutes by default, because launchers do not start them at once. */
  readonly connectDeadline?: Duration.Input
  /** Longest frame in bytes, that is, all payloads of one collective together; 1 GiB by default, below 4 GiB. */
  readonly maxFrameBytes?: number
  /** On rank 0, called with the port as soon as the others may connect. */
  readonly onListening?: (port: number) => Effect.Effect<void>
}

const isLoopbackAddress = (address: string): boolean =>
  /^127\.\d+\.\d+\.\d+$/.test(address) || address === "::1" || address.startsWith("::ffff:127.")

/** A name is loopback if all its addresses are; a name that cannot be resolved is not. */
const isLoopback = (host: string): Effect.Effect<boolean> =>
  isLoopbackAddress(host) || host === "localhost"
    ? Effect.succeed(true)
    : Effect.tryPromise(() => lookup(host, { all: true })).pipe(
        Effect.map((found) => found.length > 0 && found.every(({ address }) => isLoopbackAddress(address))),
        Effect.orElseSucceed(() => false)
      )

/** Joins the group; this rank leaves when the scope ends. Fails with RendezvousFailed or InvalidGroup. */
export const make = Effect.fnUntraced(function* (
  options: TcpOptions
): Effect.fn.Return<ProcessGroupShape, ProcessGroupError, EffectScope.Scope> {
  const { rank, size, host, token } = options
  if (!Number.isInteger(size) || !Number.isInteger(rank) || size < 1 || rank < 0 || rank >= size) {
    return yield* processGroupError("InvalidGroup", [], {
      detail: `Rank ${rank} does not exist in a group of ${size}.`,
      remedy: "Give whole numbers, the rank from 0 to size - 1."
    })
  }
  if (!Number.isInteger(options.port) || options.port < 0 || options.port > 65_535) {
    return yield* rendezvousFailed(
      rank,
      [rank],
      `${options.port} is not a port.`,
      "Give a port from 1 to 65535 (TENSORFERRY_PORT); 0 on rank 0 takes any free one."
    )
  }
  if ((token === undefined || token === "") && !(yield* isLoopback(host))) {
    return yield* rendezvousFailed(
      rank,
      [rank],
      `${host} is not a loopback address, and there is no token to keep strangers out.`,
      "Set TENSORFERRY_TOKEN to the same secret on every rank, or use 127.0.0.1."
    )
  }
  const settings: TcpSettings = {
    rank,
    size,
    host,
    port: options.port,
    token,
    deadline: yield* durationOf(rank, "deadline", options.deadline ?? "60 seconds"),
    connectDeadline: yield* durationOf(rank, "connectDeadline", options.connectDeadline ?? "5 minutes"),
    maxFrameBytes: Math.min(options.maxFrameBytes ?? 2 ** 30, 2 ** 32 - 1)
  }
  return makeGroup(yield* rank === 0 ? serve(settings, options.onListening ?? (() => Effect.void)) : join(settings))
})

/** The group of processes that meet at an address. Rank 0 serves. */
export const layer = (options: TcpOptions): Layer.Layer<ProcessGroup, ProcessGroupError> =>
  Layer.effect(ProcessGroup, make(options))
