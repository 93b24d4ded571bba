// SPDX-License-Identifier: Apache-2.0
/**
 * One rank of the bench of changes between hosts: rank 0 has weights of bfloat16, rank 1 uses them. Takes its place as JSON; then
 * one line per request, answered by one line. Times are of the machine's clock, which both ranks read.
 */
import { CopyDriver } from "@tensorferry/backend-tcp"
import { TensorEngine as HostEngine } from "@tensorferry/backend-torch-copy"
import { copyServiceLayer } from "@tensorferry/core/copy/CopyServiceLayer"
import { executeReshardPlan } from "@tensorferry/core/reshard/executeReshardPlan"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { type Tensor, tensorBytes } from "@tensorferry/core/tensor/Tensor"
import { makeDeltaUpdates } from "@tensorferry/model/delta/makeDeltaUpdates"
import { makeRandom } from "@tensorferry/testing/mutate"
import { dictOf, plansOf, sidesOf, specsOf } from "@tensorferry/testing/planning/meshSides"
import { runPrinting } from "@tensorferry/testing/RankProcesses"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type { BenchOptions } from "./delta-hosts.ts"
import { groupOf, type RankPlace, seconds, serve } from "./rank.ts"

/** Where a rank finds the other one, and what it has. */
export interface DeltaRankInput extends RankPlace {
  readonly address: string
  readonly tensors: number
  /** Of bfloat16, in each tensor. */
  readonly elements: number
}

/** What the bench asks of a rank: that a share of the elements change, or an update. */
export type DeltaRankRequest =
  | { readonly change: number }
  | { readonly update: "whole" }
  | { readonly update: "changes"; readonly options: BenchOptions }

const input = JSON.parse(process.argv[2]!) as DeltaRankInput
const { rank, address, tensors, elements } = input

const services = copyServiceLayer(CopyDriver.layer({ addresses: [address], token: "bench" })).pipe(
  Layer.provideMerge(HostEngine.layer()),
  Layer.provideMerge(groupOf(input))
)

const wordsOf = (tensor: Tensor): Uint16Array => {
  const bytes = tensorBytes(tensor)!
  return new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2)
}

const program = Effect.gen(function* () {
  const group = yield* ProcessGroup
  const specs = specsOf(
    "1:R",
    "1@1:R",
    Array.from({ length: tensors }, () => ({ shape: [elements], from: "bfloat16" as const }))
  )
  const plan = plansOf(specs)[rank]!
  const { sources, targets } = yield* sidesOf(plan)
  const dicts =
    rank === 0 ? ([dictOf(plan, sources), undefined] as const) : ([undefined, dictOf(plan, targets)] as const)
  for (const [at, source] of sources.entries()) if (source !== null) wordsOf(source).fill(0x3c00 + at)
  const known = new Map<string, Effect.Success<ReturnType<typeof makeDeltaUpdates>>>()
  let version = 0

  const timed = Effect.fnUntraced(function* <A, E, R>(work: Effect.Effect<A, E, R>) {
    yield* group.barrier("bench")
    const begun = seconds()
    const value = yield* work
    return { begun, ended: seconds(), value }
  })

  yield* serve(
    rank,
    Effect.fnUntraced(function* (request: DeltaRankRequest) {
      version += 1
      if ("change" in request) {
        const random = makeRandom(version)
        // Every element for itself.
        for (const source of sources) {
          if (source === null) continue
          const words = wordsOf(source)
          for (let at = 0; at < words.length; at++) {
            if (random.below(2 ** 32) < request.change * 2 ** 32) words[at]! ^= 1
          }
        }
        return { changed: true }
      }
      if (request.update === "whole") {
        const { begun, ended } = yield* timed(executeReshardPlan(plan, ...dicts))
        return { begun, ended }
      }
      const key = JSON.stringify(request.options)
      const updates = known.get(key) ?? (yield* makeDeltaUpdates(plan, { baselineBytes: 2 ** 40, ...request.options }))
      known.set(key, updates)
      const { begun, ended, value } = yield* timed(updates.update({ version: `${version}` }, ...dicts))
      const { changedElements, listed, whole } = value
      return { begun, ended, changedElements, listed, whole }
    })
  )
})

await runPrinting(Effect.scoped(Effect.provide(program, services)))
