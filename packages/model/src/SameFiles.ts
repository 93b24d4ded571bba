// SPDX-License-Identifier: Apache-2.0
/**
 * Proves that all ranks of a job read one checkpoint: the same contents everywhere, and on one host the very same files, from
 * before anything is loaded until the result is taken for it. A checkpoint that is replaced meanwhile would otherwise come out
 * mixed, and "bit-identical" to nothing.
 */
import { stat } from "node:fs/promises"
import * as path from "node:path"
import { digestOf } from "@tensorferry/core/base/Digest"
import { formatShape } from "@tensorferry/core/base/Region"
import { exchange } from "@tensorferry/core/group/Exchange"
import type { ProcessGroupError, ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { identityOf } from "./checkpoint/FileAccess.ts"
import type { Model } from "./Model.ts"
import { type ModelError, modelError } from "./ModelError.ts"

const Statement = Schema.Struct({
  /** Ranks of one host that were given one path. */
  place: Schema.String,
  /** Of the headers of all files. */
  contents: Schema.String,
  /** Of what names the files themselves; equal on one host only. */
  files: Schema.String
})

const remedy = "Run again, and do not change a checkpoint while it is read."

/** Collective: fails on every rank where one has opened something else. `host` names what shares its files. */
export const agreeOnFiles = Effect.fnUntraced(function* (
  group: ProcessGroupShape,
  model: Model,
  host: string
): Effect.fn.Return<void, ModelError | ProcessGroupError> {
  const seen = [...model.files()].map(([file, one]) => ({ name: path.basename(file), ...one }))
  const own = {
    place: `${host} ${model.path}`,
    contents: digestOf([seen.map(({ headerDigest }) => headerDigest), model.tensors]),
    files: digestOf(seen.map(({ name, identity }) => [name, identity]))
  }
  const differ = (rank: number, other: number, paramName?: string) =>
    modelError("Different", {
      rank,
      peer: other,
      file: model.path,
      op: "open",
      ...(paramName === undefined ? {} : { paramName }),
      detail: `Ranks ${other} and ${rank} opened different files under this path.`,
      remedy
    })
  const all = yield* exchange(group, "checkpoint files", Statement, own).pipe(
    Effect.catchTag("UnreadableAnswer", ({ rank }) => Effect.fail(differ(rank, group.rank)))
  )
  const odd = all.findIndex(({ contents }) => contents !== all[0]!.contents)
  if (odd >= 0) {
    // Only now: the list may be long.
    const tensors = model.tensors.map(({ name, dtype, shape }) => `${name} ${dtype}${formatShape(shape)}`)
    const lists = yield* exchange(group, "checkpoint tensors", Schema.Array(Schema.String), tensors).pipe(
      Effect.catchTag("UnreadableAnswer", ({ rank }) => Effect.fail(differ(rank, group.rank)))
    )
    const [common, theirs] = [new Set(lists[0]), new Set(lists[odd])]
    const named = lists[odd]!.find((text) => !common.has(text)) ?? lists[0]!.find((text) => !theirs.has(text))
    return yield* differ(odd, 0, named?.slice(0, named.lastIndexOf(" ")))
  }
  const firstOf = new Map<string, number>()
  for (const [rank, { files, place }] of all.entries()) {
    const first = firstOf.get(place) ?? rank
    firstOf.set(place, first)
    if (files !== all[first]!.files) return yield* differ(rank, first)
  }
})

/** Fails unless every file that was read is still what its path leads to, unchanged. */
export const checkFilesUnchanged = ({ files }: Model): Effect.Effect<void, ModelError> =>
  Effect.forEach(
    files(),
    ([file, { identity }]) =>
      Effect.tryPromise(() => stat(file, { bigint: true })).pipe(
        Effect.map(identityOf),
        Effect.orElseSucceed(() => "gone"),
        Effect.flatMap((now) =>
          now === identity
            ? Effect.void
            : Effect.fail(
                modelError("Different", {
                  file,
                  op: "verify",
                  detail: "The file was written or replaced while the job read it.",
                  remedy
                })
              )
        )
      ),
    { discard: true }
  )
