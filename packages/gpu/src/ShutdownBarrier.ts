// SPDX-License-Identifier: Apache-2.0
/**
 * How ranks part: memory that peers have mapped should stay until they have closed their mappings, also at the very end.
 *
 * Invariant: each driver of a rank says farewell once, after it has closed its mappings, and nobody waits for it there. Only
 * whoever is about to give the memory back waits, and not for long: a peer that lives on may keep its mappings.
 *
 * The announcements go through a group of their own, all ranks in reverse order, so that they never meet the job's collectives.
 */
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type { Sharing } from "./Block.ts"

const patience = Duration.seconds(2)

interface Parting {
  readonly sharing: Sharing
  readonly fiber: Fiber.Fiber<unknown>
}

/** An empty list of partings; each device memory has one. */
export const makeShutdownBarrier = () => {
  const partings = new Set<Parting>()

  return {
    /** Tells the others that this rank's driver has closed; `parted` runs if and when all have. */
    announce: (group: ProcessGroupShape, driver: string, sharing: Sharing, parted: () => void): Effect.Effect<void> =>
      Effect.gen(function* () {
        const reversed = Array.from({ length: group.size }, (_, rank) => group.size - 1 - rank)
        const meeting = Effect.flatMap(group.subgroup(reversed), (all) => all.barrier(`${driver}/farewell`))
        const heard = Effect.ignore(Effect.andThen(meeting, Effect.sync(parted)))
        const fiber = yield* Effect.forkDetach(heard, { startImmediately: true })
        const parting = { sharing, fiber }
        partings.add(parting)
        fiber.addObserver(() => partings.delete(parting))
      }),
    /** Waits for the shutdown of ranks that may have memory of this one mapped. */
    wait: Effect.suspend(() => {
      const open = [...partings].filter(({ sharing }) => !sharing.isEmpty())
      return Effect.asVoid(
        Effect.timeoutOption(
          Effect.forEach(open, ({ fiber }) => Fiber.await(fiber), { concurrency: "unbounded", discard: true }),
          patience
        )
      )
    })
  }
}

/** How drivers report their end, and how memory waits for those of others. */
export type ShutdownBarrier = ReturnType<typeof makeShutdownBarrier>
