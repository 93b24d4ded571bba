// SPDX-License-Identifier: Apache-2.0
/**
 * Host slots of a replay pipeline: one batch of packed rows each, in memory that processes share.
 *
 * Invariant: a slot has whole memory pages to itself, so that a device's driver can pin it whatever lies beside it, and so
 * that its place within the page is the same in every process.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { HostMemory, type HostMemoryError, HostMemoryHandle } from "../service/HostMemory.ts"
import type { Storage } from "../tensor/Storage.ts"
import { type Tensor, tensorView } from "../tensor/Tensor.ts"
import { type ReplayRingError, replayRingError } from "./ReplayRingError.ts"
import { batchBytes, batchShape, type RowLayout } from "./ReplayRowLayout.ts"

const pageBytes = 4096

/** Where another process finds a slot. */
export const ReplaySlotHandle = Schema.Struct({
  memory: HostMemoryHandle,
  byteOffset: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: pageBytes }))
})
export type ReplaySlotHandle = typeof ReplaySlotHandle.Type

const slotIn = (
  storage: Storage,
  layout: RowLayout,
  rows: number,
  byteOffset: number
): Effect.Effect<Tensor, ReplayRingError> =>
  Effect.fromResult(
    Result.mapError(tensorView(storage, "uint8", batchShape(layout, rows), { byteOffset }), ({ detail }) =>
      replayRingError("InvalidLayout", {
        detail: `A slot of ${rows} rows does not fit its memory: ${detail}.`,
        remedy: "Use the layout and number of rows that the slots were allocated for."
      })
    )
  )

/** Slots that this process owns; freed by the scope. */
export const allocateHostSlots = Effect.fnUntraced(function* (
  layout: RowLayout,
  rows: number,
  count: number
): Effect.fn.Return<ReadonlyArray<Tensor>, HostMemoryError | ReplayRingError, HostMemory | Scope.Scope> {
  const memory = yield* HostMemory
  const pages = Math.ceil(batchBytes(layout, rows) / pageBytes) + 1
  return yield* Effect.forEach(Array.from({ length: count }), () =>
    Effect.flatMap(memory.allocate(pages * pageBytes), (storage) =>
      slotIn(storage, layout, rows, (pageBytes - Number(storage.address % BigInt(pageBytes))) % pageBytes)
    )
  )
})

/** Shares host slots with the process that packs into them. */
export const shareHostSlots = (
  slots: ReadonlyArray<Tensor>
): Effect.Effect<ReadonlyArray<ReplaySlotHandle>, HostMemoryError, HostMemory> =>
  HostMemory.use((memory) =>
    Effect.forEach(slots, ({ byteOffset, storage }) =>
      Effect.map(memory.share(storage), (handle) => ({ memory: handle, byteOffset }))
    )
  )

/** Another process's slots, to be packed here; unmapped by the scope. */
export const openHostSlots = (
  layout: RowLayout,
  rows: number,
  handles: ReadonlyArray<ReplaySlotHandle>
): Effect.Effect<ReadonlyArray<Tensor>, HostMemoryError | ReplayRingError, HostMemory | Scope.Scope> =>
  HostMemory.use((memory) =>
    Effect.forEach(handles, (handle) =>
      Effect.flatMap(memory.openShared(handle.memory), (storage) => slotIn(storage, layout, rows, handle.byteOffset))
    )
  )
