// SPDX-License-Identifier: Apache-2.0
/**
 * The streams and events of one replay backend, and what is asked of them as a whole.
 *
 * Invariants: what was queued has ended before the streams go. As long as something is queued, memory of the device that
 * is freed meanwhile is not given back; see BackgroundWork.
 */

import type { ReplayStream } from "@tensorferry/core/service/ReplayTransferBackend"
import { type NativeReplay, replayAnswers } from "@tensorferry/gpu/Addon"
import { addBackground, idle } from "@tensorferry/gpu/BackgroundWork"
import type { Gpu } from "@tensorferry/gpu/Gpu"
import { type NativeFailure, resultOf } from "@tensorferry/native/NativeAddon"
import { runJob, type Start, startJob } from "@tensorferry/native/NativeJob"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as EffectScope from "effect/Scope"

/** How copies are queued. Every way keeps the contract; they differ in what the link and the submitter pay. */
export interface ReplayWay {
  /** Slots take turns among so many streams: while one reports its copy's end, the link carries the next one's. */
  readonly streams: number
  /** Where more copies than this are under way on a stream, so many share an event. */
  readonly copiesPerEvent: number
  /** Events record the time. */
  readonly isTimed: boolean
}

/** An event with a timestamp keeps the link idle for longer than a plain one, so copies are timed only when asked. */
export const replayWay: ReplayWay = { streams: 1, copiesPerEvent: 1, isTimed: false }

/** Copies of one replay slot to the device, one after the other, each with a fence. */
export interface ReplayQueue {
  /** The device that the copies go to. */
  readonly gpu: Gpu
  /** The addon's handle of the slots and their stream. */
  readonly native: NativeReplay
  /** How host memory gets to the device here. */
  readonly way: ReplayWay
  /** The stream that consumers wait on by default. */
  readonly stream: ReplayStream
  /** Why a start or a question answered this number. */
  readonly failureOf: (answer: number) => NativeFailure
  /** A copy that a thread makes counts as queued while it runs. */
  readonly runOnThread: (start: Start<undefined>) => Effect.Effect<undefined, NativeFailure>
  /** Ends when everything queued now has ended; at once where that is nothing. */
  readonly idle: Effect.Effect<void>
  /** Ends when the consumers' stream has come to where it stands now. */
  readonly consumed: Effect.Effect<undefined, NativeFailure>
  /** Keeps the consumers' stream busy, for measurements. */
  readonly spin: (nanoseconds: number) => Effect.Effect<undefined, NativeFailure>
  /** Lets copies that are started from now on wait for so long, for tests. */
  readonly delayCopies: (nanoseconds: number) => Effect.Effect<undefined, NativeFailure>
  /** Queues a copy within the device on the consumers' stream. */
  readonly consume: (destination: bigint, source: bigint, byteLength: number) => Effect.Effect<undefined, NativeFailure>
}

/**
 * Makes the streams, and the events of this many slots. The scope's end waits for what is queued before it closes them.
 */
export const openReplayQueue = (
  gpu: Gpu,
  slots: number,
  way: ReplayWay = replayWay
): Effect.Effect<ReplayQueue, NativeFailure, EffectScope.Scope> =>
  Effect.map(
    Effect.acquireRelease(
      Effect.suspend(() => {
        const { addon } = gpu
        const made = addon.createReplay(gpu.native, slots, way.streams, way.copiesPerEvent, way.isTimed)
        if (made.code !== "Ok") return Effect.fail(made)
        const { replay: native, stream } = made.value
        let onThreads = 0
        const isBusy = () => {
          const answer = addon.replayQuery(native)
          return onThreads > 0 || (answer.code === "Ok" && answer.value === replayAnswers.notReady)
        }
        const work = {
          whenIdle: (action: () => void) =>
            isBusy() &&
            Result.isSuccess(startJob<undefined>(addon, (done) => addon.startReplayFence(native, true, done), action))
        }
        const withdraw = addBackground(gpu.vendor, gpu.ordinal, work)
        const queue: ReplayQueue = {
          gpu,
          native,
          way,
          stream: { device: gpu.device, handle: stream },
          failureOf: (answer) => {
            const described = addon.describeReplayAnswer(native, answer)
            return described.code === "Ok"
              ? { code: "SystemFailure", op: "replay", detail: "Nothing failed.", nativeCode: 0, item: -1 }
              : described
          },
          runOnThread: (start) =>
            Effect.suspend(() => {
              onThreads += 1
              return runJob<undefined>(addon, start, () => {
                onThreads -= 1
              })
            }),
          idle: idle(work),
          consumed: runJob<undefined>(
            addon,
            (done) => addon.startReplayFence(native, false, done),
            () => {}
          ),
          spin: (nanoseconds) =>
            Effect.suspend(() => Effect.fromResult(resultOf(addon.spinReplay(native, false, nanoseconds)))),
          delayCopies: (nanoseconds) =>
            Effect.suspend(() => Effect.fromResult(resultOf(addon.spinReplay(native, true, nanoseconds)))),
          consume: (destination, source, byteLength) =>
            Effect.suspend(() =>
              Effect.fromResult(resultOf(addon.copyOnReplayStream(native, destination, source, byteLength)))
            )
        }
        return Effect.succeed({ queue, withdraw })
      }),
      ({ queue, withdraw }) =>
        Effect.andThen(
          queue.idle,
          Effect.sync(() => {
            gpu.addon.closeReplay(queue.native)
            withdraw()
          })
        )
    ),
    ({ queue }) => queue
  )
