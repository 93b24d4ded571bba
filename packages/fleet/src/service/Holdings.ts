// SPDX-License-Identifier: Apache-2.0
/** Which memory of a member has which version: the one in use, the one that arrives, and the one before. */
import { digestOf } from "@tensorferry/core/base/Digest"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import { ChunkDigests } from "../edges/ChunkDigests.ts"
import type { Giver } from "../edges/giveChunks.ts"
import type { Weights } from "../edges/Pieces.ts"
import type { FleetError } from "../FleetError.ts"
import type { Manifest } from "../version/Manifest.ts"
import { type Carrying, notProven } from "./Carrying.ts"
import { Staging } from "./Staging.ts"

/** The memory of a member. */
export interface HeldWeights {
  readonly weights: Weights
  readonly incoming?: Weights
  readonly kept?: Weights
}

/** The weights of a member: which memory has which version. */
export const makeHoldings = (options: HeldWeights, carrying: Carrying) => {
  let [live, kept] = [undefined as string | undefined, undefined as string | undefined]
  let staging: Staging | undefined
  const given = carrying.bytesOf(options.weights)
  let digests = new ChunkDigests(given)
  let expected: Deferred.Deferred<string, FleetError> | undefined
  const moves = (to: Weights, from: Weights) => [...to].map(([name, dst]) => ({ dst, src: from.get(name)! }))
  const copy = (to: Weights, from: Weights) => Effect.flatMap(TensorEngine, (engine) => engine.copy(moves(to, from)))
  return {
    /** What a source holds is going to be published: who asks for it meanwhile is answered when its content is known. */
    expect: () => {
      live = undefined
      digests = new ChunkDigests(given)
      expected ??= Deferred.makeUnsafe<string, FleetError>()
    },
    /** Nothing is published after all. */
    giveUp: (error: FleetError) => {
      if (expected !== undefined) Deferred.doneUnsafe(expected, Effect.fail(error))
      expected = undefined
    },
    /** Content that a source holds. */
    hold: (content: string) => {
      live = content
      if (expected !== undefined) Deferred.doneUnsafe(expected, Effect.succeed(content))
      expected = undefined
    },
    begin: (manifest: Manifest): Staging => {
      if (staging !== undefined && digestOf(staging.manifest) === digestOf(manifest)) return staging
      staging?.drop()
      staging = new Staging(manifest, options.incoming!, carrying)
      return staging
    },
    drop: () => {
      staging?.drop()
      staging = undefined
    },
    /** Takes a version from memory of this process; false where none has it. */
    recall: (manifest: Manifest) =>
      Effect.gen(function* () {
        const { content } = manifest
        const from = content === live ? options.weights : content === kept ? options.kept : undefined
        if (from === undefined) return false
        yield* copy(options.incoming!, from)
        yield* carrying.prove(options.incoming!, manifest)
        return true
      }),
    flip: ({ content }: Manifest) =>
      Effect.gen(function* () {
        if (options.kept !== undefined && live !== undefined) {
          kept = undefined
          yield* copy(options.kept, options.weights)
          kept = live
        }
        live = undefined
        yield* copy(options.weights, options.incoming!)
        live = content
        digests = new ChunkDigests(given)
      }),
    giverOf: (content: string): Giver | undefined => {
      if (content === live) {
        const known = digests
        return { piecesOf: given, awaitChunk: (request, chunk) => known.of(request, chunk) }
      }
      if (staging?.manifest.content === content) return staging.giver
      const soon = expected
      if (soon !== undefined) {
        const known = digests
        return {
          piecesOf: given,
          awaitChunk: (request, chunk) =>
            Effect.flatMap(Deferred.await(soon), (found) =>
              found === content
                ? known.of(request, chunk)
                : Effect.fail(
                    notProven(`This member published ${found}, not ${content}.`, "Take it from another member.")
                  )
            )
        }
      }
      return undefined
    }
  }
}
