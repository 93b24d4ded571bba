// SPDX-License-Identifier: Apache-2.0
/**
 * The ranks of a job as fibers of one process: for tests, simulations, and jobs of one rank.
 *
 * Invariant: behaves as a group of processes would. Payloads are copied, so no two ranks ever share bytes, and deadlines
 * follow Effect's clock.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type * as EffectScope from "effect/Scope"
import type { Rank } from "../base/Ids.ts"
import { ProcessGroup, type ProcessGroupShape } from "../service/ProcessGroup.ts"
import { monotonicMillis } from "../service/RunningTime.ts"
import { makeCalls } from "./internal/calls.ts"
import { type Endpoint, makeGroup } from "./internal/group.ts"
import { type Delivery, makeHub } from "./internal/hub.ts"
import { makeInbox } from "./internal/inbox.ts"

/** Options of a group of fibers. */
export interface InProcessOptions {
  /** No-progress deadline; 60 seconds by default. */
  readonly deadline?: Duration.Duration
}

/** A member of a group of fibers. */
export interface InProcessGroup extends ProcessGroupShape {
  /** Makes the rank gone, as if its process had been killed. */
  readonly leave: Effect.Effect<void>
}

/** One group of `size` ranks, seen by each of them; all ranks leave when the scope ends. */
export const makeInProcessGroups = Effect.fnUntraced(function* (
  size: number,
  options: InProcessOptions = {}
): Effect.fn.Return<ReadonlyArray<InProcessGroup>, never, EffectScope.Scope> {
  const deadline = options.deadline ?? Duration.seconds(60)
  const hub = makeHub({ deadlineMillis: Duration.toMillis(deadline) })
  const calls = makeCalls()
  const inboxes = Array.from({ length: size }, makeInbox)

  const dispatch = (deliveries: ReadonlyArray<Delivery>): void => {
    for (const { call, result } of deliveries) {
      calls.settle(
        call,
        Result.map(result, (payloads) => payloads.map((payload) => new Uint8Array(payload)))
      )
    }
  }

  /** Wakes at each expiry of the hub; progress since then moves the next one. */
  const watch = Effect.gen(function* () {
    while (true) {
      const now = yield* monotonicMillis
      dispatch(hub.expire(now))
      // At least a microsecond, the clock's step: a rest that is rounded away would not let time pass.
      yield* Effect.sleep(Duration.millis(Math.max(0.001, hub.nextExpiry() - now)))
    }
  })

  const endpointOf = (rank: Rank): Endpoint => ({
    rank,
    size,
    deadline,
    exchange: (circle, label, payload) =>
      Effect.flatMap(monotonicMillis, (now) =>
        Effect.raceFirst(
          calls.make(label, (call) => dispatch(hub.arrive({ rank, call, circle, label, payload }, now))),
          watch
        )
      ),
    reportProgress: Effect.map(monotonicMillis, (now) => hub.progress(rank, now)),
    post: (circle, to, payload) => {
      for (const member of to) inboxes[member]!.put(circle, rank, new Uint8Array(payload))
    },
    listen: inboxes[rank]!.listen
  })

  const leave = (rank: Rank, kind: "left" | "lost", detail: string) =>
    Effect.sync(() => {
      dispatch(hub.leave(rank, { kind, detail }))
      for (const [member, inbox] of inboxes.entries()) if (member !== rank) inbox.lose(rank)
    })

  const groups = Array.from({ length: size }, (_, rank) => ({
    ...makeGroup(endpointOf(rank)),
    leave: leave(rank, "lost", "it was made to fail")
  }))
  yield* Effect.addFinalizer(() =>
    Effect.forEach(groups, ({ rank }) => leave(rank, "left", "its scope ended"), { discard: true })
  )
  return groups
})

/** A job of one rank: no other process, no socket. */
export const makeSingle = (
  options: InProcessOptions = {}
): Effect.Effect<ProcessGroupShape, never, EffectScope.Scope> =>
  Effect.map(makeInProcessGroups(1, options), (groups) => groups[0]!)

/** A group of one rank. */
export const layerSingle = (options: InProcessOptions = {}): Layer.Layer<ProcessGroup> =>
  Layer.effect(ProcessGroup, makeSingle(options))
