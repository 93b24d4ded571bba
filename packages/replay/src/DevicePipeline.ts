// SPDX-License-Identifier: Apache-2.0
/**
 * What a `ReplayPipeline` stands on, over a ring on the device: packs are draws on the device, and transfers are copies
 * within it, from the memory that a batch was gathered into to the slot that the learner reads.
 *
 * The states of slots, their checks and waits are those of every replay backend (`ReplayTransferLayer`).
 */

import { type PackRequest, ReplayPackRequests } from "@tensorferry/core/replay/ReplayPackRequests"
import {
  batchError,
  type ReplayPipelineError,
  type ReplayPipelineReason
} from "@tensorferry/core/replay/ReplayPipelineError"
import { replayTransferLayer } from "@tensorferry/core/replay/ReplayTransferLayer"
import type { ReplayDevice } from "@tensorferry/core/service/ReplayDevice"
import {
  type ReplayTransferBackend,
  type ReplayTransferError,
  type ReplayTransferReason,
  replayTransferError
} from "@tensorferry/core/service/ReplayTransferBackend"
import { TensorEngine, type TensorEngineShape, type TensorError } from "@tensorferry/core/service/TensorEngine"
import { cpu } from "@tensorferry/core/tensor/Device"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import { type DeviceBatch, type DeviceDraw, DeviceReplayRing } from "./DeviceReplayRing.ts"
import type { DeviceRingError, DeviceRingReason } from "./DeviceRingError.ts"

/** Slots of a pipeline over a ring on a device. */
export interface DevicePipelineSlots {
  /** One for each slot, which batches are gathered into. */
  readonly batches: ReadonlyArray<DeviceBatch>
  /** The same as `hostSlots` of a pipeline: `[rows, rowBytes]`, of the ring's device. */
  readonly hostSlots: ReadonlyArray<Tensor>
  /** Rows of one batch, as a pipeline counts them. */
  readonly rows: number
}

/** How batches of a pipeline are drawn, beside seed and tick. */
export interface DevicePipelineOptions extends Omit<DeviceDraw, "seed" | "tick"> {
  /** Runs after each draw, before the batch is transferred: a place to take positions for `weigh` from. */
  readonly onDrawn?: (batch: DeviceBatch, tick: number) => Effect.Effect<void>
}

/** Memory for the batches of a pipeline: `depth` slots of `count` windows. Freed by the scope. */
export const allocatePipelineSlots = Effect.fnUntraced(function* (
  count: number,
  depth: number,
  window: number = 1
): Effect.fn.Return<DevicePipelineSlots, DeviceRingError, DeviceReplayRing | Scope.Scope> {
  const ring = yield* DeviceReplayRing
  const { rowBytes } = ring.layout
  const form = { count, window, packing: "rows" } as const
  const batches = yield* Effect.forEach(Array.from({ length: depth }), () => ring.allocateBatch(form))
  const rows = count * window
  const hostSlots = batches.map(({ memory }) => ({ ...memory, shape: [rows, rowBytes], strides: [rowBytes, 1] }))
  return { batches, hostSlots, rows }
})

const pipelineTags: Partial<Record<DeviceRingReason["_tag"], ReplayPipelineReason["_tag"]>> = {
  RingTorn: "RingTorn",
  DeadlineExceeded: "DeadlineExceeded"
}

const packFailed = (request: PackRequest, { reason }: DeviceRingError): ReplayPipelineError => {
  const isEmpty = reason._tag === "RingEmpty"
  return batchError(pipelineTags[reason._tag] ?? "PackFailed", request, {
    op: "pack",
    detail: reason.detail,
    remedy: isEmpty ? "Push rows before a batch is prepared." : reason.remedy,
    isRetryable: isEmpty || reason.isRetryable
  })
}

/** Packs by draws into the slots' memory. */
const packRequests = ({ batches, rows }: DevicePipelineSlots, options: DevicePipelineOptions) =>
  Effect.map(DeviceReplayRing, (ring) =>
    ReplayPackRequests.of({
      pack: Effect.fnUntraced(function* (request) {
        const { seed, slot, tick } = request
        const batch = batches[slot]
        if (batch === undefined || request.rows !== rows) {
          return yield* batchError("PackFailed", request, {
            op: "pack",
            detail: `Of ${batches.length} slots of ${rows} rows, none is slot ${slot} of ${request.rows} rows.`,
            remedy: "Give the pipeline the host slots and the rows of allocatePipelineSlots."
          })
        }
        const startedAt = process.hrtime.bigint()
        const drawn = yield* Effect.mapError(ring.sample(batch, { ...options, seed, tick }), (error) =>
          packFailed(request, error)
        )
        if (options.onDrawn !== undefined) yield* options.onDrawn(batch, tick)
        return {
          tick,
          slot,
          first: BigInt(drawn.first),
          end: BigInt(drawn.end),
          redrawn: 0,
          pid: process.pid,
          startedAt,
          endedAt: process.hrtime.bigint()
        }
      })
    })
  )

/** The layer has checked shapes and devices; what an engine still finds wrong is whose memory it is. */
const transferTags: Record<TensorError["reason"]["_tag"], ReplayTransferReason["_tag"]> = {
  OutOfMemory: "DeviceFailure",
  FreedStorage: "FreedStorage",
  InvalidRequest: "DeviceMismatch",
  Unsupported: "DeviceMismatch",
  DeviceFailure: "DeviceFailure"
}

const transferFailed =
  (op: string) =>
  ({ reason: { _tag, ...fields } }: TensorError): ReplayTransferError =>
    replayTransferError(transferTags[_tag], { ...fields, op })

/** Copies within the device. */
const deviceOver = (engine: TensorEngineShape, origin: Tensor["device"]): ReplayDevice => ({
  origin,
  attributes: () => ({
    device: origin,
    deviceFamily: origin.family,
    h2dSubmitter: "device_ring",
    hostMemoryKind: "device",
    hostPinned: false,
    directPinnedShared: false,
    supportsAsyncSubmit: false,
    supportsTimingEvents: false
  }),
  register: () => Effect.void,
  allocate: (shape, dtype) =>
    Effect.mapError(engine.allocate(dtype, shape, origin), transferFailed("allocateDeviceSlots")),
  prepare: (_slot, dst, src) =>
    Effect.sync(() => {
      // One list for good: the engine knows it again and does not check it twice.
      const copy = Effect.mapError(engine.copy([{ dst, src }]), transferFailed("submitH2d"))
      return {
        start: () => copy,
        isDone: () => true,
        wait: Effect.void,
        streamWait: () => Effect.void,
        seconds: () => undefined
      }
    })
})

/** Both services of a pipeline over the ring in the context, for these slots. */
export const layer = (
  slots: DevicePipelineSlots,
  options: DevicePipelineOptions = {}
): Layer.Layer<ReplayPackRequests | ReplayTransferBackend, never, DeviceReplayRing | TensorEngine> =>
  Layer.merge(
    Layer.effect(ReplayPackRequests, packRequests(slots, options)),
    Layer.unwrap(
      TensorEngine.use((engine) =>
        Effect.sync(() => {
          const origin = slots.batches[0]?.memory.device ?? cpu
          return replayTransferLayer(Effect.succeed(deviceOver(engine, origin)), { ringDepth: slots.batches.length })
        })
      )
    )
  )
