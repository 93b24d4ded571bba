// SPDX-License-Identifier: Apache-2.0
/**
 * One version on its way into a replica: which chunks are here, who waits for them, and how they come. Chunks that are
 * proven stay when the member they came from is gone; only the rest is taken from another.
 */
import type { KeyValueStoreShape } from "@tensorferry/bus/store/KeyValueStore"
import type { Digest } from "@tensorferry/core/base/Digest"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { type FleetError, fleetError } from "../FleetError.ts"
import type { ProgressReporter } from "../progress/reportProgress.ts"
import type { Manifest } from "../version/Manifest.ts"
import { chunkCount, type EdgeOptions, type EdgeRequest, type Giver, take } from "./Edges.ts"
import { digestWeights, type Weights } from "./Pieces.ts"
import type { StagePart, StagePlan } from "./stagePlan.ts"

/** Chunks of one run of bytes. */
interface Arrivals {
  readonly chunkBytes: number
  readonly bytes: number
  /** Digests of the chunks that are here, without a gap from the first. */
  readonly digests: Array<Digest>
  readonly waits: Map<number, Deferred.Deferred<Digest, FleetError>>
}

/** Tries of one part before the version counts as failed: each with another member, as long as there is one. */
const mostTries = 8

export class Staging {
  readonly manifest: Manifest
  readonly weights: Weights
  readonly #parts = new Map<number, Arrivals>()
  #isOver = false
  #isComplete = false

  constructor(manifest: Manifest, weights: Weights) {
    this.manifest = manifest
    this.weights = weights
  }

  #arrivals(offset: number, bytes: number, chunkBytes: number): Arrivals {
    const known = this.#parts.get(offset)
    if (known !== undefined && known.chunkBytes === chunkBytes && known.bytes === bytes) return known
    const made: Arrivals = { chunkBytes, bytes, digests: [], waits: new Map() }
    this.#parts.set(offset, made)
    return made
  }

  /** What children are given: chunks as they come. */
  readonly giver: Giver["awaitChunk"] = ({ offset, bytes, chunkBytes }, chunk) =>
    Effect.suspend((): Effect.Effect<Digest | undefined, FleetError> => {
      if (this.#isOver) return Effect.fail(this.#dropped())
      const arrivals = this.#arrivals(offset, bytes, chunkBytes)
      const here = arrivals.digests[chunk]
      if (here !== undefined || this.#isComplete) return Effect.succeed(here)
      const wait = arrivals.waits.get(chunk) ?? Deferred.makeUnsafe<Digest, FleetError>()
      arrivals.waits.set(chunk, wait)
      return Deferred.await(wait)
    })

  #dropped(): FleetError {
    return fleetError("PeerFailed", [], {
      detail: `Version ${this.manifest.serial} is not taken any further.`,
      remedy: "See why the update was given up.",
      isRetryable: true
    })
  }

  /** Whoever waits for a chunk that has not come is told that it will not. */
  drop(): void {
    this.#isOver = true
    for (const { waits } of this.#parts.values())
      for (const wait of waits.values()) Deferred.doneUnsafe(wait, Effect.fail(this.#dropped()))
    this.#parts.clear()
  }

  /** Takes a part; what fails is tried again with what `replan` answers. */
  #takePart(
    part: StagePart,
    chunkBytes: number,
    how: StagingOptions,
    avoided: Set<string>,
    tries: number
  ): Effect.Effect<void, FleetError> {
    const { offset, bytes, parent } = part
    const arrivals = this.#arrivals(offset, bytes, chunkBytes)
    const from = arrivals.digests.length
    const request: EdgeRequest = { child: how.self, content: this.manifest.content, offset, bytes, chunkBytes, from }
    if (from === chunkCount(request)) return Effect.void
    const { serial } = this.manifest
    const onChunk = (chunk: number, digest: Digest): Effect.Effect<void> =>
      Effect.suspend(() => {
        arrivals.digests[chunk] = digest
        const wait = arrivals.waits.get(chunk)
        arrivals.waits.delete(chunk)
        if (wait !== undefined) Deferred.doneUnsafe(wait, Effect.succeed(digest))
        return how.progress.arrived(serial, offset, Math.min(chunkBytes, bytes - chunk * chunkBytes))
      })
    return Effect.catch(
      Effect.andThen(
        how.progress.take(serial, parent.id, offset, bytes - from * chunkBytes),
        take(how.store, how.root, parent.id, request, this.weights, onChunk, how.edges)
      ),
      (error): Effect.Effect<void, FleetError> => {
        if (tries >= mostTries) return Effect.fail(error)
        avoided.add(parent.id)
        const plan = how.replan(avoided)
        if (Result.isFailure(plan)) return Effect.fail(error)
        const again = plan.success.parts.find((other) => other.offset === offset && other.bytes === bytes)
        if (again === undefined || plan.success.chunkBytes !== chunkBytes) return Effect.fail(error)
        return Effect.suspend(() => this.#takePart(again, chunkBytes, how, avoided, tries + 1))
      }
    )
  }

  /** Takes everything and proves it: each tensor has the digest that the version states. */
  run(plan: StagePlan, how: StagingOptions): Effect.Effect<void, FleetError, TensorEngine> {
    return Effect.gen({ self: this }, function* () {
      const avoided = new Set<string>()
      yield* Effect.forEach(plan.parts, (part) => this.#takePart(part, plan.chunkBytes, how, avoided, 1), {
        concurrency: "unbounded",
        discard: true
      })
      const found = yield* Effect.mapError(digestWeights(this.weights), (error) =>
        fleetError("NotProven", [], { detail: error.message, remedy: "See the failure that caused it." })
      )
      const { tensors } = this.manifest
      const names = [...new Set([...Object.keys(found), ...Object.keys(tensors)])]
      const wrong = names.find((name) => found[name] !== tensors[name])
      if (wrong === undefined) {
        this.#isComplete = true
        return
      }
      this.#parts.clear()
      return yield* fleetError("NotProven", [], {
        paramName: wrong,
        detail: `Tensor ${wrong} of version ${this.manifest.serial} has digest ${found[wrong] ?? "none"} here, not ${tensors[wrong] ?? "none"}.`,
        remedy:
          "See that source and replicas hold tensors of the same names, types and shapes, and that the source does not change them.",
        isRetryable: true
      })
    })
  }
}

/** How a version is taken. */
export interface StagingOptions {
  readonly store: KeyValueStoreShape
  readonly root: string
  /** Id of this member. */
  readonly self: string
  readonly edges: EdgeOptions
  /** Hears what comes from whom. */
  readonly progress: ProgressReporter
  /** The plan as it is now, without members that failed. */
  readonly replan: (avoided: ReadonlySet<string>) => Result.Result<StagePlan, FleetError>
}
