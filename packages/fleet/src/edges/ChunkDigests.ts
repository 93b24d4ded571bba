// SPDX-License-Identifier: Apache-2.0
/** Digests of chunks that a member gives, each computed once for all children, as long as the memory stays as it is. */
import type { Digest } from "@tensorferry/core/base/Digest"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"
import * as Semaphore from "effect/Semaphore"
import { type FleetError, fleetError } from "../FleetError.ts"
import { chunkAt, type EdgeRequest } from "./EdgeMessages.ts"
import { type BundleBytes, digestPieces } from "./Pieces.ts"

export class ChunkDigests {
  readonly #piecesOf: BundleBytes
  readonly #known = new Map<string, Digest>()
  /** One at a time, so that nobody computes what another one is about to know. */
  readonly #turn = Semaphore.makeUnsafe(1)

  constructor(piecesOf: BundleBytes) {
    this.#piecesOf = piecesOf
  }

  of(request: EdgeRequest, chunk: number): Effect.Effect<Digest, FleetError, TensorEngine> {
    const [start, end] = chunkAt(request, chunk)
    const key = `${request.bundle} ${start} ${end}`
    return this.#turn.withPermit(
      Effect.suspend(() => {
        const known = this.#known.get(key)
        if (known !== undefined) return Effect.succeed(known)
        return digestPieces(this.#piecesOf(request.bundle, start, end)).pipe(
          Effect.tap((found) => Effect.sync(() => void this.#known.set(key, found))),
          Effect.mapError((error) =>
            fleetError("NotProven", [], { detail: error.message, remedy: "See the failure that caused it." })
          )
        )
      })
    )
  }
}
