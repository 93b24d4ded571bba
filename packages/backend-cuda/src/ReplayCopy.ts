// SPDX-License-Identifier: Apache-2.0
/**
 * One prepared copy of a replay slot: started, asked for, waited for.
 *
 * Invariant: a start never keeps the JS thread waiting; pageable memory that the driver would read first is copied on a
 * thread, and until that has ended the slot's event says nothing.
 */
import type { ReplayCopy } from "@tensorferry/core/service/ReplayDevice"
import { equalDevices, formatDevice } from "@tensorferry/core/tensor/Device"
import { type Tensor, tensorByteLength } from "@tensorferry/core/tensor/Tensor"
import { type PreparedReplayCopy, replayAnswers } from "@tensorferry/gpu/Addon"
import { runJob } from "@tensorferry/native/NativeJob"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import type { ReplayQueue } from "./ReplayQueue.ts"
import { refused, replayFailure } from "./replayErrors.ts"

/** Of one slot: from a dense source on the host, as the addon prepared it. */
export const replayCopy = (
  queue: ReplayQueue,
  slot: number,
  source: Tensor,
  { copy, start, query, seconds }: PreparedReplayCopy
): ReplayCopy => {
  const { gpu, native } = queue
  const { addon } = gpu
  const bytes = source.storage.bytes!
  const lastByte = source.byteOffset + tensorByteLength(source)
  /** Set while a thread makes the copy: the slot's event is not behind it yet. */
  let onThread: Deferred.Deferred<void> | undefined
  const failure = (op: string, answer: number) => replayFailure(op, queue.failureOf(answer), slot)

  const copyOnThread = Effect.suspend(() => {
    const ended = Deferred.makeUnsafe<void>()
    onThread = ended
    // The thread reads memory that its owner may take away as soon as it is freed.
    const forget = source.storage.onRevoke(() => void addon.settleReplay(native))
    return Effect.ensuring(
      Effect.mapError(
        queue.runOnThread((done) => addon.startReplayCopy(copy, done)),
        (failed) => replayFailure("submitH2d", failed, slot)
      ),
      Effect.suspend(() => {
        forget()
        onThread = undefined
        return Deferred.succeed(ended, undefined)
      })
    )
  })
  const settled: Effect.Effect<void> = Effect.suspend(() =>
    onThread === undefined ? Effect.void : Deferred.await(onThread)
  )

  return {
    start: () => {
      // Shorter than it was: detached, or a resizable buffer shrank.
      if (bytes.byteLength < lastByte) {
        return Effect.fail(
          refused("FreedStorage", "submitH2d", "The source's buffer was detached or made shorter.", slot)
        )
      }
      const answer = start()
      if (answer === replayAnswers.ok) return undefined
      return answer === replayAnswers.needsThread
        ? Effect.asVoid(copyOnThread)
        : Effect.fail(failure("submitH2d", answer))
    },
    isDone: () => {
      if (onThread !== undefined) return false
      const answer = query()
      if (answer === replayAnswers.ok) return true
      return answer === replayAnswers.notReady ? false : failure("isReady", answer)
    },
    wait: Effect.andThen(
      settled,
      Effect.asVoid(
        Effect.mapError(
          runJob<undefined>(
            addon,
            (done) => addon.startReplayWait(copy, done),
            () => {}
          ),
          (failed) => replayFailure("waitReady", failed, slot)
        )
      )
    ),
    streamWait: (stream) =>
      Effect.andThen(
        settled,
        Effect.suspend(() => {
          const op = "waitCurrentStreamForReady"
          if (stream !== undefined && !equalDevices(stream.device, gpu.device)) {
            const [theirs, ours] = [formatDevice(stream.device), formatDevice(gpu.device)]
            return Effect.fail(
              refused("DeviceMismatch", op, `A stream of ${theirs} cannot wait for a slot of ${ours}.`, slot)
            )
          }
          const held = addon.holdStream(copy, stream?.handle)
          return held.code === "Ok" ? Effect.void : Effect.fail(replayFailure(op, held, slot))
        })
      ),
    seconds: () => {
      const value = seconds()
      return value < 0 ? undefined : value
    }
  }
}
