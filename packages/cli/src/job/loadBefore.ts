// SPDX-License-Identifier: Apache-2.0
/**
 * What ranks of a job hold before it, where only what changed since an earlier version is to travel: both sides are loaded from
 * that version, and sources keep copies of it.
 */

import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { makeDeltaUpdates } from "@tensorferry/model/delta/makeDeltaUpdates"
import { clearPadding, type HeldTensor, loadTensors, type ReportProgress } from "@tensorferry/model/HeldTensors"
import type { Model } from "@tensorferry/model/Model"
import { modelError } from "@tensorferry/model/ModelError"
import { openModel } from "@tensorferry/model/openModel"
import { agreeOnFiles } from "@tensorferry/model/SameFiles"
import * as Effect from "effect/Effect"
import { clockName } from "./Observed.ts"
import type { PreparedJob } from "./PreparedJob.ts"

/** Fails unless the earlier version has each of these tensors. */
const checkTensors = ({ path, tensors }: Model, held: ReadonlyArray<HeldTensor>) => {
  const before = new Map(tensors.map((tensor) => [tensor.name, tensor]))
  const other = held.find(({ local: { dtype, storedAs } }) => before.get(storedAs)?.dtype !== dtype)
  const short = held.find(({ local: { shape, storedAs, pieces } }) => {
    const whole = before.get(storedAs)?.shape
    if (whole === undefined || whole.length !== shape.length) return true
    return pieces.some(({ global }) => global.some(([, end], dim) => end > whole[dim]!))
  })
  const found = other ?? short
  return found === undefined
    ? Effect.void
    : Effect.fail(
        modelError("Different", {
          file: path,
          paramName: found.local.storedAs,
          detail: "The version before has no such tensor, or one of another type or shape.",
          remedy: "Leave --delta-from out."
        })
      )
}

/** Loads both sides from the version at a path. What is returned moves what changed, once the source was loaded anew. */
export const loadBefore = Effect.fnUntraced(function* (
  path: string,
  part: PreparedJob,
  [source, destination]: readonly [ReadonlyArray<HeldTensor>, ReadonlyArray<HeldTensor>],
  progress: ReportProgress
) {
  const group = yield* ProcessGroup
  const before = yield* openModel(path)
  yield* agreeOnFiles(group, before, clockName())
  const held = [...source, ...destination]
  yield* checkTensors(before, held)
  yield* loadTensors(before, group, held, progress)
  for (const one of held) yield* clearPadding(one)
  const [from, into] = yield* part.dicts(source, destination)
  const updates = yield* makeDeltaUpdates(part.plan, { baselineBytes: Number.MAX_SAFE_INTEGER })
  yield* updates.assume("before", from)
  return {
    move: Effect.map(updates.update({ version: "after" }, from, into), ({ baselineBytes, copy }) => ({
      copy,
      waves: 1,
      bufferBytes: baselineBytes
    }))
  }
})
