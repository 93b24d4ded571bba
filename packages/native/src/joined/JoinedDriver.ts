// SPDX-License-Identifier: Apache-2.0
/**
 * One driver out of several: that of a host for ranks that share one, wires for the others, a path for each peer.
 *
 * Invariants: all ranks see the same statements, so they prepare the same drivers in the same order, those that lack one of
 * them by a stand-in. A wire is opened when two ranks are to use it, and not before: ranks of one host open none.
 */
import type {
  BackendDescriptor,
  BackendError,
  JoinableWire,
  JoinedBackend
} from "@tensorferry/core/backend/BackendDescriptor"
import type { Message } from "@tensorferry/core/ir/Message"
import {
  CopyDriver,
  type CopyDriverError,
  type CopyDriverShape,
  type InFlight,
  type PeerPath,
  type Program
} from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { makeDriverAgreement } from "../driver/DriverAgreement.ts"
import { type Checked, driverErrors } from "../driver/DriverErrors.ts"
import { networkSpace, processIdentity } from "../driver/ProcessIdentity.ts"
import { makeProgramEntries } from "../driver/ProgramEntries.ts"
import { nothingToMove } from "../driver/Transfers.ts"
import { makeAbsentDriver, tokenOf } from "../driver/WireDriver.ts"
import { makeAbsentStaged } from "../staged/StagedDriver.ts"
import { type ChosenPath, choosePath, type RankStatement, type StatedWire, spansAll, worldPaths } from "./choosePath.ts"
import { chooseJoin, type JoinChoice } from "./JoinOptions.ts"
import { longestWhy, makeStatementReader, type SentStatement } from "./Statement.ts"

/** Name of the joined driver in errors and reports. */
export const joinedName = "auto"

/** The part of a program that one driver carries out. */
interface Member {
  readonly driver: CopyDriverShape
  readonly program: Program
}

const remedies = {
  UnreachableMemory:
    "Set TENSORFERRY_TOKEN to the same secret on every rank, allow a path by the options, and see `tensorferry doctor` on both hosts.",
  InvalidProgram: "Prepare the messages again with this driver, with storage that stays open."
}

/** One transfer out of those of several drivers. */
const together = (all: ReadonlyArray<InFlight>): InFlight => {
  const [first, ...more] = all
  if (first === undefined) return nothingToMove
  if (more.length === 0) return first
  const timed = all.flatMap(({ peerTimes }) => (peerTimes === undefined ? [] : [peerTimes]))
  return {
    isComplete: Effect.map(Effect.all(all.map(({ isComplete }) => isComplete)), (done) => done.every(Boolean)),
    await: Effect.all(
      all.map((one) => one.await),
      { concurrency: "unbounded", discard: true }
    ),
    cancel: Effect.all(
      all.map(({ cancel }) => cancel),
      { concurrency: "unbounded", discard: true }
    ),
    movedBytes: Effect.map(Effect.all(all.map(({ movedBytes }) => movedBytes)), (bytes) =>
      bytes.reduce((sum, each) => sum + each, 0)
    ),
    ...(timed.length === 0 ? {} : { peerTimes: Effect.map(Effect.all(timed), (times) => times.flat()) })
  }
}

/** A wire of this rank, and what became of it. */
interface OwnWire {
  readonly wire: JoinableWire
  stated: StatedWire
  driver: CopyDriverShape | undefined
}

const make = Effect.fnUntraced(function* (
  direct: string,
  directLayer: Layer.Layer<CopyDriver, BackendError, ProcessGroup | TensorEngine>,
  wires: ReadonlyArray<JoinableWire>,
  choice: JoinChoice,
  spansHosts: boolean
): Effect.fn.Return<CopyDriverShape, BackendError, ProcessGroup | TensorEngine | Scope.Scope> {
  const group = yield* ProcessGroup
  const scope = yield* Effect.scope
  const environment = yield* Effect.context<ProcessGroup | TensorEngine>()
  const driverOf = (layer: Layer.Layer<CopyDriver, BackendError, ProcessGroup | TensorEngine>) =>
    Effect.map(Effect.provideContext(Layer.buildWithScope(Layer.fresh(layer), scope), environment), (built) =>
      Context.get(built, CopyDriver)
    )
  const host = yield* driverOf(directLayer)
  const { rank, size } = group
  const errors = driverErrors(joinedName, rank, remedies)
  const agreement = makeDriverAgreement(group, errors, "prepare")
  const entries = makeProgramEntries<{ readonly members: ReadonlyArray<Member> }>(() =>
    errors.fail("InvalidProgram", "The program belongs to another driver.")
  )
  const own: ReadonlyArray<OwnWire> = yield* Effect.forEach(wires, (wire) =>
    Effect.map(tokenOf(choice.optionsOf(wire.name)), (token) => {
      const isAllowed = choice.isAllowed(wire.name)
      const stated: StatedWire = {
        name: wire.name,
        order: wire.order,
        isStaged: wire.isStaged === true,
        hasToken: token !== undefined,
        state: isAllowed ? "closed" : "lacking",
        why: isAllowed ? "" : "excluded by options"
      }
      return { wire, stated, driver: undefined }
    })
  )

  /** Opens wires; one that cannot be opened is passed by, but what a user wrote wrong is a failure. */
  const open = (names: ReadonlyArray<string>): Effect.Effect<void, CopyDriverError> =>
    Effect.forEach(
      own.filter(({ wire }) => names.includes(wire.name)),
      (one) =>
        Effect.matchEffect(driverOf(one.wire.driver(choice.optionsOf(one.wire.name))), {
          onSuccess: (driver) => {
            one.driver = driver
            one.stated = { ...one.stated, state: "open" }
            return Effect.void
          },
          onFailure: ({ reason }) => {
            one.stated = { ...one.stated, state: "lacking", why: reason.detail.replace(/\.$/, "").slice(0, longestWhy) }
            return reason._tag === "InvalidOptions"
              ? Effect.fail(
                  errors.fail("Unsupported", `${one.wire.name}: ${reason.detail}`, {
                    op: "prepare",
                    remedy: reason.remedy
                  })
                )
              : Effect.void
          }
        }),
      { discard: true }
    )

  /** What all ranks state when every wire that two of them take is open. */
  const meet = Effect.gen(function* () {
    const { host: boot, space } = processIdentity()
    let opened: Checked<void> = Result.succeed(undefined)
    while (true) {
      const statement: SentStatement = {
        host: boot,
        space,
        network: networkSpace(),
        direct,
        spansHosts,
        isDirectAllowed: choice.isAllowed(direct),
        wires: own.map(({ stated }) => stated)
      }
      const sent = yield* agreement.agree(
        "paths",
        Result.map(opened, () => statement),
        makeStatementReader()
      )
      const statements = sent.map((each, from): RankStatement => ({ rank: from, ...each }))
      const world = worldPaths(statements, rank)
      if (world.isFinal) return { statements, ...world }
      // A library may take long to open on one host; the others wait as long as it does.
      opened = yield* Effect.result(group.keepAlive(open(world.toOpen)))
    }
  })

  const standIns = new Map<string, CopyDriverShape>()
  /** This rank's driver of a wire that two ranks take, or its stand-in. */
  const driverNamed = Effect.fnUntraced(function* (name: string, statements: ReadonlyArray<RankStatement>) {
    const known = own.find(({ wire }) => wire.name === name)?.driver ?? standIns.get(name)
    if (known !== undefined) return known
    const absent = makeAbsentDriver(name, group)
    const isStaged = statements.some(({ wires: all }) => all.some((wire) => wire.name === name && wire.isStaged))
    const made = isStaged ? yield* makeAbsentStaged(absent, group) : absent
    standIns.set(name, made)
    return made
  })

  const unreachable = (messages: ReadonlyArray<Message>, paths: ReadonlyMap<number, ChosenPath>): Checked<void> => {
    for (const { peer } of messages) {
      const path = paths.get(peer)
      if (path !== undefined && path.name === undefined) {
        return Result.fail(errors.fail("UnreachableMemory", `No path to rank ${peer}: ${path.reason}.`, { peer }))
      }
    }
    return Result.succeed(undefined)
  }

  const prepare: CopyDriverShape["prepare"] = Effect.fnUntraced(function* (messages) {
    const { statements, names, hasGap } = yield* meet
    const isSpanned = spansAll(statements)
    const paths = new Map<number, ChosenPath>()
    for (const { peer } of messages) {
      // What is no rank is for a driver to refuse.
      const other = statements[peer]
      if (!paths.has(peer) && other !== undefined && peer !== rank) {
        paths.set(peer, choosePath(statements[rank]!, other, isSpanned))
      }
    }
    if (hasGap) yield* agreement.settle("gaps", unreachable(messages, paths))
    const drivers = names.length === 0 ? [direct] : names
    const members: Array<Member> = []
    for (const name of drivers) {
      const driver = name === direct ? host : yield* driverNamed(name, statements)
      const some = messages.filter(({ peer }) => (paths.get(peer)?.name ?? drivers[0]) === name)
      members.push({ driver, program: yield* driver.prepare(some) })
    }
    const program: Program = {
      messages,
      paths: members.flatMap(({ program: { paths: of } }) =>
        of.map((path): PeerPath => {
          const why = path.peer === undefined ? undefined : paths.get(path.peer)
          return why === undefined || why.name === direct ? path : { ...path, reason: `${why.reason}; ${path.reason}` }
        })
      ),
      ...(members.some((member) => member.program.needsGroup === true) ? { needsGroup: true } : {})
    }
    // What a rank does not exchange over a path needs no start there, unless all ranks begin together.
    yield* entries.add(program, {
      members: members.filter((member) => member.program.messages.length > 0 || program.needsGroup === true)
    })
    return program
  })

  const startAll = Effect.fnUntraced(function* (
    members: ReadonlyArray<Member>
  ): Effect.fn.Return<InFlight, CopyDriverError> {
    const started: Array<InFlight> = []
    yield* Effect.forEach(members, ({ driver, program }) =>
      Effect.map(driver.start(program), (inFlight) => void started.push(inFlight))
    ).pipe(Effect.onError(() => together(started).cancel))
    return together(started)
  })

  return {
    name: joinedName,
    rank,
    worldSize: size,
    capabilities: host.capabilities,
    prepare,
    ...(host.flags === undefined ? {} : { flags: host.flags }),
    // Most ranks have one driver in use, whose start is then all there is.
    start: (program) =>
      entries.start(program, ({ members: [first, ...more] }) =>
        first !== undefined && more.length === 0
          ? first.driver.start(first.program)
          : startAll(first === undefined ? [] : [first, ...more])
      )
  }
})

/**
 * `join` of a backend's descriptor: its own driver for ranks that share a host, and for others the first of these wires that
 * both ends have. The backend's driver is pairwise, takes scattered regions and needs no task ids, as those of wires do. Where
 * `spansHosts` holds on every rank, it moves everything, between hosts too.
 */
export const joinWires = (
  descriptor: BackendDescriptor,
  options: unknown,
  wires: ReadonlyArray<JoinableWire>,
  spansHosts: Effect.Effect<boolean> = Effect.succeed(false)
): Effect.Effect<JoinedBackend, BackendError> =>
  Effect.map(chooseJoin(descriptor, options, wires), (choice) => ({
    options: choice.own,
    driver: Layer.effect(
      CopyDriver,
      Effect.flatMap(spansHosts, (spans) =>
        make(descriptor.name, descriptor.copyDriver!(choice.own), wires, choice, spans)
      )
    )
  }))
