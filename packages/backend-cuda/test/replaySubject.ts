/**
 * What the replay cases of the conformance kit judge here: the backend on one device, simulated or real, as its
 * `replayTesting` gives it, with what the caller knows better. Loads no simulated driver by itself.
 */
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { ReplayTesting } from "@tensorferry/core/service/ReplayTesting"
import { packageName } from "@tensorferry/gpu/Addon"
import { ReplaySubject, type ReplaySubjectShape } from "@tensorferry/testing/conformance/ReplaySubject"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type { CudaOptions } from "../src/options.ts"
import { type HoldQueues, layer } from "../src/ReplayTesting.ts"

export interface SubjectHooks extends Pick<ReplaySubjectShape, "registered" | "failRegistration" | "ticks"> {
  readonly hold?: HoldQueues
}

export const replaySubjectLayer = (options: CudaOptions, { hold, ...known }: SubjectHooks) =>
  Layer.effect(
    ReplaySubject,
    Effect.gen(function* () {
      const memory = yield* HostMemory
      const device = { family: options.vendor ?? "cuda", index: options.device ?? 0 }
      const built = yield* Layer.build(layer(device, options, packageName, hold))
      const testing = Context.get(built, ReplayTesting)
      return {
        ...testing,
        ...known,
        build: (settings) => Effect.orDie(testing.build(settings)),
        allocateHost: memory.allocate
      } satisfies ReplaySubjectShape
    })
  )
