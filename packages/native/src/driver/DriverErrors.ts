// SPDX-License-Identifier: Apache-2.0
/**
 * Errors of a copy driver, with the remedies that go with their reasons.
 *
 * Invariant: every error names the backend and the rank, and tells the reader what to do. An error that names a peer is
 * about that peer alone unless it says otherwise.
 */
import { type CopyDriverError, type CopyDriverReason, copyDriverError } from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroupError } from "@tensorferry/core/service/ProcessGroup"
import type * as Result from "effect/Result"
import { describeFailure } from "../describeFailure.ts"
import type { NativeFailure } from "../NativeAddon.ts"

/** What a step answers, or why the driver cannot go on. */
export type Checked<A> = Result.Result<A, CopyDriverError>

/** What the reader can do, by what happened. */
export type Remedies = Readonly<Record<CopyDriverReason["_tag"], string>>

const defaultRemedies: Remedies = {
  PeerGone: "Start the peer again, and build the service again.",
  TransportFailed: "Look up the native code, and build the service again.",
  UnreachableMemory: "Allocate with this backend's engine, or choose another backend.",
  Unsupported: "Look at the driver's capabilities.",
  Broken: "Build the driver again; the copy service does so at its next run.",
  InvalidProgram: "Prepare the messages again, equal on both ends, with storage that stays open."
}

/** What an error is about. Absent fields and a native code of 0 are left out of it. */
export interface ErrorFacts {
  readonly peer?: number | undefined
  readonly taskId?: number | undefined
  readonly nativeCode?: number | undefined
  readonly op?: string | undefined
  /** How much is broken: everything with the peer where one is named, else this operation. */
  readonly scope?: "op" | "peer" | "service"
  /** Instead of the one that goes with the reason. */
  readonly remedy?: string
}

/** How one rank of a driver fails. */
export interface DriverErrors {
  /** Named in every error. */
  readonly backend: string
  /** Of this process, named in every error. */
  readonly rank: number
  /** Makes an error of this reason, with the usual remedy. */
  readonly fail: (tag: CopyDriverReason["_tag"], detail: string, facts?: ErrorFacts) => CopyDriverError
  /** The failure that a rank reported, this one included. */
  readonly reported: (reason: CopyDriverReason) => CopyDriverError
  /** A failure of the device, which leaves nothing of the driver to rely on. */
  readonly ofNative: (failure: NativeFailure, op: string) => CopyDriverError
  /** A failure of the group, that is of the ranks to meet. */
  readonly ofGroup: (error: ProcessGroupError, op?: string) => CopyDriverError
}

/** The errors of a backend's driver on one rank. `remedies` replace the general ones. */
export const driverErrors = (backend: string, rank: number, remedies: Partial<Remedies> = {}): DriverErrors => {
  const remedyOf = { ...defaultRemedies, ...remedies }
  const fail: DriverErrors["fail"] = (tag, detail, facts = {}) => {
    const { peer, taskId, nativeCode, op, ...rest } = facts
    return copyDriverError(tag, {
      backend,
      rank,
      detail,
      remedy: remedyOf[tag],
      ...(peer === undefined ? {} : { peer, scope: "peer" as const }),
      ...(taskId === undefined ? {} : { taskId }),
      ...(nativeCode === undefined || nativeCode === 0 ? {} : { nativeCode }),
      ...(op === undefined ? {} : { op }),
      ...rest
    })
  }
  const tagOf = ({ _tag, code }: { readonly _tag?: string; readonly code?: string }) =>
    _tag === "PeerGone" || code === "PeerGone" ? "PeerGone" : "TransportFailed"
  return {
    backend,
    rank,
    fail,
    reported: ({ _tag, ...fields }) => copyDriverError(_tag, fields),
    ofNative: (failure, op) =>
      fail(tagOf(failure), describeFailure(failure), { op, nativeCode: failure.nativeCode, scope: "service" }),
    ofGroup: ({ reason, ranks }, op) => fail(tagOf(reason), reason.detail, { op, peer: ranks[0] })
  }
}
