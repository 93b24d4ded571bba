/**
 * The agent of one rank: takes commands from its queue, carries them out with the agents of other ranks, and tells each
 * client how it went.
 *
 * Contract
 * - Every command ends within the deadline, well or with a typed error that names what failed; its client is told in both
 *   cases. Clients that know replies get the error, all others at least the completion.
 * - Commands on one pair or batch are carried out in the order of their arrival; others run side by side.
 * - Tensors are used where they lie. A client that dies leaves nothing behind: its batches are dropped within seconds.
 * - When the scope ends, commands under way are ended and told "Stopping"; pairs, batches, names and files go.
 */

import { randomUUID } from "node:crypto"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FiberSet from "effect/FiberSet"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import { type BusError, busError } from "../BusError.ts"
import type { CleanupBatch, InitPair, Message, QueryStatus, RegisterTensors, Transfer } from "../command/Command.ts"
import { CommandQueue, type CommandQueueError } from "../queue/CommandQueue.ts"
import { AgentState, type AgentStateError, heartbeatName, pairName, signalName } from "../state/AgentState.ts"
import { KeyValueStore } from "../store/KeyValueStore.ts"
import { encodeValue } from "../wire/Value.ts"
import { type Batch, registerBatch, signalKey, transferBatch } from "./Batch.ts"
import { makeCompletions } from "./Completions.ts"
import { makeLanes } from "./Lanes.ts"
import { isAlive } from "./liveness.ts"
import {
  type DeviceTransports,
  initPair,
  isIntact,
  memberPrefix,
  type Pair,
  type PairSettings,
  storeFailed,
  type Transport
} from "./Pair.ts"
import { type MakePairGroup, overTcp } from "./PairGroup.ts"
import type { Registration } from "./Registration.ts"
import { TensorImporter } from "./TensorImporter.ts"

/** Rank, transports and deadlines of one agent. */
export interface AgentOptions {
  /** Distinct among all agents that share a store. */
  readonly rank: number
  /** How tensors of the host move; any copy service. */
  readonly transport: Transport
  /** How tensors on devices move, by family, as `cuda`; a `TensorImporter` opens them. */
  readonly deviceTransports?: DeviceTransports
  /** How the agents of a pair find each other; over TCP on loopback by default. */
  readonly makeGroup?: MakePairGroup
  /** How long a command waits for other ranks; 60 seconds by default. */
  readonly deadline?: Duration.Input
  /** How long replies can be read; 60 seconds by default. */
  readonly replyLifetime?: Duration.Input
  /** How often the heartbeat is renewed and clients are looked after; every second by default, at most 5 seconds. */
  readonly heartbeat?: Duration.Input
}

/** A running agent, for the process that it runs in. */
export interface TensorBusAgentShape {
  readonly rank: number
  /** Carries out one command, without queue and reply. */
  readonly handle: (message: Message) => Effect.Effect<void, BusError>
  /** Names of the pairs that exist now. */
  readonly pairs: Effect.Effect<ReadonlyArray<string>>
  /** Ids of the batches that are registered now. */
  readonly batches: Effect.Effect<ReadonlyArray<string>>
  /** Serves the queue; ends only by failure. */
  readonly serve: Effect.Effect<never, CommandQueueError | AgentStateError>
}

export class TensorBusAgent extends Context.Service<TensorBusAgent, TensorBusAgentShape>()(
  "@tensorferry/bus/agent/TensorBusAgent"
) {}

const stateFailed = (op: string, error: AgentStateError): BusError =>
  busError(error.reason._tag === "TooLarge" ? "InvalidCommand" : "ServiceFailed", {
    op,
    detail: error.reason.detail,
    remedy: error.reason.remedy
  })

/** Names that a command holds while it runs, and those that it only waits for. */
const lanesOf = (message: Message): readonly [holds: ReadonlyArray<string>, after: ReadonlyArray<string>] => {
  switch (message._tag) {
    case "InitPair":
      return [[`pair:${message.pairName}`], []]
    case "RegisterTensors":
      return [[`batch:${message.batchId}`], message.tensors.map(([pair]) => `pair:${pair}`)]
    default:
      return [[`batch:${message.batchId}`], []]
  }
}

/** Makes an agent; it takes commands from the queue while `serve` runs. The scope's end drops its pairs and batches. */
export const make = Effect.fnUntraced(function* (options: AgentOptions) {
  const queue = yield* CommandQueue
  const state = yield* AgentState
  const store = yield* KeyValueStore
  const memory = yield* HostMemory
  const importer = yield* Effect.serviceOption(TensorImporter)
  // Made before the service of the queue begins, so that it ends after it: commands under way are ended first.
  const scope = yield* Scope.fork(yield* Effect.scope)
  const heartbeat = Duration.min(Duration.fromInputUnsafe(options.heartbeat ?? "1 second"), Duration.seconds(5))
  const settings: PairSettings = {
    rank: options.rank,
    instance: randomUUID(),
    deadline: Duration.fromInputUnsafe(options.deadline ?? "60 seconds"),
    store,
    makeGroup: options.makeGroup ?? overTcp(),
    transport: options.transport,
    deviceTransports: options.deviceTransports ?? {}
  }
  const pairs = new Map<string, Pair>()
  const registrations = new Map<string, Registration>()
  const batches = new Map<string, Batch>()
  const lanes = makeLanes()
  const completions = makeCompletions(state, Duration.fromInputUnsafe(options.replyLifetime ?? "60 seconds"))

  const batchOf = (op: string, id: string): Effect.Effect<Batch, BusError> => {
    const batch = batches.get(id)
    return batch !== undefined
      ? Effect.succeed(batch)
      : Effect.fail(
          busError("UnknownBatch", {
            op,
            detail: `There is no batch ${JSON.stringify(id.slice(0, 80))} on agent ${options.rank}.`,
            remedy: "Send RegisterTensors first; a batch is also gone when its client is."
          })
        )
  }

  const dropBatch = (batch: Batch) =>
    Effect.gen(function* () {
      batches.delete(batch.id)
      yield* Scope.close(batch.scope, Exit.void)
      yield* Effect.ignore(store.remove(signalKey(batch)))
      yield* Effect.ignore(state.put([[signalName(batch.id), undefined]]))
    })

  const dropPair = (pair: Pair) =>
    Effect.gen(function* () {
      pairs.delete(pair.name)
      registrations.delete(pair.name)
      for (const batch of [...batches.values()]) if (batch.pair === pair) yield* dropBatch(batch)
      yield* Effect.forEach(pair.retired, (key) => Effect.ignore(store.remove(key)), { discard: true })
      yield* Scope.close(pair.scope, Exit.void)
      yield* Effect.ignore(state.put([[pairName(pair.name), undefined]]))
    })

  /** A pair that lost a member may be made again; one that is whole may not. */
  const makeRoom = Effect.fnUntraced(function* (name: string) {
    const known = pairs.get(name)
    if (known === undefined) return
    if (!known.isBroken) {
      const entries = yield* Effect.mapError(store.list(memberPrefix(name)), (error) => storeFailed("InitPair", error))
      if (isIntact(known, registrations.get(name)!, entries)) {
        return yield* busError("PairExists", {
          op: "InitPair",
          detail: `Agent ${options.rank} has a pair ${name} already.`,
          remedy: "Use another name, or use the pair that is there."
        })
      }
    }
    yield* dropPair(known)
  })

  const onInitPair = Effect.fnUntraced(function* (command: InitPair) {
    yield* makeRoom(command.pairName)
    const { pair, registration } = yield* initPair(command, settings, scope)
    pairs.set(pair.name, pair)
    registrations.set(pair.name, registration)
    yield* Effect.mapError(state.put([[pairName(pair.name), encodeValue("matched")]]), (error) =>
      stateFailed("InitPair", error)
    )
  })

  const onRegister = Effect.fnUntraced(function* (command: RegisterTensors) {
    if (batches.has(command.batchId)) {
      return yield* busError("BatchExists", {
        op: "RegisterTensors",
        detail: `Agent ${options.rank} has a batch ${command.batchId} already.`,
        remedy: "Send CleanupBatch first, or use another name."
      })
    }
    const registering = registerBatch(command, pairs, settings, scope).pipe(Effect.provideService(HostMemory, memory))
    const batch = yield* Option.match(importer, {
      onNone: () => registering,
      onSome: (service) => Effect.provideService(registering, TensorImporter, service)
    })
    batches.set(batch.id, batch)
  })

  const onTransfer = ({ batchId, transferType }: Transfer) =>
    Effect.flatMap(batchOf("Transfer", batchId), (batch) => transferBatch(batch, transferType, settings))

  const onQuery = Effect.fnUntraced(function* ({ batchId, stateName }: QueryStatus) {
    const batch = yield* batchOf("QueryStatus", batchId)
    if (stateName !== "transfer_signal") {
      return yield* busError("InvalidCommand", {
        op: "QueryStatus",
        detail: `There is no state ${JSON.stringify(stateName.slice(0, 80))}.`,
        remedy: 'Ask for "transfer_signal".'
      })
    }
    const signal = yield* Effect.mapError(store.get(signalKey(batch)), (error) => storeFailed("QueryStatus", error))
    yield* Effect.mapError(state.put([[signalName(batchId), encodeValue(signal === "1")]]), (error) =>
      stateFailed("QueryStatus", error)
    )
  })

  const onCleanup = ({ batchId }: CleanupBatch) => Effect.flatMap(batchOf("CleanupBatch", batchId), dropBatch)

  const carryOut = (message: Message): Effect.Effect<void, BusError> => {
    switch (message._tag) {
      case "InitPair":
        return onInitPair(message)
      case "RegisterTensors":
        return onRegister(message)
      case "Transfer":
        return onTransfer(message)
      case "QueryStatus":
        return onQuery(message)
      case "CleanupBatch":
        return onCleanup(message)
    }
  }

  const stopping = (op: string): BusError =>
    busError("Stopping", { op, detail: `Agent ${options.rank} stops.`, remedy: "Start it again.", isRetryable: true })

  const defect = (op: string, cause: Cause.Cause<unknown>): BusError =>
    busError("ServiceFailed", {
      op,
      detail: `Agent ${options.rank} failed at something that it does not know: ${String(Cause.squash(cause)).slice(0, 400)}.`,
      remedy: "Report it with the agent's log."
    })

  /** How a command ended, as its client is to know it. */
  const outcomeOf = (message: Message, exit: Exit.Exit<void, BusError>): BusError | undefined => {
    if (Exit.isSuccess(exit)) return undefined
    const failure = Cause.findErrorOption(exit.cause)
    if (Option.isSome(failure)) return failure.value
    return Cause.hasInterrupts(exit.cause) ? stopping(message._tag) : defect(message._tag, exit.cause)
  }

  const answer = (message: Message, work: Effect.Effect<void, BusError>): Effect.Effect<void> =>
    Effect.onExit(work, (exit) => {
      const error = outcomeOf(message, exit)
      const told = completions.complete(message.semaphoreName, error)
      return error === undefined
        ? told
        : Effect.andThen(Effect.logWarning(`${message._tag} failed: ${error.message}`), told)
    }).pipe(Effect.exit, Effect.asVoid)

  const dropDead = Effect.suspend(() =>
    Effect.forEach(
      [...batches.values()].filter(({ owners }) => owners.some((owner) => !isAlive(owner))),
      (batch) =>
        Effect.andThen(
          Effect.logWarning(`The client of batch ${batch.id} is gone; the batch is dropped.`),
          lanes.enter(
            [`batch:${batch.id}`],
            []
          )(Effect.suspend(() => (batches.get(batch.id) === batch ? dropBatch(batch) : Effect.void)))
        ),
      { discard: true, concurrency: "unbounded" }
    )
  )

  const beat = Effect.gen(function* () {
    const now = yield* Clock.currentTimeMillis
    yield* state.put([[heartbeatName, new TextEncoder().encode(String(now / 1000))]])
    yield* completions.expire(now)
  })
  yield* Effect.addFinalizer(() =>
    Effect.suspend(() => Effect.forEach([...pairs.values()], dropPair, { discard: true }))
  )

  const serve: Effect.Effect<never, CommandQueueError | AgentStateError> = Effect.scoped(
    Effect.gen(function* () {
      const running = yield* FiberSet.make<void>()
      yield* beat
      yield* Effect.forkScoped(Effect.ignore(beat, { log: true }).pipe(Effect.repeat(Schedule.spaced(heartbeat))))
      yield* Effect.forkScoped(dropDead.pipe(Effect.repeat(Schedule.spaced(heartbeat))))
      for (;;) {
        for (const message of yield* queue.dequeue()) {
          // The place in the lanes is taken here, in the order of arrival.
          const [holds, after] = lanesOf(message)
          const due = lanes.enter(holds, after)
          yield* FiberSet.run(running, answer(message, due(carryOut(message))), { startImmediately: true })
        }
      }
    })
  )

  return {
    rank: options.rank,
    handle: (message) => {
      const [holds, after] = lanesOf(message)
      return lanes.enter(holds, after)(carryOut(message))
    },
    pairs: Effect.sync(() => [...pairs.keys()]),
    batches: Effect.sync(() => [...batches.keys()]),
    serve
  } satisfies TensorBusAgentShape
})

/** The agent, serving from the start; a queue that fails is logged and ends the service. */
export const layer = (
  options: AgentOptions
): Layer.Layer<TensorBusAgent, never, CommandQueue | AgentState | KeyValueStore | HostMemory> =>
  Layer.effect(
    TensorBusAgent,
    Effect.tap(make(options), (agent) =>
      Effect.forkScoped(Effect.ignore(agent.serve, { log: true }), { startImmediately: true })
    )
  )
