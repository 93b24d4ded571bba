// SPDX-License-Identifier: Apache-2.0
/**
 * Names what ranks disagree on, once their digests have shown that they do. Lists of parts are only exchanged then: of a
 * large model they have megabytes, and nobody needs them to move bytes.
 */
import type { Message } from "@tensorferry/core/ir/Message"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { Checked, DriverErrors } from "./DriverErrors.ts"
import { flowsOf } from "./Flows.ts"
import { decodeText, encodeText } from "./Outcome.ts"
import { decodePeerLists, encodePeerList } from "./PeerList.ts"
import { listByPeer } from "./PeerListing.ts"

/** What this rank has, by peer. */
export const encodeLists = (messages: ReadonlyArray<Message>): Uint8Array => {
  const lists = listByPeer(messages, () => ({
    describe: () => undefined,
    finish: ({ messages: listed }) => encodePeerList({ blocks: [], memories: [], messages: listed })
  }))
  return encodeText(Object.fromEntries(lists))
}

const decodeLists = decodeText(Schema.Record(Schema.String, Schema.String))

/** The disagreement that concerns this rank; success where there is none. */
export const findDisagreement = (
  errors: DriverErrors,
  messages: ReadonlyArray<Message>,
  payloads: ReadonlyArray<Uint8Array>
): Checked<void> => {
  const texts: Array<string | undefined> = []
  for (const [peer, payload] of payloads.entries()) {
    const lists = decodeLists(payload)
    if (Result.isFailure(lists))
      return Result.fail(errors.fail("InvalidProgram", lists.failure, { peer, op: "prepare" }))
    texts.push(lists.success[errors.rank])
  }
  return Result.flatMap(decodePeerLists(errors, texts), (lists) =>
    Result.map(flowsOf(errors, messages, lists, { here: 0, there: () => 0 }), () => undefined)
  )
}
