// SPDX-License-Identifier: Apache-2.0
/**
 * Which agent serves this process and where its queue and state are, from the environment:
 *
 * | what          | first of                                                                             |
 * | ------------- | ------------------------------------------------------------------------------------ |
 * | agent's rank  | AGENT_RANK; RANK + AGENT_RANK_OFFSET (0 where that is not set)                       |
 * | queue         | TENSOR_BUS_COMMAND_QUEUE_PATH; agent_rankN_command.lmdb in the folder                |
 * | state         | TENSOR_BUS_STATE_PATH; agent_rankN_state.lmdb in the folder                          |
 * | folder        | TENSOR_BUS_DIRECTORY; /tmp, where other clients look                                 |
 *
 * An empty variable counts as unset.
 */

import { join } from "node:path"
import * as Config from "effect/Config"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { type BusError, busError } from "./BusError.ts"

/** Where the agent of a rank keeps its queue and its state. */
export interface BusPlace {
  readonly rank: number
  readonly commandPath: string
  readonly statePath: string
}

const mostRank = 2 ** 31 - 1

const invalid = (name: string, detail: string): BusError =>
  busError("InvalidCommand", {
    op: "bootstrap",
    detail: `${name} ${detail}.`,
    remedy: `Set AGENT_RANK, or RANK and AGENT_RANK_OFFSET, to whole numbers from 0 to ${mostRank}.`
  })

const variable = (name: string): Effect.Effect<string | undefined, BusError> =>
  Effect.mapBoth(Config.option(Config.String(name)), {
    onFailure: () => invalid(name, "cannot be read"),
    onSuccess: (value) => Option.getOrUndefined(Option.filter(value, (text) => text !== ""))
  })

const natural = Effect.fnUntraced(function* (name: string): Effect.fn.Return<number | undefined, BusError> {
  const text = yield* variable(name)
  if (text === undefined) return undefined
  if (!/^\d{1,10}$/.test(text) || Number(text) > mostRank) return yield* invalid(name, `is ${JSON.stringify(text)}`)
  return Number(text)
})

/** Where the files of an agent are. */
export const placeOf = (rank: number, folder = "/tmp"): BusPlace => ({
  rank,
  commandPath: join(folder, `agent_rank${rank}_command.lmdb`),
  statePath: join(folder, `agent_rank${rank}_state.lmdb`)
})

/** `rank` wins over the environment. */
export const bootstrap = Effect.fnUntraced(function* (
  given: { readonly rank?: number; readonly folder?: string } = {}
): Effect.fn.Return<BusPlace, BusError> {
  const agentRank = given.rank ?? (yield* natural("AGENT_RANK"))
  const ownRank = agentRank === undefined ? yield* natural("RANK") : undefined
  if (agentRank === undefined && ownRank === undefined) return yield* invalid("AGENT_RANK", "is not set, nor is RANK")
  const rank = agentRank ?? ownRank! + ((yield* natural("AGENT_RANK_OFFSET")) ?? 0)
  const place = placeOf(rank, given.folder ?? (yield* variable("TENSOR_BUS_DIRECTORY")))
  return {
    rank,
    commandPath: (yield* variable("TENSOR_BUS_COMMAND_QUEUE_PATH")) ?? place.commandPath,
    statePath: (yield* variable("TENSOR_BUS_STATE_PATH")) ?? place.statePath
  }
})
