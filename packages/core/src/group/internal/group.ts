// SPDX-License-Identifier: Apache-2.0
/**
 * A `ProcessGroup` over any transport that can exchange payloads between members: numbering, subgroups, and the three
 * collectives, which are all one exchange. The operation is part of the label, so ranks in different operations of the
 * same name, or in broadcasts from different roots, do not meet by accident.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type { Rank } from "../../base/Ids.ts"
import { type ProcessGroupError, type ProcessGroupShape, processGroupError } from "../../service/ProcessGroup.ts"

/** One rank's access to the others. Ranks are those of the whole job. */
export interface Endpoint {
  readonly rank: Rank
  readonly size: number
  readonly deadline: Duration.Duration
  /**
   * Enters the next collective of these members; their payloads in that order. The call counts as made as soon as the
   * effect runs; an interrupted wait does not take it back. The result belongs to the caller.
   */
  readonly exchange: (
    members: ReadonlyArray<Rank>,
    label: string,
    payload: Uint8Array
  ) => Effect.Effect<ReadonlyArray<Uint8Array>, ProcessGroupError>
  readonly reportProgress: Effect.Effect<void>
  /** Reaches the other members of this list. */
  readonly alert: (members: ReadonlyArray<Rank>) => Effect.Effect<void>
  /** Who has alerted the members of this list. */
  readonly alerts: (members: ReadonlyArray<Rank>) => ReadonlyArray<Rank>
}

const nothing = new Uint8Array(0)

/** Labels are for people, and travel with every message and failure. */
const shortLabel = (label: string): string =>
  label.length <= 1024 ? label : `${label.slice(0, 1000)} … ${label.length} characters`

const groupOf = (endpoint: Endpoint, members: ReadonlyArray<Rank>): ProcessGroupShape => {
  const rank = members.indexOf(endpoint.rank)
  const size = members.length
  // A copy, so that the caller may use its buffer again even where the wait was interrupted.
  const exchange = (label: string, payload: Uint8Array) =>
    Effect.suspend(() => endpoint.exchange(members, shortLabel(label), new Uint8Array(payload)))
  const invalid = (ranks: ReadonlyArray<Rank>, detail: string, remedy: string) =>
    processGroupError("InvalidGroup", ranks, { rank: endpoint.rank, detail, remedy })
  const isMember = (number: number) => Number.isInteger(number) && number >= 0 && number < size

  const broadcast = (label: string, root: Rank, payload: Uint8Array) =>
    isMember(root)
      ? Effect.map(
          exchange(`broadcast "${label}" from rank ${members[root]}`, root === rank ? payload : nothing),
          (payloads) => payloads[root]!
        )
      : Effect.fail(
          invalid(
            [],
            `Broadcast "${label}" has root ${root}, but the group has ${size} members.`,
            "Give a root from 0."
          )
        )

  const subgroup = (ranks: ReadonlyArray<Rank>) =>
    Effect.suspend(() => {
      const jobRanks = ranks.filter(isMember).map((number) => members[number]!)
      const wrong = (detail: string) =>
        Effect.fail(
          invalid(jobRanks, detail, `Give distinct numbers from 0 to ${size - 1}, this member's ${rank} included.`)
        )
      if (ranks.length === 0) return wrong("A group needs at least one member.")
      const outside = ranks.find((number) => !isMember(number))
      if (outside !== undefined) return wrong(`Rank ${outside} is outside a group of ${size}.`)
      const repeated = ranks.find((number, at) => ranks.indexOf(number) !== at)
      if (repeated !== undefined) return wrong(`Rank ${repeated} is repeated.`)
      if (!ranks.includes(rank)) return wrong(`This member, rank ${rank}, is not in the group.`)
      return Effect.succeed(groupOf(endpoint, jobRanks))
    })

  const reportSteadily = Effect.andThen(
    endpoint.reportProgress,
    Effect.delay(endpoint.reportProgress, Duration.millis(Duration.toMillis(endpoint.deadline) / 4)).pipe(
      Effect.forever
    )
  )

  const keepAlive = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.acquireUseRelease(
      Effect.forkChild(reportSteadily),
      () => effect,
      (reporter) => Fiber.interrupt(reporter)
    )

  return {
    rank,
    size,
    members,
    deadline: endpoint.deadline,
    allGather: (label, payload) => exchange(`allGather "${label}"`, payload),
    broadcast,
    barrier: (label) => Effect.asVoid(exchange(`barrier "${label}"`, nothing)),
    subgroup,
    reportProgress: endpoint.reportProgress,
    keepAlive,
    alert: endpoint.alert(members),
    alerts: Effect.sync(() => endpoint.alerts(members).map((sender) => members.indexOf(sender)))
  }
}

/** The group of the whole job. */
export const makeGroup = (endpoint: Endpoint): ProcessGroupShape =>
  groupOf(
    endpoint,
    Array.from({ length: endpoint.size }, (_, rank) => rank)
  )
