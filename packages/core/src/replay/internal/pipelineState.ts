// SPDX-License-Identifier: Apache-2.0
/**
 * Which batches a replay pipeline has, and which of its slots is whose, as data. Pure: the pipeline follows from what the
 * transitions answer.
 *
 * A slot is in one place at a time: among the idle ones, with a batch that is prepared, or with the hot batch. `begin`
 * takes the slot that has been idle longest; `drop` and `release` give it back. Batches are prepared and sampled in the
 * order of their ticks. A transition that finds another batch in the place of the named one changes nothing, because
 * somebody else has done the same meanwhile.
 */
import type * as Deferred from "effect/Deferred"
import * as Result from "effect/Result"
import type { PackedBatch } from "../ReplayPackRequests.ts"
import { pipelineClosed, type ReplayPipelineError, wrongState } from "../ReplayPipelineError.ts"

/** How far the preparation of a batch has come, for whoever waits for it. */
export interface Preparation {
  /** Ends when the copy was handed to the backend, with what the collector answered. */
  readonly submitted: Deferred.Deferred<PackedBatch, ReplayPipelineError>
  /** Ends when nobody uses the slot for this batch any more. */
  readonly ended: Deferred.Deferred<void, ReplayPipelineError>
}

export interface Prepared extends Preparation {
  readonly tick: number
  readonly slot: number
}

/** The batch that the learner uses. */
export interface Hot<Large> {
  readonly batch: Prepared
  readonly large: Large
}

export interface PipelineState<Large> {
  readonly depth: number
  /** First in, first out, so that slots are used in turn. */
  readonly idle: ReadonlyArray<number>
  /** Oldest first. */
  readonly prepared: ReadonlyArray<Prepared>
  readonly hot: Hot<Large> | undefined
  /** The tick sampled last; -1 at first. */
  readonly lastTick: number
  readonly isClosed: boolean
}

export const initialPipeline = <Large>(depth: number): PipelineState<Large> => ({
  depth,
  idle: Array.from({ length: depth }, (_, slot) => slot),
  prepared: [],
  hot: undefined,
  lastTick: -1,
  isClosed: false
})

const isNatural = (value: number): boolean => Number.isSafeInteger(value) && value >= 0

/** A tick takes an idle slot. */
export const begin = <Large>(
  state: PipelineState<Large>,
  tick: number,
  preparation: Preparation
): Result.Result<{ readonly state: PipelineState<Large>; readonly batch: Prepared }, ReplayPipelineError> => {
  const { idle, prepared, depth } = state
  if (state.isClosed) return Result.fail(pipelineClosed("startPrepare", tick))
  const newest = prepared.at(-1)?.tick ?? state.lastTick
  if (!isNatural(tick) || tick <= newest) {
    const detail = `Tick ${tick} cannot be prepared after tick ${newest}.`
    return Result.fail(wrongState("startPrepare", detail, "Prepare ticks in growing order."))
  }
  const [slot, ...others] = idle
  if (slot === undefined) {
    const detail = `Tick ${tick}: none of ${depth} slots is idle.`
    return Result.fail(wrongState("startPrepare", detail, "Call afterTick first, or use a larger ring depth."))
  }
  const batch: Prepared = { tick, slot, ...preparation }
  return Result.succeed({ state: { ...state, idle: others, prepared: [...prepared, batch] }, batch })
}

/** The batch that is sampled next. */
export const oldest = <Large>(
  state: PipelineState<Large>,
  op: string
): Result.Result<Prepared, ReplayPipelineError> => {
  const [batch] = state.prepared
  return batch === undefined
    ? Result.fail(wrongState(op, "No batch was prepared.", "Call startPrepare first."))
    : Result.succeed(batch)
}

/** A batch that failed leaves the queue; its slot is idle again. */
export const drop = <Large>(state: PipelineState<Large>, batch: Prepared): PipelineState<Large> =>
  state.prepared[0] === batch
    ? { ...state, prepared: state.prepared.slice(1), idle: [...state.idle, batch.slot] }
    : state

/** The oldest batch becomes the hot one. */
export const sample = <Large>(state: PipelineState<Large>, hot: Hot<Large>): PipelineState<Large> =>
  state.hot === undefined && state.prepared[0] === hot.batch
    ? { ...state, prepared: state.prepared.slice(1), lastTick: hot.batch.tick, hot }
    : state

/** The hot batch has been used; its slot is idle again. */
export const release = <Large>(state: PipelineState<Large>, used: Hot<Large>): PipelineState<Large> =>
  state.hot === used ? { ...state, hot: undefined, idle: [...state.idle, used.batch.slot] } : state
