// SPDX-License-Identifier: Apache-2.0
/**
 * The first step of every preparation: all ranks publish, and carry out what peers revoked.
 *
 * Invariant: publications are counted on all ranks alike; revocations are carried out whatever else is wrong with the
 * preparation, and only then does this rank say that they are.
 */
import type { Message } from "@tensorferry/core/ir/Message"
import type { CopyDriverError } from "@tensorferry/core/service/CopyDriver"
import { checkDeviceMessages, publishedLists } from "@tensorferry/gpu/publish"
import type { DriverAgreement } from "@tensorferry/native/driver/DriverAgreement"
import type { Checked } from "@tensorferry/native/driver/DriverErrors"
import { decodePeerLists, encodePeerList, type PeerList } from "@tensorferry/native/driver/PeerList"
import { processIdentity } from "@tensorferry/native/driver/ProcessIdentity"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import type { DriverParts } from "./driverParts.ts"
import { transferSizes } from "./options.ts"
import { decodePublication, encodePublication, type PublishedSettings } from "./Publication.ts"

/** What all ranks published, as this rank sees it. */
export interface Published {
  /** By rank. */
  readonly settings: ReadonlyArray<PublishedSettings>
  /** What peers list for this rank, by rank. */
  readonly lists: ReadonlyMap<number, PeerList>
  /** What this rank lists for peers. */
  readonly own: ReadonlyMap<number, PeerList>
  /** By rank, the ranks that it has anything to do with. */
  readonly neighbours: ReadonlyArray<ReadonlyArray<number>>
}

type Statement = { readonly settings: PublishedSettings; readonly lists: ReadonlyMap<number, string> }

export const makePublisher = (parts: DriverParts, agreement: DriverAgreement) => {
  const { kind, gpu, group, options, errors, mappings, connections, sharing } = parts
  const { rank, size } = group
  const { stagingBytes, directBytes } = transferSizes(options)
  let publications = 0
  let carriedOut = 0

  const settings = (publication: number): PublishedSettings => ({
    process: processIdentity(),
    deviceUuid: gpu.facts.uuid,
    ordinal: gpu.ordinal,
    direction: options.direction ?? "auto",
    stagingBytes,
    directBytes,
    hasCollectives: gpu.hasCollectives,
    connection: connections.number(),
    revoked: sharing.revoked(publication),
    carriedOut
  })

  const carryOut = (publication: number, statements: ReadonlyArray<Statement>): void => {
    for (const [peer, { settings: theirs }] of statements.entries()) {
      if (peer !== rank) mappings.revoke(theirs.process, theirs.revoked)
    }
    sharing.settle(Math.min(...statements.map((each) => each.settings.carriedOut)))
    carriedOut = publication
  }

  /** Fails as a whole where the group fails; what was published wrongly is a value, since other steps follow. */
  return (messages: ReadonlyArray<Message>): Effect.Effect<Checked<Published>, CopyDriverError> =>
    Effect.gen(function* () {
      publications += 1
      const publication = publications
      const fault = Result.getFailure(checkDeviceMessages(errors, gpu, size, messages))
      const lists = () => publishedLists(messages, kind === "nccl" ? undefined : sharing)
      const own: ReturnType<typeof lists> = Option.isNone(fault) ? lists() : new Map()
      const payloads = yield* agreement.gather(
        "publish",
        encodePublication({
          settings: settings(publication),
          lists: new Map([...own].map(([peer, list]) => [peer, encodePeerList(list)])),
          fault: Option.match(fault, { onNone: () => null, onSome: ({ reason }) => reason })
        })
      )
      const read = agreement.read(payloads, (bytes) =>
        Result.map(decodePublication(bytes), (value) => ({ _tag: "Done" as const, value }))
      )
      if (Result.isFailure(read)) return Result.fail(read.failure)
      const statements = read.success
      carryOut(publication, statements)
      const failed = statements.find((each) => each.fault !== null)?.fault
      if (failed != null) return Result.fail(errors.reported(failed))
      const texts = statements.map((each) => each.lists.get(rank))
      return Result.map(decodePeerLists(errors, texts), (decoded) => ({
        settings: statements.map((each) => each.settings),
        lists: decoded,
        own,
        neighbours: statements.map((each) => [...each.lists.keys()])
      }))
    })
}
