// SPDX-License-Identifier: Apache-2.0
/**
 * The shell around the states of a member and a controller: it carries out what they say, against the store, other members
 * and this process's weights. It decides nothing.
 */
import { randomUUID } from "node:crypto"
import { type KeyValueError, KeyValueStore, type KeyValueStoreShape } from "@tensorferry/bus/store/KeyValueStore"
import { digestOf } from "@tensorferry/core/base/Digest"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Cause from "effect/Cause"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Queue from "effect/Queue"
import * as Result from "effect/Result"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import * as SubscriptionRef from "effect/SubscriptionRef"
import type { EdgeOptions } from "../edges/EdgeLine.ts"
import { makeEdgePool } from "../edges/EdgePool.ts"
import { type Giver, type GiverOf, give, knocksOf } from "../edges/giveChunks.ts"
import { checkAlike, checkWeights, type Weights, weightBytes } from "../edges/Pieces.ts"
import { FleetError, fleetError } from "../FleetError.ts"
import { reportProgress } from "../progress/reportProgress.ts"
import { checkShards, type FleetLayout, indexLayout } from "../shards/ShardLayout.ts"
import { type ControllerEvent, controllerStep, neededBy, newController } from "../version/ControllerState.ts"
import type { CommitPolicy, FleetMember, FleetState } from "../version/FleetLog.ts"
import { defaultFleetTimes, type FleetTimes } from "../version/FleetTimes.ts"
import type { Manifest } from "../version/Manifest.ts"
import {
  canServe,
  type MemberEffect,
  type MemberEvent,
  memberStep,
  newMember,
  reportOf
} from "../version/MemberState.ts"
import { wholeCarrying } from "./Carrying.ts"
import { edgeOptionsOf, type ReachOptions } from "./edgeOptionsOf.ts"
import { Fleet, type FleetShape, type FleetStatus } from "./Fleet.ts"
import { makeFleetStore } from "./FleetStore.ts"
import { makeGate, seconds } from "./Gate.ts"
import { makeHoldings } from "./Holdings.ts"
import { shardCarrying } from "./ShardCarrying.ts"
import { stagePlan } from "./stagePlan.ts"

/** A process's part in a fleet. */
export interface FleetOptions extends ReachOptions {
  /** Fleets of other names in one store have nothing to do with each other. */
  readonly name: string
  /** A source brings new versions, a replica receives and serves them. */
  readonly role: FleetMember["role"]
  /** Where a replica receives the next version: the same names, types and shapes in other memory. */
  readonly incoming?: Weights
  /** The version before the one in use, for going back without receiving it again. */
  readonly kept?: Weights
  /** Whether this process also leads updates and removes the dead; sources do by default. One is enough, more are safe. */
  readonly controls?: boolean
  /**
   * Where replicas, or the source, are several processes: what each of them holds. Equal on all members. Without it every
   * member holds all of the weights.
   */
  readonly layout?: FleetLayout
  /** Equal on all members. */
  readonly times?: FleetTimes
  /** Runs when no program of `use` is left, before weights change. */
  readonly onPause?: Effect.Effect<void>
  /** Runs before programs of `use` are let in again. */
  readonly onResume?: Effect.Effect<void>
}

const checkOptions = ({ weights, incoming, kept, role }: FleetOptions): Result.Result<undefined, FleetError> =>
  Result.gen(function* () {
    yield* checkWeights(weights, "used")
    if (incoming === undefined && role === "replica") {
      const remedy = "Give a replica memory in which it can receive a version beside the one in use."
      return yield* Result.fail(fleetError("InvalidOptions", [], { detail: "There are no incoming tensors.", remedy }))
    }
    for (const other of [incoming, kept]) {
      if (other === undefined) continue
      yield* checkWeights(other, "incoming or kept")
      yield* checkAlike(weights, other)
    }
    return undefined
  })

const shardsOf = (options: FleetOptions) =>
  Result.gen(function* () {
    const { layout, rank, role, weights } = options
    if (layout === undefined) return undefined
    const shards = yield* indexLayout(layout, rank, role)
    yield* checkShards(shards, weights)
    return shards
  })

/** A replica of several processes, as members name it. */
const partOf = (group: ReadonlyArray<number>) => ({ replica: group.join("+"), of: group.length })

/** A controller over the store: what it is told, and when it has to look at everything. */
const makeControl = Effect.fnUntraced(function* (
  store: ReturnType<typeof makeFleetStore>,
  id: string,
  times: FleetTimes
) {
  let controller = newController(id, times)
  const commands = yield* Queue.unbounded<ControllerEvent>()
  const allDue = yield* Queue.sliding<void>(1)
  const act = Effect.gen(function* () {
    const event = yield* Queue.take(commands)
    const [next, effects] = controllerStep(controller, event)
    controller = next
    for (const effect of effects) {
      if (effect._tag === "Look") yield* Queue.offer(allDue, undefined)
      else if (effect._tag === "Append") {
        yield* Effect.ignore(store.append(effect.incarnation, effect.position, effect.entry))
        yield* Queue.offer(allDue, undefined)
      } else {
        yield* store.forget(yield* store.lookAtAll, effect.before)
      }
    }
  })
  const look = Effect.gen(function* () {
    yield* Queue.take(allDue)
    yield* Queue.offer(commands, { _tag: "Read", ...(yield* store.lookAtAll) })
  })
  return { commands, allDue, act, look }
})

/** Takes part until the scope closes. Fails with InvalidOptions, or where the store cannot be reached at first. */
export const make = Effect.fnUntraced(function* (options: FleetOptions) {
  yield* Effect.fromResult(checkOptions(options))
  const kv = yield* KeyValueStore
  const context = yield* Effect.context<TensorEngine>()
  const scope = yield* Effect.scope
  const fork = <A, E>(effect: Effect.Effect<A, E, TensorEngine>) =>
    Effect.forkIn(Effect.provideContext(effect, context), scope)
  const times = options.times ?? defaultFleetTimes
  const store = makeFleetStore(kv, options.name)
  const shards = yield* Effect.fromResult(shardsOf(options))
  const part = shards === undefined || options.role === "source" ? {} : { part: partOf(shards.group) }
  const { rank, role } = options
  const self: FleetMember = { id: `${rank}-${randomUUID()}`, rank, role, ...part }

  let member = newMember(self, times)
  const statusAt = (now: number): FleetStatus => ({
    fleet: member.fleet,
    member,
    canServe: canServe(member, now)
  })
  const shown = yield* SubscriptionRef.make(statusAt(0))
  const changes = SubscriptionRef.changes(shown)
  const carrying =
    shards === undefined
      ? wholeCarrying(options.weights)
      : shardCarrying({
          layout: shards,
          self,
          store: kv,
          root: store.root,
          live: () => member.live?.content,
          fleets: Stream.map(changes, ({ fleet }) => fleet),
          deadline: Duration.seconds(times.stage)
        })
  const holdings = makeHoldings(options, carrying)
  const events = yield* Queue.unbounded<MemberEvent>()
  /** One mark that a look is due is as good as many. */
  const lookDue = yield* Queue.sliding<void>(1)
  const { commands, allDue, act, look } = yield* makeControl(store, self.id, times)
  const tell = (event: (now: number) => MemberEvent) =>
    Effect.flatMap(seconds, (now) => Queue.offer(events, event(now)))

  const show = Effect.flatMap(seconds, (now) => SubscriptionRef.set(shown, statusAt(now)))

  const giverOf = giverWhenKnown(changes, holdings.giverOf)

  const edgeOptions: EdgeOptions = {
    ...(yield* edgeOptionsOf(options)),
    untilRemoved: (id) => untilRemoved(changes, id),
    onGone: (id) => tell((now) => ({ _tag: "Missed", now, id }))
  }
  const edges = yield* makeEdgePool(kv, store.root, self, edgeOptions)

  const gate = makeGate(() => member)

  const progress = yield* reportProgress(kv, options.name, self.id, times)

  let stagingFiber: Fiber.Fiber<unknown, unknown> | undefined
  const stage = (manifest: Manifest) =>
    Effect.gen(function* () {
      if (stagingFiber !== undefined) yield* Fiber.interrupt(stagingFiber)
      const taken = Effect.gen(function* () {
        yield* progress.begin(manifest.serial, weightBytes(options.weights))
        if (yield* holdings.recall(manifest)) return
        const replan = (avoided: ReadonlySet<string>) =>
          stagePlan(member.fleet!, self, manifest, carrying.demand, options.topology, avoided)
        const plan = yield* Effect.fromResult(replan(new Set()))
        yield* edges.age
        const staging = holdings.begin(manifest)
        // Children may have asked for it already.
        yield* show
        yield* staging.run(plan, { edges, replan, progress })
      })
      stagingFiber = yield* fork(
        Effect.matchCauseEffect(taken, {
          onSuccess: () =>
            Effect.andThen(
              progress.staged(manifest.serial),
              tell((now) => ({ _tag: "Staged", now, manifest }))
            ),
          onFailure: (cause) =>
            Cause.hasInterruptsOnly(cause)
              ? Effect.void
              : tell((now) => ({ _tag: "StageFailed", now, manifest, reason: messageOf(cause), isLost: isLost(cause) }))
        })
      )
    })

  const carryOut = (effect: MemberEffect): Effect.Effect<unknown, never, never> => {
    switch (effect._tag) {
      case "Report":
        return Queue.offer(lookDue, undefined)
      case "Append":
        return Effect.ignore(store.append(effect.incarnation, effect.position, effect.entry))
      case "Stage":
        return stage(effect.manifest)
      case "Drop":
        return Effect.sync(() => holdings.drop())
      case "Pause":
        return fork(
          Effect.andThen(
            Effect.andThen(gate.unread, options.onPause ?? Effect.void),
            tell((now) => ({ _tag: "Paused", now }))
          )
        )
      case "Flip":
        return fork(
          Effect.matchCauseEffect(holdings.flip(effect.manifest), {
            onSuccess: () =>
              Effect.andThen(
                progress.live(effect.manifest.serial),
                tell((now) => ({ _tag: "Flipped", now, manifest: effect.manifest }))
              ),
            onFailure: (cause) => tell((now) => ({ _tag: "FlipFailed", now, reason: messageOf(cause) }))
          })
        )
      case "Resume":
        return options.onResume ?? Effect.void
    }
  }

  const memberLoop = Effect.gen(function* () {
    const event = yield* Queue.take(events)
    const before = reportOf(member)
    const [next, effects] = memberStep(member, event)
    member = next
    for (const effect of effects) yield* carryOut(effect)
    // What others wait for is stated at once, not at the next beat.
    if (digestOf({ ...reportOf(member), beat: 0 }) !== digestOf({ ...before, beat: 0 }))
      yield* Queue.offer(lookDue, undefined)
    yield* show
  })

  const lookLoop = Effect.gen(function* () {
    yield* Queue.take(lookDue)
    const askedAt = yield* seconds
    yield* store.report(reportOf(member))
    const { incarnation, entries } = yield* store.lookAtLog
    yield* tell((now) => ({ _tag: "Read", now, askedAt, incarnation, entries }))
  })

  /** A store that is away is asked again; what depends on it expires by itself. */
  const forever = <E, R>(effect: Effect.Effect<unknown, E, R>) =>
    Effect.forkIn(Effect.forever(Effect.catch(effect, () => Effect.sleep(times.beat * 250))), scope)
  const beats = (tick: Effect.Effect<unknown>, every = 1) =>
    Effect.forkIn(Effect.repeat(tick, Schedule.spaced(Duration.seconds(every * times.beat))), scope)
  const watched = (prefix: string, changed: Effect.Effect<unknown>) =>
    forever(Stream.runForEach(kv.watch(prefix), () => changed))

  const serveLoop = eachKnock(kv, store.root, self.id, ({ door, knock }) =>
    fork(Effect.ignore(give(kv, door, knock, giverOf, edgeOptions), { log: "Debug" }))
  )

  yield* store.lookAtLog
  yield* forever(memberLoop)
  yield* forever(lookLoop)
  yield* forever(serveLoop)
  yield* watched(`${store.root}log/`, Queue.offer(lookDue, undefined))
  yield* beats(tell((now) => ({ _tag: "Beat", now })))
  yield* beats(carrying.restate, 10)
  const controls = options.controls ?? options.role === "source"
  if (controls) {
    yield* forever(act)
    yield* forever(look)
    yield* watched(`${store.root}member/`, Queue.offer(allDue, undefined))
    yield* beats(Effect.flatMap(seconds, (now) => Queue.offer(commands, { _tag: "Beat", now })))
  }
  yield* Effect.addFinalizer(() => Effect.ignore(kv.remove(`${store.root}member/${self.id}`)))

  const publish: FleetShape["publish"] = ({ label, policy = { _tag: "All" } }) =>
    Effect.gen(function* () {
      if (options.role !== "source" || (carrying.leads && !controls)) return yield* notSource(self.rank)
      const since = member.fleet?.nextSerial ?? 1
      holdings.expect()
      const tensors = yield* Effect.provideContext(carrying.digests(options.weights, label, since), context).pipe(
        Effect.tapError((error) => Effect.sync(() => holdings.giveUp(error)))
      )
      const content = digestOf(tensors)
      holdings.hold(content)
      if (carrying.leads) {
        yield* Queue.offer(commands, { _tag: "Publish", wish: { label, content, tensors, policy } })
        yield* Queue.offer(allDue, undefined)
      }
      const { stage, prepare, fence, grace } = times
      return yield* untilEnded(changes, content, since).pipe(
        Effect.timeoutOrElse({
          // A proposal may have to wait for replicas or another update, and a commit for those who were removed.
          duration: Duration.seconds(2 * (stage + prepare) + fence + grace),
          orElse: () => Effect.fail(notProposed(member.fleet, policy))
        }),
        Effect.ensuring(Queue.offer(commands, { _tag: "Withdraw", content }))
      )
    })

  return Fleet.of({ status: Effect.map(seconds, statusAt), changes, publish, use: gate.use })
})

/** Ends when a member is none any more. */
const untilRemoved = (changes: Stream.Stream<FleetStatus>, id: string): Effect.Effect<void> =>
  Effect.asVoid(
    Stream.runHead(Stream.filter(changes, ({ fleet }) => fleet?.members.every((other) => other.id !== id) === true))
  )

/**
 * Who asks for a version may have read of it before this member has, or has begun to take it. It waits for that, and is not
 * sent to another member, which would give the same bytes twice.
 */
const giverWhenKnown =
  (changes: Stream.Stream<FleetStatus>, giverNow: (content: string) => Giver | undefined): GiverOf =>
  ({ content, serial }) =>
    Effect.map(
      Stream.runHead(
        Stream.filter(
          Stream.map(changes, ({ fleet, member: { failures, self } }) => {
            const giver = giverNow(content)
            const isUnheard = serial !== undefined && (fleet === undefined || fleet.nextSerial <= serial)
            const isOpen = failures === 0 && self.role === "replica" && fleet?.open?.manifest.content === content
            return giver === undefined && (isUnheard || isOpen) ? "coming" : giver
          }),
          (found) => found !== "coming"
        )
      ),
      Option.getOrUndefined
    )

/** Each request for an edge to this member, once. */
const eachKnock = (
  kv: KeyValueStoreShape,
  root: string,
  member: string,
  serve: (asked: ReturnType<typeof knocksOf>[number]) => Effect.Effect<unknown>
): Effect.Effect<void, KeyValueError> => {
  const served = new Set<string>()
  return Stream.runForEach(kv.watch(`${root}ask/${member}/`), (entries) => {
    const asked = knocksOf(root, member, entries)
    const standing = new Set(asked.map(({ id }) => id))
    for (const id of served) if (!standing.has(id)) served.delete(id)
    const fresh = asked.filter(({ id }) => !served.has(id))
    for (const { id } of fresh) served.add(id)
    return Effect.forEach(fresh, serve, { discard: true })
  })
}

const notProposed = (fleet: FleetState | undefined, policy: CommitPolicy): FleetError => {
  const replicas = fleet?.members.filter(({ role }) => role === "replica").length ?? 0
  const why =
    fleet === undefined
      ? "The history could not be read"
      : replicas < neededBy(policy)
        ? `The fleet has ${replicas} replicas, of which the policy needs ${neededBy(policy)}`
        : `The fleet is at entry ${fleet.position} with ${replicas} replicas`
  return fleetError("DeadlineExceeded", [], {
    detail: `${why}; the update has not ended.`,
    remedy: "See whether the store can be reached and replicas run, and publish again.",
    isRetryable: true
  })
}

const notSource = (rank: number): FleetError =>
  fleetError("InvalidOptions", [rank], {
    rank,
    detail: "Only a source that controls can publish.",
    remedy: "Publish from a source, and do not switch its controller off."
  })

/** Waits until an update of this content, from this number on, has ended. */
const untilEnded = (
  changes: Stream.Stream<FleetStatus>,
  content: string,
  since: number
): Effect.Effect<Manifest, FleetError> =>
  Effect.gen(function* () {
    const ended = changes.pipe(
      Stream.map(({ fleet }) =>
        fleet?.history.find(({ manifest }) => manifest.serial >= since && manifest.content === content)
      ),
      Stream.filter((found) => found !== undefined)
    )
    const end = Option.getOrUndefined(yield* Stream.runHead(ended))
    if (end?.outcome === "committed") return end.manifest
    return yield* fleetError("UpdateAborted", [], {
      detail: `Version ${end?.manifest.serial} was given up: ${end?.reason} Members: ${end?.culprits.join(", ")}.`,
      remedy: "See what is wrong with these members; the old version stays in use, and the next can be published.",
      isRetryable: true
    })
  })

const isLost = (cause: Cause.Cause<FleetError | { readonly message: string }>): boolean =>
  Option.exists(
    Cause.findErrorOption(cause),
    (error) => error instanceof FleetError && error.reason._tag === "NoSource"
  )

const messageOf = (cause: Cause.Cause<{ readonly message: string }>): string =>
  Option.match(Cause.findErrorOption(cause), {
    onNone: () => Cause.pretty(cause).slice(0, 500),
    onSome: ({ message }) => message
  })

/** A process's part in a fleet, over the store in the context. */
export const layer = (options: FleetOptions) => Layer.effect(Fleet, make(options))
