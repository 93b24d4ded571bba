/**
 * Errors of the copy drivers, with the remedies that go with their reasons.
 */

import { type CopyDriverError, type CopyDriverReason, copyDriverError } from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroupError } from "@tensorferry/core/service/ProcessGroup"
import type * as Result from "effect/Result"
import { describeFailure } from "../describeFailure.ts"
import type { NativeFailure } from "../NativeAddon.ts"

export type Checked<A> = Result.Result<A, CopyDriverError>

const remedies: Record<CopyDriverReason["_tag"], string> = {
  PeerGone: "Start the peer again and build the service anew.",
  TransportFailed: "Look up the native code; build the service anew.",
  UnreachableMemory:
    "Allocate with this backend's engine on devices that access each other, or choose the backend cuda.",
  Unsupported: "Look at the driver's capabilities.",
  Broken: "Build the service anew; the service does so by itself at its next run.",
  InvalidProgram: "Prepare the messages again, equal on both ends, with storage that stays open."
}

interface Facts {
  readonly peer?: number | undefined
  readonly taskId?: number | undefined
  readonly nativeCode?: number | undefined
  readonly op?: string
  readonly scope?: "op" | "peer" | "service"
}

export const driverErrors = (backend: string, rank: number) => {
  const fail = (tag: CopyDriverReason["_tag"], detail: string, facts: Facts = {}): CopyDriverError => {
    const { peer, taskId, nativeCode, ...rest } = facts
    return copyDriverError(tag, {
      backend,
      rank,
      detail,
      remedy: remedies[tag],
      ...(peer === undefined ? {} : { peer, scope: "peer" as const }),
      ...(taskId === undefined ? {} : { taskId }),
      ...(nativeCode === undefined || nativeCode === 0 ? {} : { nativeCode }),
      ...rest
    })
  }
  return {
    fail,
    /** What another rank told, or this one itself. */
    told: ({ _tag, ...fields }: CopyDriverReason): CopyDriverError => copyDriverError(_tag, fields),
    /** A failure of the device, which leaves nothing of the driver to rely on. */
    ofNative: (failure: NativeFailure, op: string): CopyDriverError =>
      fail(failure.code === "PeerGone" ? "PeerGone" : "TransportFailed", describeFailure(failure), {
        op,
        nativeCode: failure.nativeCode,
        scope: "service"
      }),
    ofGroup: ({ reason, ranks }: ProcessGroupError, op: string): CopyDriverError =>
      fail(reason._tag === "PeerGone" ? "PeerGone" : "TransportFailed", reason.detail, { op, peer: ranks[0] })
  }
}

export type DriverErrors = ReturnType<typeof driverErrors>
