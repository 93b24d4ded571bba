// SPDX-License-Identifier: Apache-2.0
/**
 * Host memory that other processes of the machine can map.
 *
 * Contract
 * - Memory has no name in any file system: a killed process leaves nothing behind. It is fully allocated up front, so
 *   exhaustion is an error at allocation and never a signal at first touch.
 * - A handle is plain data for a control channel. Opening it needs the same user on the same machine; everything that a
 *   handle states is checked against the memory itself, never trusted.
 * - The owner's `free` does not disturb those who mapped the memory: the pages live until the last mapping is gone.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type * as EffectScope from "effect/Scope"
import { ReasonError, type ReasonInput, reason, reasonOf } from "../base/Reason.ts"
import type { Storage } from "../tensor/Storage.ts"

/** Kinds of `HostMemoryError`. */
export const HostMemoryReason = Schema.Union([
  reason("OutOfMemory"),
  /** The handle does not lead to the memory that it describes. */
  reason("InvalidHandle"),
  /** The operating system forbids opening the owner's memory. */
  reason("PermissionDenied"),
  /** The process that owns the memory is gone. */
  reason("OwnerGone"),
  /** This storage was not allocated here, or was freed. */
  reason("NotShareable")
])
export type HostMemoryReason = typeof HostMemoryReason.Type

/** Why memory could not be allocated, shared or opened. */
export class HostMemoryError extends ReasonError<HostMemoryError>()("HostMemoryError", HostMemoryReason) {}

/** Makes the error; scope and retryability default to "op" and false. */
export const hostMemoryError = (tag: HostMemoryReason["_tag"], input: ReasonInput): HostMemoryError =>
  new HostMemoryError({ reason: reasonOf(tag, input) })

/** Where another process finds a storage. */
export const HostMemoryHandle = Schema.Struct({
  version: Schema.Literal(1),
  pid: Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 2 ** 31 - 1 })),
  /** Start time of the process in clock ticks since boot, so that a reused pid is noticed. */
  processStart: Schema.String.check(Schema.isPattern(/^\d{1,20}$/)),
  descriptor: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 2 ** 31 - 1 })),
  /** Inode of the memory file, so that a reused descriptor is noticed. */
  inode: Schema.String.check(Schema.isPattern(/^\d{1,20}$/)),
  /** First byte of the storage within the memory file. */
  byteOffset: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER })),
  byteLength: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER })),
  generation: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER }))
})
export type HostMemoryHandle = typeof HostMemoryHandle.Type

/** What a host memory does. */
export interface HostMemoryShape {
  /** Zeroed memory, freed by the scope. A length of 0 is legal. */
  readonly allocate: (byteLength: number) => Effect.Effect<Storage, HostMemoryError, EffectScope.Scope>
  /** What another process needs to map this memory. It leads nowhere once the memory is freed. */
  readonly share: (storage: Storage) => Effect.Effect<HostMemoryHandle, HostMemoryError>
  /**
   * Maps memory of another process (or of this one) to read it; unmapped by the scope. What is written here stays here.
   */
  readonly open: (handle: HostMemoryHandle) => Effect.Effect<Storage, HostMemoryError, EffectScope.Scope>
  /**
   * The same, but what is written here reaches the owner and everyone who maps the memory. For memory whose parties have
   * a protocol for who writes when; unmapped by the scope.
   */
  readonly openShared: (handle: HostMemoryHandle) => Effect.Effect<Storage, HostMemoryError, EffectScope.Scope>
}

/** The service that allocates host memory which other processes of the machine can map. */
export class HostMemory extends Context.Service<HostMemory, HostMemoryShape>()(
  "@tensorferry/core/service/HostMemory"
) {}
