// SPDX-License-Identifier: Apache-2.0
/** Drivers that call themselves pairwise and are not. */
import {
  type CopyDriverShape,
  copyDriverError,
  type PeerFlags,
  type Program
} from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import * as Effect from "effect/Effect"
import type { DriverLie } from "./Lie.ts"

/** A lie that needs a group of its own. */
export interface PairwiseLie extends Pick<DriverLie, "name" | "caughtBy"> {
  /** The driver with the fault built in. */
  readonly tell: (honest: CopyDriverShape, group: ProcessGroupShape) => CopyDriverShape
}

const flagCase = "what a rank states in flags is seen by its peer alone, never taken back, and wakes it where it sleeps"

/** A driver whose flags differ from the honest ones in this. */
const flagLie = (name: string, differing: (honest: PeerFlags) => Partial<PeerFlags>): PairwiseLie => ({
  name,
  caughtBy: flagCase,
  tell: (honest) => {
    const { flags } = honest
    return flags === undefined ? honest : { ...honest, flags: { ...flags, ...differing(flags) } }
  }
})

/** Lies of a driver over memory that all ranks see, with flags. */
export const pairwiseLies: ReadonlyArray<PairwiseLie> = [
  {
    name: "has all ranks meet in start",
    caughtBy: "a known batch needs only the ranks that exchange something",
    tell: (honest, group) => ({
      ...honest,
      start: (program) => {
        const met = Effect.mapError(group.barrier("start"), (error) =>
          copyDriverError("TransportFailed", { op: "run", detail: error.message, remedy: "None." })
        )
        return Effect.andThen(met, honest.start(program))
      }
    })
  },
  {
    name: "does not start again after a cancel",
    caughtBy: "a start that the peer does not answer is cancelled, and starts again",
    tell: (honest) => {
      const cancelled = new WeakSet<Program>()
      return {
        ...honest,
        start: (program) =>
          cancelled.has(program)
            ? Effect.fail(
                copyDriverError("InvalidProgram", { op: "run", detail: "It was cancelled.", remedy: "None." })
              )
            : Effect.map(honest.start(program), (inFlight) => ({
                ...inFlight,
                cancel: Effect.tap(inFlight.cancel, () => Effect.sync(() => cancelled.add(program)))
              }))
      }
    }
  },
  {
    name: "moves what it prepared last with these peers",
    caughtBy: "memory that is new on one rank is agreed on with ranks that are ahead and at rest",
    tell: (honest) => {
      let first: Program | undefined
      return {
        ...honest,
        start: (program) => {
          if (program.messages.length > 0) first ??= program
          return honest.start(program.messages.length > 0 ? first! : program)
        }
      }
    }
  },
  flagLie("says that a peer sees what is stated nowhere", () => ({ tell: () => true })),
  flagLie("wakes nobody", () => ({ sleep: () => {} })),
  flagLie("wakes, and does not say so", () => ({ watch: () => () => {} })),
  flagLie("keeps all kinds of statements in one place", (honest) => ({
    tell: (to, _flag, value) => honest.tell(to, "Ready", value),
    read: (from) => honest.read(from, "Ready")
  })),
  flagLie("counts the latest statement, not the highest", (honest) => {
    let offset = 0
    return {
      tell: (to, flag, value) => {
        offset += 1
        return honest.tell(to, flag, value + offset * 2 ** 20)
      },
      read: (from, flag) => honest.read(from, flag) % 2 ** 20
    }
  }),
  flagLie("reads what the rank itself has stated", (honest) => {
    const own = new Map<string, number>()
    return {
      tell: (to, flag, value) => {
        own.set(flag, value)
        return honest.tell(to, flag, value)
      },
      read: (_from, flag) => own.get(flag) ?? 0
    }
  })
]
