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
import { inSpan } from "../../service/Spans.ts"
import { mostLaneBytes } from "./frames.ts"
import { type Circle, circleKey } from "./hub.ts"
import type { Inbox } from "./inbox.ts"

/** One rank's access to the others. Ranks are those of the whole job. */
export interface Endpoint {
  readonly rank: Rank
  readonly size: number
  readonly deadline: Duration.Duration
  /**
   * Enters the next collective of this circle; its members' payloads in that order. The call counts as made as soon as the
   * effect runs; an interrupted wait does not take it back. The result belongs to the caller.
   */
  readonly exchange: (
    circle: Circle,
    label: string,
    payload: Uint8Array
  ) => Effect.Effect<ReadonlyArray<Uint8Array>, ProcessGroupError>
  readonly reportProgress: Effect.Effect<void>
  /** Sends to these ranks of the circle. */
  readonly post: (circle: Circle, to: ReadonlyArray<Rank>, payload: Uint8Array) => void
  readonly listen: Inbox["listen"]
}

const nothing = new Uint8Array(0)

/** Labels are for people, and travel with every message and failure. */
const shortLabel = (label: string): string =>
  label.length <= 1024 ? label : `${label.slice(0, 1000)} … ${label.length} characters`

/** Counts the lanes of each name. Numbers are never used again: members close what they had in a lane when they like. */
const makeLanes = () => {
  const opened = new Map<string, number>()
  return (key: string): number => {
    const number = opened.get(key) ?? 0
    opened.set(key, number + 1)
    return number
  }
}

/** Lanes are named by programs; a name that is too long keeps its end, which tells it from others. */
const shortLane = (lane: string): string =>
  Buffer.byteLength(lane) <= mostLaneBytes
    ? lane
    : Buffer.from(lane)
        .subarray(-mostLaneBytes + 4)
        .toString("latin1")
        .replace(/[^ -~]/g, "?")

const groupOf = (endpoint: Endpoint, circle: Circle, lanes: ReturnType<typeof makeLanes>): ProcessGroupShape => {
  const { members } = circle
  const rank = members.indexOf(endpoint.rank)
  const size = members.length
  // A copy, so that the caller may use its buffer again even where the wait was interrupted.
  const exchange = (label: string, payload: Uint8Array) =>
    inSpan(
      Effect.suspend(() => endpoint.exchange(circle, shortLabel(label), new Uint8Array(payload))),
      "ProcessGroup.wait",
      () => ({ for: shortLabel(label) })
    )
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
      return Effect.succeed(groupOf(endpoint, { members: jobRanks, lane: circle.lane }, lanes))
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
    lane: (name) =>
      Effect.sync(() => {
        const number = lanes(circleKey({ members, lane: `${circle.lane}/${name}` }))
        return groupOf(endpoint, { members, lane: shortLane(`${circle.lane}/${name} ${number}`) }, lanes)
      }),
    post: (to, payload) =>
      Effect.sync(() => {
        const ranks = to.flatMap((member) => (member !== rank && isMember(member) ? [members[member]!] : []))
        if (ranks.length > 0) endpoint.post(circle, ranks, payload)
      }),
    listen: ({ post, gone }) =>
      Effect.asVoid(
        Effect.acquireRelease(
          Effect.sync(() =>
            endpoint.listen(circle, {
              post: (from, payload) => post(members.indexOf(from), payload),
              gone: (from) => gone(members.indexOf(from))
            })
          ),
          (stop) => Effect.sync(stop)
        )
      )
  }
}

/** The group of the whole job. */
export const makeGroup = (endpoint: Endpoint): ProcessGroupShape =>
  groupOf(endpoint, { members: Array.from({ length: endpoint.size }, (_, rank) => rank), lane: "" }, makeLanes())
