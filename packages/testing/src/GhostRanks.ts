// SPDX-License-Identifier: Apache-2.0
/**
 * A group of many ranks of which only the first few exist: the last of these speaks for all that are missing, which do what it
 * does. So what one rank does in a large job is measured without the job.
 *
 * Invariant: the missing ranks are never alone in anything: their statement in a collective is that of the last real one, and
 * what is posted to them is dropped.
 */
import type { Rank } from "@tensorferry/core/base/Ids"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import * as Effect from "effect/Effect"

/** What a rank does with its group. */
export interface GroupWatch {
  /** Called for each collective that a rank enters. */
  readonly collective: (label: string) => void
  /** Called for each post that a rank sends. */
  readonly post: (to: ReadonlyArray<Rank>, payload: Uint8Array) => void
}

/** The group as one of `size` ranks. */
export const withGhosts = (real: ProcessGroupShape, size: number, watch: GroupWatch): ProcessGroupShape => {
  const collective = <A, E>(label: string, effect: Effect.Effect<A, E>) =>
    Effect.suspend(() => {
      watch.collective(label)
      return effect
    })
  const spread = (payloads: ReadonlyArray<Uint8Array>) =>
    Array.from({ length: size }, (_, rank) => payloads[Math.min(rank, real.size - 1)]!)
  return {
    ...real,
    size,
    members: Array.from({ length: size }, (_, rank) => rank),
    allGather: (label, payload) => collective(label, Effect.map(real.allGather(label, payload), spread)),
    broadcast: (label, root, payload) => collective(label, real.broadcast(label, root, payload)),
    barrier: (label) => collective(label, real.barrier(label)),
    lane: (name) => Effect.map(real.lane(name), (lane) => withGhosts(lane, size, watch)),
    post: (to, payload) =>
      Effect.suspend(() => {
        watch.post(to, payload)
        const present = to.filter((rank) => rank < real.size)
        return real.post(present, payload)
      })
  }
}
