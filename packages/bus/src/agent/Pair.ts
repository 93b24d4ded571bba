// SPDX-License-Identifier: Apache-2.0
/**
 * A pair of layouts as one agent holds it: its members, its group and the copy service over it.
 *
 * Invariant: everything of a pair lives in the scope that made it and goes with it; a pair that lost a member stays broken
 * until it is made again, and whoever waits on it learns who is gone.
 */
import { randomUUID } from "node:crypto"
import type { Placement } from "@tensorferry/core/layout/Placement"
import { replicate } from "@tensorferry/core/layout/Placement"
import type { CopyService } from "@tensorferry/core/service/CopyService"
import { ProcessGroup, type ProcessGroupError } from "@tensorferry/core/service/ProcessGroup"
import { monotonicMillis } from "@tensorferry/core/service/RunningTime"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import { type BusError, busError } from "../BusError.ts"
import type { InitPair } from "../command/Command.ts"
import { decodeMeshShape, decodePlacements } from "../payload/LayoutPayload.ts"
import type { PayloadError } from "../payload/PayloadError.ts"
import { awaitEntries, type KeyValueError, type KeyValueStoreShape } from "../store/KeyValueStore.ts"
import { makeFate } from "./Fate.ts"
import { memberPrefix, type Pair } from "./Held.ts"
import type { MakePairGroup } from "./PairGroup.ts"
import { lostMember, watchPair } from "./PairWatch.ts"
import {
  areStill,
  describeMissing,
  encodeRegistration,
  gaveUp,
  membersOf,
  type PairMembers,
  type Registration,
  refusalOf
} from "./Registration.ts"
import type { HostIdentity } from "./thisHost.ts"

/** How tensors move between the members of a group: any copy service with its engine. */
export type Transport = Layer.Layer<CopyService | TensorEngine, unknown, ProcessGroup>

/** Transports of tensors on devices, by family such as `cuda`. */
export type DeviceTransports = { readonly [deviceFamily: string]: Transport }

/** What an agent brings to every pair that it makes. */
export interface PairSettings {
  /** The agent's rank among all agents of the store. */
  readonly rank: number
  /** The machine that the agent runs on. */
  readonly host: HostIdentity
  /** Whether tensors reach agents of other hosts. */
  readonly leavesHost: boolean
  /** Names this run of the agent; after a restart it is another. */
  readonly instance: string
  /** How long the agent waits for the other members. */
  readonly deadline: Duration.Duration
  readonly store: KeyValueStoreShape
  readonly makeGroup: MakePairGroup
  /** For tensors in memory of the host. */
  readonly transport: Transport
  /** By device family, for batches that lie on devices. */
  readonly deviceTransports: DeviceTransports
}

const op = "InitPair"
const mostSeconds = 1_000_000

/** How long a command may wait for other ranks: as it says, else as the agent does. */
export const waitOf = (
  commandOp: string,
  { timeout }: { readonly timeout: number | null },
  deadline: Duration.Duration
): Result.Result<Duration.Duration, BusError> => {
  if (timeout === null) return Result.succeed(deadline)
  return timeout > 0 && timeout <= mostSeconds
    ? Result.succeed(Duration.seconds(timeout))
    : Result.fail(
        busError("InvalidCommand", {
          op: commandOp,
          detail: `A command cannot wait for ${timeout} seconds.`,
          remedy: `State more than 0 and at most ${mostSeconds}, or nothing.`
        })
      )
}
const mostRanks = 2 ** 20
/** Names are part of keys, which are limited. */
const longestPairName = 200

const payloadFailed = (error: PayloadError): BusError =>
  busError("InvalidPayload", {
    op,
    detail: `${error.reason._tag}: ${error.reason.detail}`,
    remedy: error.reason.remedy
  })

/** Something under the pair could not be made or reached. */
export const storeFailed = (commandOp: string, error: KeyValueError): BusError =>
  busError(error.reason._tag === "DeadlineExceeded" ? "RemoteMissing" : "ServiceFailed", {
    op: commandOp,
    detail: error.reason.detail,
    remedy: error.reason.remedy,
    isRetryable: error.reason.isRetryable
  })

const invalid = (detail: string): BusError =>
  busError("InvalidCommand", { op, detail, remedy: "Correct the command; nothing was changed." })

/** Fails with InvalidCommand unless the name has 1 to 200 bytes in UTF-8; `what` says what is named. */
export const checkName = (commandOp: string, what: string, name: string): Effect.Effect<void, BusError> =>
  name.length > 0 && Buffer.byteLength(name) <= longestPairName
    ? Effect.void
    : Effect.fail(
        busError("InvalidCommand", {
          op: commandOp,
          detail: `The name of a ${what} has ${Buffer.byteLength(name)} bytes.`,
          remedy: `Use 1 to ${longestPairName} bytes.`
        })
      )

/** What this agent states about itself. */
const registrationOf = Effect.fnUntraced(function* (
  command: InitPair,
  settings: PairSettings
): Effect.fn.Return<Registration, BusError> {
  const { pairName, localName, remoteName } = command
  yield* checkName(op, "pair", pairName)
  yield* checkName(op, "side", localName)
  yield* checkName(op, "side", remoteName)
  if (localName === remoteName) return yield* invalid(`Pair ${pairName} has the name ${localName} on both sides.`)
  const size = Number(command.expectedWorldSize)
  if (!Number.isSafeInteger(size) || size < 1 || size > mostRanks) {
    return yield* invalid(`Pair ${pairName} expects ${command.expectedWorldSize} ranks on side ${localName}.`)
  }
  const shape = command.meshShapePayload === null ? Result.succeed([size]) : decodeMeshShape(command.meshShapePayload)
  if (Result.isFailure(shape)) return yield* payloadFailed(shape.failure)
  const mesh = shape.success
  const ranks = mesh.reduce((product, length) => product * length, 1)
  if (mesh.length === 0 || ranks !== size) {
    return yield* invalid(
      `Mesh [${mesh.join(",")}] of pair ${pairName} does not hold the ${size} ranks that it expects.`
    )
  }
  const placements: Result.Result<ReadonlyArray<Placement>, PayloadError> = command.placementsPayload === null
    ? Result.succeed(mesh.map(() => replicate))
    : decodePlacements(command.placementsPayload)
  if (Result.isFailure(placements)) return yield* payloadFailed(placements.failure)
  return {
    version: 2,
    host: settings.host,
    leavesHost: settings.leavesHost,
    instance: settings.instance,
    attempt: randomUUID(),
    rank: settings.rank,
    side: localName,
    remote: remoteName,
    size,
    mesh,
    placements: placements.success
  }
})

const isPartial = (members: PairMembers, side: 0 | 1): boolean =>
  members.sides[side].layout.placements.some(({ _tag }) => _tag === "Partial")

const build = Effect.fnUntraced(function* (
  command: InitPair,
  registration: Registration,
  settings: PairSettings,
  scope: Scope.Closeable
) {
  const { pairName } = command
  const { store, rank } = settings
  const wait = yield* Effect.fromResult(waitOf(op, command, settings.deadline))
  const prefix = memberPrefix(pairName)
  const key = `${prefix}${rank}`
  let refused: string | undefined
  yield* Effect.acquireRelease(store.put(key, encodeRegistration(registration), { isEphemeral: true }), (_, exit) => {
    // A refusal stays until the next attempt, for those who have not read it yet; so does that this agent gave up.
    const left = refused ?? (exit._tag === "Failure" ? encodeRegistration(gaveUp(rank)) : undefined)
    return Effect.ignore(left === undefined ? store.remove(key) : store.put(key, left, { isEphemeral: true }))
  })
  const meet = (left: Duration.Duration) =>
    awaitEntries(
      store,
      prefix,
      (entries) =>
        Effect.tapError(Effect.fromResult(membersOf(pairName, registration, entries)), (error) =>
          Effect.sync(() => {
            refused = encodeRegistration(refusalOf(pairName, registration, entries, error))
          })
        ),
      left,
      (entries) => describeMissing(pairName, registration, entries)
    )
  const until = (yield* monotonicMillis) + Duration.toMillis(wait)
  // A member may have registered for a pair of before, and do it again only now: then the ranks meet again.
  const pair = Effect.gen(function* () {
    for (;;) {
      const left = Duration.millis(Math.max(1, until - (yield* monotonicMillis)))
      const members = yield* meet(left)
      if (isPartial(members, 0) && isPartial(members, 1)) {
        return yield* busError("PartialTarget", {
          op,
          detail: `Both sides of pair ${pairName} hold contributions, so nothing can move either way.`,
          remedy: "Shard or replicate one side."
        })
      }
      const changed = awaitEntries(
        store,
        prefix,
        (entries) => Effect.succeed(areStill(pairName, registration, members, entries) ? undefined : "changed"),
        Duration.infinity,
        () => ""
      )
      const formed = yield* formOrElse(pairName, members, settings, left, changed, scope)
      if (formed === undefined) continue
      const pair: Pair = {
        name: pairName,
        members,
        rank: members.agents.indexOf(rank),
        side: members.sides[0].name === registration.side ? 0 : 1,
        ...formed,
        turn: yield* Semaphore.make(1),
        scope,
        transfers: yield* Scope.fork(scope),
        fate: makeFate(),
        claims: new Set(),
        registered: 0,
        dealt: new Map(),
        marks: new Map(),
        retired: []
      }
      yield* watchPair(pair, store)
      return pair
    }
  })
  return yield* Effect.raceFirst(pair, lostMember(pairName, store))
})

/** The group of these members and what moves tensors in it; nothing, and undefined, where `changed` comes first. */
const formOrElse = Effect.fnUntraced(function* (
  pair: string,
  members: PairMembers,
  { rank, store, deadline, makeGroup, transport }: PairSettings,
  connectDeadline: Duration.Duration,
  changed: Effect.Effect<unknown, KeyValueError>,
  within: Scope.Scope
) {
  const scope = yield* Scope.fork(within)
  const form = Effect.gen(function* () {
    const own = members.agents.indexOf(rank)
    const group = yield* makeGroup({ pair, members, rank: own, store, deadline, connectDeadline })
    const services = yield* Layer.build(Layer.provide(transport, Layer.succeed(ProcessGroup, group)))
    return { group, services }
  })
  const formed = yield* Effect.raceFirst(Scope.provide(form, scope), Effect.as(changed, undefined))
  if (formed === undefined) yield* Scope.close(scope, Exit.void)
  return formed
})

/** What kept a transport, or the group under it, from being made. */
export const transportFailed = (commandOp: string, what: string, error: unknown): BusError => {
  if (typeof error === "object" && error !== null && "_tag" in error) {
    if (error._tag === "BusError") return error as BusError
    if (error._tag === "KeyValueError") return storeFailed(commandOp, error as KeyValueError)
    if (error._tag === "ProcessGroupError") {
      const { reason } = error as ProcessGroupError
      const isLate = reason._tag === "DeadlineExceeded" || reason._tag === "RendezvousFailed"
      return busError(isLate ? "RemoteMissing" : "PairBroken", {
        op: commandOp,
        detail: `${what}: ${reason.detail}`,
        remedy:
          "See whether the agents of the pair run and can reach each other, then send InitPair again on all ranks.",
        isRetryable: true
      })
    }
  }
  return busError("ServiceFailed", {
    op: commandOp,
    detail: `${what}: the transport could not be built: ${error instanceof Error ? error.message : String(error)}`,
    remedy: "See what the backend needs with `tensorferry doctor`."
  })
}

/** Waits for all members and builds the pair, in a scope of its own; nothing is left of a pair that fails. */
export const initPair = Effect.fnUntraced(function* (
  command: InitPair,
  settings: PairSettings,
  within: Scope.Scope
): Effect.fn.Return<{ readonly pair: Pair; readonly registration: Registration }, BusError> {
  const registration = yield* registrationOf(command, settings)
  const pair = yield* Effect.uninterruptibleMask((restore) =>
    Effect.gen(function* () {
      const scope = yield* Scope.fork(within)
      return yield* Effect.onExit(
        restore(Scope.provide(build(command, registration, settings, scope), scope)),
        (exit) => (exit._tag === "Failure" ? Scope.close(scope, exit) : Effect.void)
      )
    })
  ).pipe(Effect.mapError((error) => transportFailed(op, `Pair ${command.pairName}`, error)))
  return { pair, registration }
})
