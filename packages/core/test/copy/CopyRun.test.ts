// SPDX-License-Identifier: Apache-2.0
/**
 * The run of the copy service against a model of a few variables: two ranks, over random sequences of runs that succeed, fail
 * or are interrupted at any phase. The model says what a caller sees, which collectives each rank enters, and what stays open.
 */
import { assert, describe, it } from "@effect/vitest"
import { make as makeReference } from "@tensorferry/testing/ReferenceEngine"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import fc from "fast-check"
import { copyServiceLayer } from "../../src/copy/CopyServiceLayer.ts"
import { makeInProcessGroups } from "../../src/group/ProcessGroupInProcess.ts"
import { CopyDriver, type CopyDriverError, copyDriverError, type Program } from "../../src/service/CopyDriver.ts"
import {
  type CopyError,
  type CopyOp,
  type CopyReport,
  CopyService,
  type CopyServiceShape,
  copyError
} from "../../src/service/CopyService.ts"
import { ProcessGroup, type ProcessGroupShape } from "../../src/service/ProcessGroup.ts"
import { TensorEngine, type TensorEngineShape, tensorError } from "../../src/service/TensorEngine.ts"
import { type Tensor, tensorBytes } from "../../src/tensor/Tensor.ts"

type RankNumber = 0 | 1
const ranks = [0, 1] as const
const otherOf = (rank: RankNumber): RankNumber => (rank === 0 ? 1 : 0)

const faultSteps = ["refuse", "build", "staging", "prepare", "transfer", "finish"] as const
const holdSteps = [
  "fence",
  "handshake",
  "build",
  "staging",
  "prepare",
  "pack",
  "transfer",
  "unpack",
  "finish",
  "outcome"
] as const
type FaultStep = (typeof faultSteps)[number]
type HoldStep = (typeof holdSteps)[number]

/** What goes wrong in one run of both ranks. */
type Trouble =
  | { readonly _tag: "None" }
  | {
      readonly _tag: "Fault"
      readonly rank: RankNumber
      readonly at: FaultStep
      readonly scope: "op" | "service"
      /** The other rank fails at the same step, with what its driver does not survive. */
      readonly isEverywhere?: boolean
    }
  | { readonly _tag: "Interrupt"; readonly rank: RankNumber; readonly at: HoldStep }

interface RunInput {
  /** Which task ids. */
  readonly tasks: 0 | 1
  /** Which of two sets of tensors, by rank. */
  readonly memory: readonly [0 | 1, 0 | 1]
  readonly trouble: Trouble
}

const describeInput = ({ tasks, memory, trouble }: RunInput): string => {
  const what =
    trouble._tag === "None"
      ? ""
      : trouble._tag === "Fault"
        ? `, ${trouble.at} of ${trouble.isEverywhere ? "both ranks, first" : "rank"} ${trouble.rank}, fails (${trouble.scope})`
        : `, rank ${trouble.rank} is interrupted at ${trouble.at}`
  return `run tasks ${tasks} in memory ${memory.join()}${what}`
}

// What is observed.

/** What is open on a rank, counted by the driver and the engine. */
interface Open {
  programs: number
  drivers: number
  buffers: number
}

interface Member {
  readonly service: CopyServiceShape
  readonly engine: TensorEngineShape
  /** By set of tensors: two that are sent, two that are received. */
  readonly tensors: ReadonlyArray<{ readonly sent: ReadonlyArray<Tensor>; readonly received: ReadonlyArray<Tensor> }>
  readonly open: Open
  /** How often its driver was built. */
  readonly builds: { count: number }
  /** Collectives entered in the present command. */
  readonly labels: Array<string>
}

interface Hold {
  readonly rank: RankNumber
  readonly at: HoldStep
  readonly reached: Deferred.Deferred<void>
}

interface Hooks {
  trouble: Trouble
  hold: Hold | undefined
  /** Holds the other rank in its `finish` until the interruption, so that the interrupted one waits in the outcome. */
  release: Deferred.Deferred<void> | undefined
  readonly copies: [number, number]
  /** Resources that were closed twice. */
  closedTwice: number
}

interface Real {
  readonly members: ReadonlyArray<Member>
  readonly hooks: Hooks
  readonly scope: Scope.Closeable
}

const askedAt = (rank: RankNumber, at: FaultStep): string => `asked for at ${at} of rank ${rank}`

const faultOf = (hooks: Hooks, rank: RankNumber, at: FaultStep) => {
  const { trouble } = hooks
  if (trouble._tag !== "Fault" || trouble.at !== at) return undefined
  if (trouble.rank === rank) return trouble
  return trouble.isEverywhere === true ? ({ ...trouble, rank, scope: "service" } as const) : undefined
}

/** Ends only by an interruption, where the present command asks for one here. */
const gate = (hooks: Hooks, rank: RankNumber, at: HoldStep): Effect.Effect<void> =>
  Effect.suspend(() =>
    hooks.hold?.rank === rank && hooks.hold.at === at
      ? Effect.andThen(Deferred.succeed(hooks.hold.reached, undefined), Effect.never)
      : Effect.void
  )

/** Counts something that the scope closes, once. */
const counted = (hooks: Hooks, open: Open, kind: keyof Open) =>
  Effect.suspend(() => {
    let isOpen = true
    open[kind] += 1
    return Effect.addFinalizer(() =>
      Effect.sync(() => {
        if (!isOpen) hooks.closedTwice += 1
        isOpen = false
        open[kind] -= 1
      })
    )
  })

/** Notes collectives; says when the one that an interruption waits for has been entered. */
const watchedGroup = (hooks: Hooks, group: ProcessGroupShape, labels: Array<string>): ProcessGroupShape => ({
  ...group,
  lane: (name) => Effect.map(group.lane(name), (lane) => watchedGroup(hooks, lane, labels)),
  allGather: (label, payload) =>
    Effect.suspend(() => {
      labels.push(label.replace("copy ", ""))
      const { hold } = hooks
      const isAwaited = hold?.rank === group.rank && label === `copy ${hold.at}`
      if (!isAwaited) return group.allGather(label, payload)
      return Effect.flatMap(Effect.forkChild(group.allGather(label, payload), { startImmediately: true }), (fiber) =>
        Effect.andThen(Deferred.succeed(hold.reached, undefined), Fiber.join(fiber))
      )
    })
})

const watchedEngine = (
  hooks: Hooks,
  rank: RankNumber,
  reference: TensorEngineShape,
  open: Open
): TensorEngineShape => ({
  ...reference,
  allocate: (dtype, shape, device) =>
    Effect.gen(function* () {
      yield* gate(hooks, rank, "staging")
      if (faultOf(hooks, rank, "staging") !== undefined) {
        return yield* tensorError("Unsupported", { op: "allocate", detail: askedAt(rank, "staging"), remedy: "None." })
      }
      yield* counted(hooks, open, "buffers")
      return yield* reference.allocate(dtype, shape, device)
    }),
  copy: (moves) =>
    Effect.suspend(() => {
      // Copies within the rank take another road: they move single bytes.
      if (moves.every(({ src }) => src.shape[0] === 1)) return reference.copy(moves)
      const isPack = hooks.copies[rank] === 0
      hooks.copies[rank] += 1
      return Effect.andThen(gate(hooks, rank, isPack ? "pack" : "unpack"), reference.copy(moves))
    })
})

/** One start of a program on both ranks. */
interface Meeting {
  readonly offered: ReadonlyArray<Deferred.Deferred<Program>>
  readonly taken: ReadonlyArray<Deferred.Deferred<void>>
  readonly cancelled: ReadonlyArray<Deferred.Deferred<void>>
}

/** Where the drivers of both ranks meet, by the number of the start: a rank that cancels is known, also to one that comes later. */
const makeWire = () => {
  const meetings: Array<Meeting> = []
  const both = <A>() => [Deferred.makeUnsafe<A>(), Deferred.makeUnsafe<A>()]
  const starts: [number, number] = [0, 0]
  return {
    meet: (rank: RankNumber): Meeting => {
      const at = starts[rank]++
      meetings[at] ??= { offered: both(), taken: both(), cancelled: both() }
      return meetings[at]
    }
  }
}
type Wire = ReturnType<typeof makeWire>

const dense = (program: Program, direction: "send" | "recv") =>
  program.messages
    .filter((message) => message.direction === direction)
    .map(({ parts }) => tensorBytes(parts[0]!.tensor)!)

const moveOver = (meeting: Meeting, rank: RankNumber, own: Program): Effect.Effect<void, CopyDriverError> => {
  const other = otherOf(rank)
  const gone = Effect.flatMap(Deferred.await(meeting.cancelled[other]!), () =>
    Effect.fail(copyDriverError("PeerGone", { peer: other, scope: "peer", detail: "It cancelled.", remedy: "None." }))
  )
  const moved = Effect.gen(function* () {
    const theirs = yield* Deferred.await(meeting.offered[other]!)
    const sent = dense(theirs, "send")
    for (const [at, bytes] of dense(own, "recv").entries()) bytes.set(sent[at]!)
    yield* Deferred.succeed(meeting.taken[rank]!, undefined)
    yield* Deferred.await(meeting.taken[other]!)
  })
  return Effect.raceFirst(gone, moved)
}

const watchedDriver = (
  hooks: Hooks,
  rank: RankNumber,
  { open, builds }: Pick<Member, "open" | "builds">,
  wire: Wire
): Layer.Layer<CopyDriver, { readonly detail: string }> =>
  Layer.effect(
    CopyDriver,
    Effect.gen(function* () {
      yield* gate(hooks, rank, "build")
      if (faultOf(hooks, rank, "build") !== undefined) {
        return yield* Effect.fail({ detail: askedAt(rank, "build"), toString: () => askedAt(rank, "build") })
      }
      yield* counted(hooks, open, "drivers")
      builds.count += 1
      const closed = new WeakSet<Program>()
      const failed = (at: "prepare" | "transfer") =>
        Effect.suspend(() => {
          const fault = faultOf(hooks, rank, at)
          if (fault === undefined) return Effect.void
          const detail = askedAt(rank, at)
          return Effect.fail(
            copyDriverError("TransportFailed", { op: at, scope: fault.scope, detail, remedy: "None." })
          )
        })
      return CopyDriver.of({
        name: "watched",
        rank,
        worldSize: 2,
        capabilities: {
          gather: false,
          requiresProcessGroupBarrier: false,
          requiresTaskId: false,
          deviceFamilies: ["*"],
          maxMessageBytes: 1024
        },
        prepare: (messages) =>
          Effect.gen(function* () {
            yield* gate(hooks, rank, "prepare")
            yield* failed("prepare")
            yield* counted(hooks, open, "programs")
            const program: Program = { messages, paths: [] }
            yield* Effect.addFinalizer(() => Effect.sync(() => void closed.add(program)))
            return program
          }),
        start: (program) =>
          Effect.sync(() => {
            const meeting = wire.meet(rank)
            if (!closed.has(program)) Deferred.doneUnsafe(meeting.offered[rank]!, Exit.succeed(program))
            return {
              isComplete: Effect.succeed(false),
              await: gate(hooks, rank, "transfer").pipe(
                Effect.andThen(failed("transfer")),
                Effect.andThen(moveOver(meeting, rank, program))
              ),
              cancel: Effect.asVoid(Deferred.succeed(meeting.cancelled[rank]!, undefined)),
              movedBytes: Effect.succeed(0)
            }
          })
      })
    })
  )

const makeMember = Effect.fnUntraced(function* (hooks: Hooks, rank: RankNumber, group: ProcessGroupShape, wire: Wire) {
  const reference = makeReference()
  const open: Open = { programs: 0, drivers: 0, buffers: 0 }
  const builds = { count: 0 }
  const labels: Array<string> = []
  const engine = watchedEngine(hooks, rank, reference, open)
  const four = Effect.forEach([0, 1], () => reference.allocate("uint8", [4]))
  const tensors = yield* Effect.forEach([0, 1], () => Effect.all({ sent: four, received: four }))
  const layer = copyServiceLayer(watchedDriver(hooks, rank, { open, builds }, wire), {
    busyPoll: Duration.zero
  }).pipe(
    Layer.provide(Layer.succeed(TensorEngine, engine)),
    Layer.provide(Layer.succeed(ProcessGroup, watchedGroup(hooks, group, labels)))
  )
  const service = yield* Effect.provide(CopyService, yield* Layer.build(layer))
  return { service, engine: reference, tensors, open, builds, labels } satisfies Member
})

const start = async (): Promise<Real> => {
  const scope = Scope.makeUnsafe()
  const hooks: Hooks = {
    trouble: { _tag: "None" },
    hold: undefined,
    release: undefined,
    copies: [0, 0],
    closedTwice: 0
  }
  const made = Effect.gen(function* () {
    const wire = makeWire()
    // Ranks that wait for each other for ever fail the test.
    const groups = yield* makeInProcessGroups(2, { deadline: Duration.seconds(5) })
    return yield* Effect.all(ranks.map((rank) => makeMember(hooks, rank, groups[rank]!, wire)))
  })
  const members = await Effect.runPromise(Scope.provide(made, scope))
  return { members, hooks, scope }
}

// What is expected.

interface ModelRank {
  isBroken: boolean
  /** What the program was compiled for: everybody's operations, and this rank's memory. */
  program: { readonly agreed: string; readonly memory: string } | undefined
  builds: number
  /** Local copies that were queued and not run. */
  queued: number
}

interface Model {
  readonly ranks: readonly [ModelRank, ModelRank]
}

type Expected =
  | { readonly _tag: "Absent" | "Interrupted" }
  | { readonly _tag: "Failed"; readonly detail: string }
  | { readonly _tag: "Done"; readonly isReused: boolean; readonly localOps: number }

interface Prediction {
  readonly results: [Expected, Expected]
  readonly labels: [Array<string>, Array<string>]
  /** Whether the run comes to the phase at which it is to be interrupted. */
  readonly isReached: boolean
}

const interruptedDetail = (rank: RankNumber): string => `Rank ${rank} was interrupted in the middle of the run.`

/** What a run shows, and the model after it. */
const predict = (model: Model, { tasks, memory, trouble }: RunInput): Prediction => {
  const queued = ranks.map((rank) => model.ranks[rank].queued) as [number, number]
  const agreed = `${tasks} ${queued.join()}`
  const programs = ranks.map((rank) => ({ agreed, memory: `${tasks} ${memory[rank]} ${queued[rank]}` }))
  const isAnyBroken = model.ranks.some(({ isBroken }) => isBroken)
  const mustCompile = isAnyBroken || model.ranks.some(({ program }, at) => program?.memory !== programs[at]!.memory)
  const differs = model.ranks.some(({ program }) => program?.agreed !== agreed)
  const compiling = mustCompile ? ["staging", "prepare"] : []
  const opening = ["handshake", ...(differs ? ["batch digests"] : [])]

  const labelsOf = (of: (rank: RankNumber) => ReadonlyArray<string>): [Array<string>, Array<string>] => {
    return [[...of(0)], [...of(1)]]
  }
  const all = (of: (rank: RankNumber) => Expected): [Expected, Expected] => [of(0), of(1)]
  /** Where a driver is broken, all ranks that come so far build theirs again. */
  const rebuild = (...builders: ReadonlyArray<RankNumber>) => {
    if (isAnyBroken) for (const rank of builders) model.ranks[rank].builds += 1
  }
  const take = (rank: RankNumber) => {
    model.ranks[rank].queued = 0
  }
  /** The program is closed on both ranks; drivers that had to be built again are there unless named. */
  const lose = (broken: ReadonlyArray<RankNumber>) => {
    for (const rank of ranks) {
      model.ranks[rank].program = undefined
      model.ranks[rank].isBroken = broken.includes(rank)
    }
  }
  const success = (): Prediction => {
    rebuild(...ranks)
    for (const rank of ranks) Object.assign(model.ranks[rank], { isBroken: false, program: programs[rank] })
    return {
      results: all((rank) => ({ _tag: "Done", isReused: !mustCompile, localOps: queued[rank] })),
      labels: labelsOf(() => [...opening, ...compiling, "outcome"]),
      isReached: false
    }
  }

  if (trouble._tag === "Interrupt" && trouble.at === "fence") {
    take(trouble.rank)
    model.ranks[trouble.rank].program = undefined
    const results = all((rank) => ({ _tag: rank === trouble.rank ? "Interrupted" : "Absent" }))
    return { results, labels: [[], []], isReached: true }
  }
  ranks.forEach(take)
  if (trouble._tag === "None") return success()
  const other = otherOf(trouble.rank)

  if (trouble._tag === "Interrupt") {
    const { rank: left, at } = trouble
    if ((at === "build" && !isAnyBroken) || ((at === "staging" || at === "prepare") && !mustCompile)) return success()
    const interrupted = all((rank) =>
      rank === left ? { _tag: "Interrupted" } : { _tag: "Failed", detail: interruptedDetail(left) }
    )
    if (at === "outcome") {
      // The other one may still read the memory of the one that leaves, so it gives up, and takes another driver.
      rebuild(...ranks)
      lose([other])
      const detail = `Rank ${left} reported that it does not finish the run.`
      return {
        results: all((rank) => (rank === left ? interrupted[rank] : { _tag: "Failed", detail })),
        labels: labelsOf(() => [...opening, ...compiling, "outcome"]),
        isReached: true
      }
    }
    // The other rank builds its driver again with all; so must the one that left.
    const isLeftBroken = at === "build" || (at === "handshake" && isAnyBroken)
    lose(isLeftBroken ? [left] : [])
    rebuild(other, ...(at === "build" || at === "handshake" ? [] : [left]))
    const mine = at === "prepare" ? ["staging"] : ["handshake", "build", "staging"].includes(at) ? [] : compiling
    const theirs =
      at === "build" || at === "staging" || (at === "handshake" && mustCompile)
        ? ["staging"]
        : at === "prepare"
          ? ["staging", "prepare"]
          : [...compiling, "outcome"]
    return {
      results: interrupted,
      labels: labelsOf((rank) => [...opening, ...(rank === left ? mine : theirs)]),
      isReached: true
    }
  }

  const { rank: faulty, at, scope } = trouble
  if ((at === "build" && !isAnyBroken) || ((at === "staging" || at === "prepare") && !mustCompile)) return success()
  const isEverywhere = trouble.isEverywhere === true
  // Of two failures all ranks get that of the lowest rank.
  const named = isEverywhere ? 0 : faulty
  const results = all(() => ({ _tag: "Failed", detail: askedAt(named, at) }))
  const isService = scope === "service" && at !== "staging"
  if (at === "build") rebuild(...(isEverywhere ? [] : [other]))
  else if (at !== "refuse") rebuild(...ranks)
  switch (at) {
    case "refuse":
      return { results, labels: labelsOf(() => ["handshake"]), isReached: false }
    case "build":
      lose([faulty, other])
      return {
        results,
        labels: labelsOf((rank) => [...opening, rank === faulty || isEverywhere ? "outcome" : "staging"]),
        isReached: false
      }
    case "staging":
    case "prepare":
      // Where the failure that all get is one that no driver survives, all drivers break; else those that failed so.
      if (at === "staging") lose([])
      else if (!isEverywhere) lose(isService ? [faulty, other] : [])
      else lose(isService || named === other ? [faulty, other] : [other])
      return {
        results,
        labels: labelsOf(() => [...opening, ...(at === "staging" ? ["staging"] : compiling), "outcome"]),
        isReached: false
      }
    case "transfer":
    case "finish":
      lose([...(isService ? [faulty] : []), ...(isEverywhere ? [other] : [])])
      return { results, labels: labelsOf(() => [...opening, ...compiling, "outcome"]), isReached: false }
  }
}

// Commands.

const opsOf = (real: Real, rank: RankNumber, { tasks, memory }: RunInput): ReadonlyArray<CopyOp> => {
  const { sent, received } = real.members[rank]!.tensors[memory[rank]]!
  const peer = otherOf(rank)
  const op = { part: 0, paramName: undefined }
  const taskId = (from: RankNumber, at: number) => 100 * tasks + 10 * from + at
  return [
    ...sent.map((tensor, at): CopyOp => ({ ...op, _tag: "SendOp", tensor, destRank: peer, taskId: taskId(rank, at) })),
    ...received.map(
      (tensor, at): CopyOp => ({ ...op, _tag: "RecvOp", tensor, srcRank: peer, taskId: taskId(peer, at) })
    )
  ]
}

/** Queues what the rank copies to itself. */
const submitLocal = (real: Real, model: Model, rank: RankNumber): Effect.Effect<void, CopyError> =>
  Effect.gen(function* () {
    const { service, tensors } = real.members[rank]!
    const [set] = tensors
    const taskId = 1000 + model.ranks[rank].queued
    model.ranks[rank].queued += 1
    const view = (tensor: Tensor): Tensor => ({ ...tensor, shape: [0], strides: [1] })
    yield* service.submitSend(view(set!.sent[0]!), rank, taskId)
    yield* service.submitRecv(view(set!.received[0]!), rank, taskId)
  })

const running = (real: Real, rank: RankNumber, input: RunInput): Effect.Effect<CopyReport, CopyError> =>
  Effect.gen(function* () {
    const { service } = real.members[rank]!
    const { hooks } = real
    const refused = faultOf(hooks, rank, "refuse")
    const finish = Effect.gen(function* () {
      yield* gate(hooks, rank, "finish")
      if (hooks.release !== undefined && hooks.hold?.rank !== rank) yield* Deferred.await(hooks.release)
      const fault = faultOf(hooks, rank, "finish")
      if (fault === undefined) return
      const detail = askedAt(rank, "finish")
      return yield* copyError("TransferFailed", [rank], { op: "finish", scope: fault.scope, detail, remedy: "None." })
    })
    yield* service.submitAll(opsOf(real, rank, input))
    return yield* service.run({
      finish,
      after: [{ await: gate(hooks, rank, "fence") }],
      ...(refused === undefined
        ? {}
        : {
            refuse: copyError("Unsupported", [rank], { op: "run", detail: askedAt(rank, "refuse"), remedy: "None." })
          })
    })
  })

const expectResult = (exit: Exit.Exit<CopyReport, CopyError> | undefined, expected: Expected): void => {
  if (exit === undefined || Exit.hasInterrupts(exit)) {
    assert.strictEqual(exit === undefined ? "Absent" : "Interrupted", expected._tag)
    return
  }
  const result = Effect.runSync(Effect.result(exit))
  if (Result.isFailure(result)) {
    assert.strictEqual(expected._tag, "Failed", result.failure.message)
    assert.include(result.failure.reason.detail, expected._tag === "Failed" ? expected.detail : "")
    return
  }
  const { reusedProgram, localOps, remoteOps } = result.success
  assert.deepStrictEqual({ _tag: "Done", isReused: reusedProgram, localOps }, expected)
  assert.strictEqual(remoteOps, 4)
}

/** State, and what is open, after every command. */
const expectRest = async (model: Model, real: Real): Promise<void> => {
  for (const rank of ranks) {
    const { isBroken, program } = model.ranks[rank]
    const { service, open, builds } = real.members[rank]!
    assert.strictEqual(await Effect.runPromise(service.state), isBroken ? "Broken" : "Ready", `state of rank ${rank}`)
    const expected = {
      programs: program === undefined ? 0 : 1,
      drivers: isBroken ? 0 : 1,
      buffers: program === undefined ? 0 : 2
    }
    assert.deepStrictEqual(open, expected, `open on rank ${rank}`)
    assert.strictEqual(builds.count, model.ranks[rank].builds, `drivers built on rank ${rank}`)
  }
  assert.strictEqual(real.hooks.closedTwice, 0)
}

/** A second run, while the first one stands still: it is refused, and what was queued meanwhile waits. */
const expectBusy = (real: Real, model: Model, rank: RankNumber): Effect.Effect<void, CopyError> =>
  Effect.gen(function* () {
    yield* submitLocal(real, model, rank)
    const error = yield* Effect.flip(real.members[rank]!.service.run()).pipe(
      Effect.mapError(() => copyError("Busy", [], { detail: "A second run was carried out.", remedy: "None." }))
    )
    assert.strictEqual(error.reason._tag, "Busy")
  })

const fill = (real: Real, input: RunInput, value: number): void => {
  for (const rank of ranks) {
    const { sent, received } = real.members[rank]!.tensors[input.memory[rank]]!
    for (const [at, tensor] of sent.entries()) tensorBytes(tensor)!.fill(value + 2 * rank + at)
    for (const tensor of received) tensorBytes(tensor)!.fill(0xee)
  }
}

const expectBytes = (real: Real, input: RunInput, rank: RankNumber, value: number): void => {
  const { received } = real.members[rank]!.tensors[input.memory[rank]]!
  for (const [at, tensor] of received.entries()) {
    assert.deepStrictEqual([...tensorBytes(tensor)!], Array(4).fill(value + 2 * otherOf(rank) + at))
  }
}

const runBoth = (real: Real, model: Model, input: RunInput, isReached: boolean) =>
  Effect.gen(function* () {
    const { hooks } = real
    const { trouble } = input
    const fork = (rank: RankNumber) => Effect.forkChild(running(real, rank, input), { startImmediately: true })
    if (trouble._tag !== "Interrupt" || !isReached) {
      const fibers = yield* Effect.forEach(ranks, fork)
      return yield* Effect.forEach(fibers, Fiber.await)
    }
    const { rank: left, at } = trouble
    const other = otherOf(left)
    hooks.hold = { rank: left, at, reached: yield* Deferred.make<void>() }
    if (at === "outcome") hooks.release = yield* Deferred.make<void>()
    const exits: [Exit.Exit<CopyReport, CopyError> | undefined, Exit.Exit<CopyReport, CopyError> | undefined] = [
      undefined,
      undefined
    ]
    const leaver = yield* fork(left)
    const isAlone = at === "fence" || at === "handshake"
    let stayer = isAlone ? undefined : yield* fork(other)
    // A run that ends before it comes there shows in its exit.
    yield* Effect.raceFirst(Deferred.await(hooks.hold.reached), Fiber.await(leaver))
    yield* expectBusy(real, model, left)
    yield* Fiber.interrupt(leaver)
    exits[left] = yield* Fiber.await(leaver)
    if (hooks.release !== undefined) yield* Deferred.succeed(hooks.release, undefined)
    if (at === "handshake") stayer = yield* fork(other)
    if (stayer !== undefined) exits[other] = yield* Fiber.await(stayer)
    return exits
  })

type Command = fc.AsyncCommand<Model, Real>

let fillings = 0

const runCommand = (input: RunInput): Command => ({
  check: () => true,
  toString: () => describeInput(input),
  run: async (model, real) => {
    const { hooks, members } = real
    const prediction = predict(model, input)
    for (const { labels } of members) labels.length = 0
    Object.assign(hooks, { trouble: input.trouble, hold: undefined, release: undefined, copies: [0, 0] })
    const value = (fillings++ % 50) * 4
    fill(real, input, value)
    const exits = await Effect.runPromise(runBoth(real, model, input, prediction.isReached))
    Object.assign(hooks, { trouble: { _tag: "None" }, hold: undefined, release: undefined })
    for (const rank of ranks) {
      expectResult(exits[rank], prediction.results[rank])
      const seen = members[rank]!.labels.filter((label) => label !== "resync")
      assert.deepStrictEqual(seen, prediction.labels[rank], `collectives of rank ${rank}`)
      if (prediction.results[rank]._tag === "Done") expectBytes(real, input, rank, value)
    }
    await expectRest(model, real)
  }
})

const submitCommand = (rank: RankNumber): Command => ({
  check: () => true,
  toString: () => `submit to rank ${rank}`,
  run: async (model, real) => {
    await Effect.runPromise(submitLocal(real, model, rank))
    await expectRest(model, real)
  }
})

const rankArbitrary = fc.constantFrom<RankNumber>(...ranks)
const bit = fc.constantFrom<0 | 1>(0, 1)
const common = { tasks: fc.constantFrom<0 | 1>(0, 0, 0, 1), memory: fc.tuple(bit, bit) }
const repeated: RunInput = { tasks: 0, memory: [0, 0], trouble: { _tag: "None" } }

const runArbitrary = (trouble: fc.Arbitrary<Trouble>): fc.Arbitrary<Command> =>
  fc.record({ ...common, trouble }).map(runCommand)

const commands = fc.commands(
  [
    fc.constant(runCommand(repeated)),
    runArbitrary(fc.constant({ _tag: "None" })),
    runArbitrary(
      fc.record({
        _tag: fc.constant("Fault" as const),
        rank: rankArbitrary,
        at: fc.constantFrom(...faultSteps),
        scope: fc.constantFrom("op" as const, "service" as const),
        isEverywhere: fc.constantFrom(false, false, true)
      })
    ),
    // Without it few sequences have a broken driver.
    runArbitrary(rankArbitrary.map((rank) => ({ _tag: "Fault", rank, at: "transfer", scope: "service" }))),
    runArbitrary(
      fc.record({ _tag: fc.constant("Interrupt" as const), rank: rankArbitrary, at: fc.constantFrom(...holdSteps) })
    ),
    rankArbitrary.map(submitCommand)
  ],
  { maxCommands: 14, size: "max" }
)

const firstState = (): Model => ({
  ranks: [
    { isBroken: false, program: undefined, builds: 1, queued: 0 },
    { isBroken: false, program: undefined, builds: 1, queued: 0 }
  ]
})

describe("the run of a copy service follows its states", () => {
  const sequences = isSoak ? 2000 : 150
  it(`${sequences} random sequences of runs, failures and interruptions`, async () => {
    await fc.assert(
      fc.asyncProperty(commands, async (sequence) => {
        const real = await start()
        await fc.asyncModelRun(() => ({ model: firstState(), real }), sequence)
        await Effect.runPromise(Scope.close(real.scope, Exit.void))
        for (const { open } of real.members) assert.deepStrictEqual(open, { programs: 0, drivers: 0, buffers: 0 })
        assert.strictEqual(real.hooks.closedTwice, 0)
      }),
      { numRuns: sequences, seed: 11 }
    )
  }, 60_000)
})
