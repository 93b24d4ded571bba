// SPDX-License-Identifier: Apache-2.0
/**
 * One version on its way into a replica: which chunks are here, who waits for them, and how they come. Chunks that are
 * proven stay when the member they came from is gone; only the rest is taken from another.
 */
import type { Digest } from "@tensorferry/core/base/Digest"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { ChunkDigests } from "../edges/ChunkDigests.ts"
import { chunkCount, type EdgeRequest } from "../edges/EdgeMessages.ts"
import type { EdgePool } from "../edges/EdgePool.ts"
import type { Giver } from "../edges/giveChunks.ts"
import type { BundleBytes, Weights } from "../edges/Pieces.ts"
import { type FleetError, fleetError } from "../FleetError.ts"
import type { ProgressReporter } from "../progress/reportProgress.ts"
import type { Manifest } from "../version/Manifest.ts"
import type { Carrying } from "./Carrying.ts"
import type { StagePart } from "./stagePlan.ts"

/** Chunks of one run of bytes. */
interface Arrivals {
  /** Tells runs of one version apart. */
  readonly run: number
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
  /** What children are given: chunks as they come. */
  readonly giver: Giver
  readonly #parts = new Map<string, Arrivals>()
  readonly #carrying: Carrying
  readonly #piecesOf: BundleBytes
  readonly #digests: ChunkDigests
  #isOver = false
  #isComplete = false
  /** Why the version was not what it should be, which tells more than why another try did not get so far. */
  #notProven: FleetError | undefined

  constructor(manifest: Manifest, weights: Weights, carrying: Carrying) {
    this.manifest = manifest
    this.weights = weights
    this.#carrying = carrying
    this.#piecesOf = carrying.bytesOf(weights)
    this.#digests = new ChunkDigests(this.#piecesOf)
    this.giver = { piecesOf: this.#piecesOf, awaitChunk: (request, chunk) => this.#awaitChunk(request, chunk) }
  }

  #arrivals({ bundle, offset, bytes, chunkBytes }: Omit<EdgeRequest, "from" | "content" | "serial">): Arrivals {
    const key = `${bundle} ${offset}`
    const known = this.#parts.get(key)
    if (known !== undefined && known.chunkBytes === chunkBytes && known.bytes === bytes) return known
    const made: Arrivals = { run: this.#parts.size, chunkBytes, bytes, digests: [], waits: new Map() }
    this.#parts.set(key, made)
    return made
  }

  #awaitChunk(request: EdgeRequest, chunk: number): Effect.Effect<Digest, FleetError, TensorEngine> {
    return Effect.suspend((): Effect.Effect<Digest, FleetError, TensorEngine> => {
      if (this.#isOver) return Effect.fail(this.#dropped())
      const arrivals = this.#arrivals(request)
      const here = arrivals.digests[chunk]
      if (here !== undefined) return Effect.succeed(here)
      if (this.#isComplete) return this.#digests.of(request, chunk)
      const wait = arrivals.waits.get(chunk) ?? Deferred.makeUnsafe<Digest, FleetError>()
      arrivals.waits.set(chunk, wait)
      return Deferred.await(wait)
    })
  }

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
    how: StagingOptions,
    avoided: Set<string>,
    tries: number
  ): Effect.Effect<void, FleetError> {
    const { parent, ...run } = part
    const arrivals = this.#arrivals(run)
    const { content, serial } = this.manifest
    const request: EdgeRequest = { ...run, content, serial, from: arrivals.digests.length }
    if (request.from === chunkCount(request)) return Effect.void
    const { bytes, chunkBytes } = run
    const onChunk = (chunk: number, digest: Digest): Effect.Effect<void> =>
      Effect.suspend(() => {
        arrivals.digests[chunk] = digest
        const wait = arrivals.waits.get(chunk)
        arrivals.waits.delete(chunk)
        if (wait !== undefined) Deferred.doneUnsafe(wait, Effect.succeed(digest))
        return how.progress.arrived(serial, arrivals.run, Math.min(chunkBytes, bytes - chunk * chunkBytes))
      })
    return Effect.catch(
      Effect.andThen(
        how.progress.take(serial, parent.id, arrivals.run, bytes - request.from * chunkBytes),
        how.edges.take({ parent: parent.id, request, piecesOf: this.#piecesOf, onChunk })
      ),
      (error): Effect.Effect<void, FleetError> => {
        if (tries >= mostTries) return Effect.fail(error)
        avoided.add(parent.id)
        const plan = how.replan(avoided)
        if (Result.isFailure(plan)) return Effect.fail(error)
        const again = plan.success.find(
          ({ bundle, offset, bytes, chunkBytes }) =>
            bundle === run.bundle && offset === run.offset && bytes === run.bytes && chunkBytes === run.chunkBytes
        )
        if (again === undefined) return Effect.fail(error)
        return Effect.suspend(() => this.#takePart(again, how, avoided, tries + 1))
      }
    )
  }

  /** Takes everything and proves it. */
  run(plan: ReadonlyArray<StagePart>, how: StagingOptions): Effect.Effect<void, FleetError, TensorEngine> {
    return Effect.gen({ self: this }, function* () {
      const avoided = new Set<string>()
      yield* Effect.forEach(plan, (part) => this.#takePart(part, how, avoided, 1), {
        concurrency: "unbounded",
        discard: true
      })
      yield* Effect.onError(this.#carrying.prove(this.weights, this.manifest), () =>
        Effect.sync(() => this.#parts.clear())
      )
      this.#isComplete = true
    }).pipe(
      Effect.mapError((error) => {
        if (error.reason._tag === "NotProven") this.#notProven = error
        return this.#notProven ?? error
      })
    )
  }
}

/** How a version is taken. */
export interface StagingOptions {
  readonly edges: EdgePool
  /** Hears what comes from whom. */
  readonly progress: ProgressReporter
  /** The plan as it is now, without members that failed. */
  readonly replan: (avoided: ReadonlySet<string>) => Result.Result<ReadonlyArray<StagePart>, FleetError>
}
