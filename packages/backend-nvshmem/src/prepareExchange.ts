// SPDX-License-Identifier: Apache-2.0
/**
 * A preparation on one rank: publishes what it has to send, agrees with them on the job and the schedule, and makes
 * the program of its part.
 *
 * Invariant: the collectives are reached by every rank whatever fails between them, each reports the failures so far, and
 * the failure of one rank is the failure of all.
 */
import type { Message } from "@tensorferry/core/ir/Message"
import type { CopyDriverError } from "@tensorferry/core/service/CopyDriver"
import { checkDeviceMessages } from "@tensorferry/gpu/publish"
import type { Checked } from "@tensorferry/native/driver/DriverErrors"
import { encodePeerList } from "@tensorferry/native/driver/PeerList"
import { processIdentity } from "@tensorferry/native/driver/ProcessIdentity"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { compileExchange, type PreparedExchange } from "./compileExchange.ts"
import { cutShare, ownLists } from "./cutShare.ts"
import type { DriverParts } from "./driverParts.ts"
import { reasonUnusable } from "./LibraryState.ts"
import type { Membership } from "./Membership.ts"
import { exchangeSizes } from "./options.ts"
import { decodeShare, decodeStatement, type Statement } from "./Publication.ts"

/** The preparations of one driver. */
export const makePreparer = (parts: DriverParts, membership: Membership) => {
  const { gpu, group, options, errors, agreement } = parts
  const sizes = exchangeSizes(options)

  const statementOf = (messages: ReadonlyArray<Message>): Checked<Statement> => {
    const why = reasonUnusable(gpu.ordinal)
    if (why !== undefined) {
      const detail = `NVSHMEM of the process of rank ${group.rank} cannot be used any more: ${why} Start the process again.`
      return Result.fail(errors.fail("Broken", detail, { op: "prepare", scope: "service" }))
    }
    return Result.map(checkDeviceMessages(errors, gpu, group.size, messages), () => ({
      process: processIdentity(),
      ordinal: gpu.ordinal,
      ...membership.standing(sizes.slotBytes, sizes.slots),
      lists: Object.fromEntries([...ownLists(messages)].map(([peer, list]) => [String(peer), encodePeerList(list)]))
    }))
  }

  const publish = (messages: ReadonlyArray<Message>) =>
    Effect.suspend(() => agreement.agree("publish", statementOf(messages), decodeStatement))

  const prepare = (messages: ReadonlyArray<Message>): Effect.Effect<PreparedExchange, CopyDriverError, Scope.Scope> =>
    Effect.gen(function* () {
      const statements = yield* publish(messages)
      const member = yield* membership.ensure(statements)
      const own = cutShare(parts, messages, statements, member)
      const shares = yield* agreement.agree(
        "batches",
        Result.map(own, ({ share }) => share),
        decodeShare
      )
      // No rank reported a failure, so there is none here either.
      const cut = yield* Effect.fromResult(own)
      const compiled = yield* Effect.result(compileExchange(parts, { cut, shares, statements, member }))
      return yield* agreement.settle("outcome", compiled)
    })

  /** Joins the job, if this rank has no part in one. Every rank calls it. */
  const join = Effect.flatMap(publish([]), membership.ensure)

  return { prepare, join }
}
