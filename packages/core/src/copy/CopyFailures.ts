// SPDX-License-Identifier: Apache-2.0
/** What engines, drivers and groups fail with, as errors of a copy service; and which of two failures says more. */
import type { Rank } from "../base/Ids.ts"
import type { CopyDriverError } from "../service/CopyDriver.ts"
import { type CopyError, copyError } from "../service/CopyService.ts"
import type { ProcessGroupError } from "../service/ProcessGroup.ts"
import type { TensorError } from "../service/TensorEngine.ts"

export const fromTensorError = (rank: Rank, op: string, error: TensorError): CopyError =>
  copyError("TransferFailed", [rank], {
    ...error.reason,
    rank,
    op,
    detail: `The tensor engine failed: ${error.message}`
  })

export const fromDriverError = (rank: Rank, op: string, error: CopyDriverError): CopyError => {
  const tag =
    error.reason._tag === "PeerGone"
      ? "PeerGone"
      : error.reason._tag === "Unsupported"
        ? "Unsupported"
        : "TransferFailed"
  const { _tag, ...fields } = error.reason
  return copyError(tag, fields.peer === undefined ? [rank] : [fields.peer], {
    ...fields,
    rank,
    op,
    detail: tag === "TransferFailed" ? `${_tag}: ${fields.detail}` : fields.detail
  })
}

/** Turns a failure of the group into the service's error, naming the same ranks. */
export const fromGroupError = (rank: Rank, op: string, error: ProcessGroupError): CopyError =>
  copyError(
    error.reason._tag === "PeerGone"
      ? "PeerGone"
      : error.reason._tag === "DeadlineExceeded"
        ? "DeadlineExceeded"
        : "TransferFailed",
    error.ranks,
    {
      rank,
      ...(error.ranks[0] === undefined ? {} : { peer: error.ranks[0] }),
      op,
      scope: "peer",
      isRetryable: true,
      detail: error.reason.detail,
      remedy: error.reason.remedy
    }
  )

/**
 * Of a rank's own failure and the group's: the own one, unless it only says that a peer was lost or waited for, and the
 * group knows which rank is gone, or which one a lost peer waited for in vain.
 */
export const nearerCause = (own: CopyError | undefined, group: CopyError): CopyError => {
  if (own === undefined) return group
  const [ownTag, groupTag] = [own.reason._tag, group.reason._tag]
  const isLost = ownTag === "PeerGone"
  const isNearer = groupTag === "PeerGone" || (isLost && groupTag === "DeadlineExceeded")
  return (isLost || ownTag === "DeadlineExceeded") && isNearer ? group : own
}
