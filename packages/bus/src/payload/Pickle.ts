// SPDX-License-Identifier: Apache-2.0
/**
 * Pickles of payloads: what the closed reader of `@tensorferry/model` may find in them, and its faults as errors of
 * payloads.
 *
 * Invariant: only names of `PickleNames.ts` occur, and nothing is called.
 */
import { type PickleFault, readClosedPickle, type PickleValue as Value } from "@tensorferry/model/pickle/ClosedPickle"
import * as Result from "effect/Result"
import { type PayloadError, payloadError } from "./PayloadError.ts"
import { type PickleName, pickleName } from "./PickleNames.ts"

/** A pickle of a payload as data. */
export type PickleValue = Value<PickleName>

/** Longest pickle; a payload describes a tensor and does not hold it. */
export const longestPickle = 1024 * 1024

/** Reported at once: what else such a pickle names is on no list. */
const descriptorSharing: PickleFault = {
  kind: "Unsupported",
  detail: "The tensor is shared by a file descriptor, which another program cannot take over.",
  remedy: 'Call torch.multiprocessing.set_sharing_strategy("file_system") before the first tensor is shared.'
}

/**
 * Reads a pickle of at most 1 MiB. Fails with Malformed for bytes that are no pickle of protocol 4, with Forbidden for
 * an operation or name that is not allowed, and with Unsupported for a tensor shared by file descriptor.
 */
export const readPickle = (bytes: Uint8Array): Result.Result<PickleValue, PayloadError> =>
  Result.mapError(
    readClosedPickle<PickleName>(bytes, {
      protocols: [4],
      mostBytes: longestPickle,
      mostValues: longestPickle,
      nameOf: (module, name) => {
        const found = pickleName(module, name)
        return found === "rebuild_storage_fd" ? descriptorSharing : found
      },
      users: "payloads",
      dicts: new Set(),
      allowsReferences: false
    }),
    ({ kind, detail, remedy }) =>
      payloadError(kind, {
        op: "read pickle",
        detail,
        remedy:
          remedy ??
          "Send a tuple of whole numbers, a tuple of placements, or a tensor shared by PyTorch, as protocol 4."
      })
  )
