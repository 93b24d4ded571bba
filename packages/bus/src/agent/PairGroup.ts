// SPDX-License-Identifier: Apache-2.0
/**
 * How the agents of a pair form the group in which they move tensors. Each pair has a group of its own, of its members
 * only: what breaks one pair leaves the others alone, and a pair with a restarted agent is simply made again.
 */

import * as ProcessGroupTcp from "@tensorferry/core/group/ProcessGroupTcp"
import {
  ProcessGroup,
  type ProcessGroupError,
  type ProcessGroupShape,
  processGroupError
} from "@tensorferry/core/service/ProcessGroup"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { awaitEntries, type KeyValueError, type KeyValueStoreShape } from "../store/KeyValueStore.ts"
import type { PairMembers } from "./Registration.ts"

/** Which pair wants a group, who its members are, and which of them asks. */
export interface PairGroupRequest {
  readonly pair: string
  readonly members: PairMembers
  /** This agent's place among the members. */
  readonly rank: number
  readonly store: KeyValueStoreShape
  /** Of what the group does once it is there. */
  readonly deadline: Duration.Duration
  /** How long its members may take to meet. */
  readonly connectDeadline: Duration.Duration
}

/** Makes the process group of a pair of agents. It lives as long as the scope. */
export type MakePairGroup = (
  request: PairGroupRequest
) => Effect.Effect<ProcessGroupShape, ProcessGroupError | KeyValueError, Scope.Scope>

/** Where the group of a pair meets, and what its members prove to each other. */
export interface TcpGroupOptions {
  /** Where other agents reach this one; 127.0.0.1 by default. */
  readonly host?: string
  readonly token?: string
}

/** Over TCP: the pair's first agent listens on a port that the others find in the store. */
export const overTcp =
  (options: TcpGroupOptions = {}): MakePairGroup =>
  ({ pair, members, rank, store, deadline, connectDeadline }) =>
    Effect.gen(function* () {
      const key = `${groupPrefix(pair)}${members.digest}`
      const size = members.agents.length
      const common = {
        rank,
        size,
        deadline,
        connectDeadline,
        ...(options.token === undefined ? {} : { token: options.token })
      }
      if (rank === 0) {
        const host = options.host ?? "127.0.0.1"
        let failure: KeyValueError | undefined
        const group = yield* Effect.ensuring(
          ProcessGroupTcp.make({
            ...common,
            host,
            port: 0,
            onListening: (port) =>
              Effect.catch(store.put(key, JSON.stringify({ host, port }), { isEphemeral: true }), (error) =>
                Effect.sync(() => {
                  failure = error
                })
              )
          }),
          Effect.ignore(store.remove(key))
        )
        if (failure !== undefined) return yield* failure
        return group
      }
      const text = yield* awaitEntries(
        store,
        key,
        (entries) => Effect.succeed(entries.get(key)),
        connectDeadline,
        () => `Pair ${pair}: agent ${members.agents[0]}, the first of it, did not open the group`
      )
      const { host, port } = JSON.parse(text) as { readonly host: string; readonly port: number }
      return yield* ProcessGroupTcp.make({ ...common, host, port })
    })

/** Within a group that all agents belong to already, by rank of agent. */
export const withinGroup =
  (group: ProcessGroupShape): MakePairGroup =>
  ({ members }) =>
    members.agents.every((rank) => rank < group.size)
      ? group.subgroup(members.agents)
      : Effect.fail(
          processGroupError("InvalidGroup", members.agents, {
            detail: `The agents ${members.agents.join(", ")} are not all in a group of ${group.size}.`,
            remedy: "Give agents the ranks of the group."
          })
        )

/** The group that is in the context. */
export const withinContext: Effect.Effect<MakePairGroup, never, ProcessGroup> = Effect.map(ProcessGroup, withinGroup)

/** What the keys of a pair's group begin with in the key-value store. */
export const groupPrefix = (pair: string): string => `group/${encodeURIComponent(pair)}/`
