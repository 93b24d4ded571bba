/**
 * The first step of every preparation: all ranks publish, and carry out what peers revoked.
 *
 * Invariant: publications are counted on all ranks alike; revocations are carried out whatever else is wrong with the
 * preparation, and only then are they told to be.
 */
import type { Message } from "@tensorferry/core/ir/Message"
import type { CopyDriverError } from "@tensorferry/core/service/CopyDriver"
import { checkMessage, publishedLists } from "@tensorferry/gpu/publish"
import type { Agreement } from "@tensorferry/native/driver/DriverAgreement"
import type { Checked } from "@tensorferry/native/driver/DriverErrors"
import { decodePeerList, encodePeerList, type PeerList } from "@tensorferry/native/driver/PeerList"
import { processIdentity } from "@tensorferry/native/driver/ProcessIdentity"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { transferSizes } from "./options.ts"
import { decodePublication, encodePublication, type PublishedSettings } from "./Publication.ts"
import type { DriverParts } from "./prepareTransfer.ts"

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

type Told = { readonly settings: PublishedSettings; readonly lists: ReadonlyMap<number, string> }

export const makePublisher = (parts: DriverParts, agreement: Agreement) => {
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

  const carryOut = (publication: number, told: ReadonlyArray<Told>): void => {
    for (const [peer, { settings: theirs }] of told.entries()) {
      if (peer !== rank) mappings.revoke(theirs.process, theirs.revoked)
    }
    sharing.settle(Math.min(...told.map((each) => each.settings.carriedOut)))
    carriedOut = publication
  }

  /** The lists that peers have for this rank. */
  const listsFor = (told: ReadonlyArray<Told>): Checked<ReadonlyMap<number, PeerList>> => {
    const lists = new Map<number, PeerList>()
    for (const [peer, each] of told.entries()) {
      const text = peer === rank ? undefined : each.lists.get(rank)
      if (text === undefined) continue
      const list = decodePeerList(text)
      if (Result.isFailure(list)) {
        return Result.fail(errors.fail("InvalidProgram", list.failure, { peer, op: "prepare" }))
      }
      lists.set(peer, list.success)
    }
    return Result.succeed(lists)
  }

  /** Fails as a whole where the group fails; what was published wrongly is a value, since other steps follow. */
  return (messages: ReadonlyArray<Message>): Effect.Effect<Checked<Published>, CopyDriverError> =>
    Effect.gen(function* () {
      publications += 1
      const publication = publications
      const fault = messages.map((message) => checkMessage(errors, gpu, rank, size, message)).find(Result.isFailure)
      const own = fault === undefined ? publishedLists(messages, kind === "nccl" ? undefined : sharing) : new Map()
      const encoded = new Map([...own].map(([peer, list]) => [peer, encodePeerList(list)] as const))
      const payloads = yield* agreement.gather(
        "publish",
        encodePublication({ settings: settings(publication), lists: encoded, fault: fault?.failure.reason ?? null })
      )
      const told = agreement.read(payloads, (bytes) =>
        Result.map(decodePublication(bytes), (value) => ({ _tag: "Done" as const, value }))
      )
      if (Result.isFailure(told)) return Result.fail(told.failure)
      carryOut(publication, told.success)
      const failed = told.success.find((each) => each.fault !== null)?.fault
      if (failed != null) return Result.fail(errors.told(failed))
      return Result.map(listsFor(told.success), (lists) => ({
        settings: told.success.map((each) => each.settings),
        lists,
        own,
        neighbours: told.success.map((each) => [...each.lists.keys()])
      }))
    })
}
