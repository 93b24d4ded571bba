// SPDX-License-Identifier: Apache-2.0
/**
 * The agent of one rank: takes commands from its queue, carries them out with the agents of other ranks, and tells each
 * client how it went.
 *
 * Contract
 * - Every command ends within the deadline, well or with a typed error that names what failed; its client learns both
 *   cases. Clients that know replies get the error, all others at least the completion.
 * - Commands on one pair or batch are carried out in the order of their arrival; others run side by side.
 * - Tensors are used where they lie. A client that dies leaves nothing behind: its batches are dropped within a second.
 * - What an agent knows of a client or an agent that is gone reaches everyone who waits on it within a second, by name.
 * - When the scope ends, commands under way end with "Stopping"; pairs, batches, names and files are removed.
 */

import { randomUUID } from "node:crypto"
import { processStart } from "@tensorferry/core/group/processStart"
import type { HostMemory } from "@tensorferry/core/service/HostMemory"
import { monotonicMillis } from "@tensorferry/core/service/RunningTime"
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
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import { type BusError, busError } from "../BusError.ts"
import type { Message } from "../command/Command.ts"
import { processSpace } from "../liveness.ts"
import { CommandQueue, type CommandQueueError } from "../queue/CommandQueue.ts"
import { AgentState, type AgentStateError, agentBeatCodec, beatName, heartbeatName } from "../state/AgentState.ts"
import { KeyValueStore } from "../store/KeyValueStore.ts"
import type { Value } from "../wire/Value.ts"
import { makeCompletions } from "./Completions.ts"
import { makeCommands } from "./commands.ts"
import { makeHoldings } from "./Holdings.ts"
import { makeLanes } from "./Lanes.ts"
import type { DeviceTransports, PairSettings, Transport } from "./Pair.ts"
import { type MakePairGroup, overTcp } from "./PairGroup.ts"
import { type HostIdentity, thisHost } from "./thisHost.ts"

/** Rank, transports and deadlines of one agent. */
export interface AgentOptions {
  /** Distinct among all agents that share a store. */
  readonly rank: number
  /** How tensors of the host move; any copy service. */
  readonly transport: Transport
  /** How tensors on devices move, by family, as `cuda`; a `TensorImporter` opens them. */
  readonly deviceTransports?: DeviceTransports
  /** The machine that this agent runs on, as the system says by default; agents of a pair run on one unless all leave theirs. */
  readonly host?: HostIdentity
  /** Whether `transport` moves tensors to agents of other hosts; false by default. */
  readonly leavesHost?: boolean
  /** How the agents of a pair find each other; over TCP on loopback by default. */
  readonly makeGroup?: MakePairGroup
  /** How long a command waits for other ranks; 60 seconds by default. */
  readonly deadline?: Duration.Input
  /** How long replies can be read; 60 seconds by default. */
  readonly replyLifetime?: Duration.Input
  /** How often the heartbeat is renewed; every second by default, at most 5 seconds. */
  readonly heartbeat?: Duration.Input
}

/** A running agent, for the process that it runs in. */
export interface TensorBusAgentShape {
  /** This agent's number among the agents of the bus. */
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

/** The service of one agent: takes commands from its queue and moves batches between registered pairs. */
export class TensorBusAgent extends Context.Service<TensorBusAgent, TensorBusAgentShape>()(
  "@tensorferry/bus/agent/TensorBusAgent"
) {}

const textEncoder = new TextEncoder()
const encodeBeat = Schema.encodeSync(agentBeatCodec)

/** How long the end of a client may go unnoticed. */
const mostBlind = Duration.millis(250)

/** Names that a command holds while it runs, and those that it only waits for. */
const lanesOf = (message: Message): readonly [holds: ReadonlyArray<string>, after: ReadonlyArray<string>] => {
  switch (message._tag) {
    case "InitPair":
    case "LeavePair":
      return [[`pair:${message.pairName}`], []]
    case "RegisterTensors":
      return [[`batch:${message.batchId}`], message.tensors.map(([pair]) => `pair:${pair}`)]
    case "RegisterModel":
      return [[`batch:${message.batchId}`], [`pair:${message.pairName}`]]
    case "LoadTensors":
      return [[], []]
    default:
      return [[`batch:${message.batchId}`], []]
  }
}

/** Makes an agent; it takes commands from the queue while `serve` runs. The scope's end drops its pairs and batches. */
export const make = Effect.fnUntraced(function* (options: AgentOptions) {
  const queue = yield* CommandQueue
  const state = yield* AgentState
  const store = yield* KeyValueStore
  // Made before the service of the queue begins, so that it ends after it: commands under way are ended first.
  const scope = yield* Scope.fork(yield* Effect.scope)
  const heartbeat = Duration.min(Duration.fromInputUnsafe(options.heartbeat ?? "1 second"), Duration.seconds(5))
  const settings: PairSettings = {
    rank: options.rank,
    host: options.host ?? thisHost(),
    leavesHost: options.leavesHost === true,
    instance: randomUUID(),
    deadline: Duration.fromInputUnsafe(options.deadline ?? "60 seconds"),
    store,
    makeGroup: options.makeGroup ?? overTcp(),
    transport: options.transport,
    deviceTransports: options.deviceTransports ?? {}
  }
  const lanes = makeLanes()
  const completions = makeCompletions(state, Duration.fromInputUnsafe(options.replyLifetime ?? "60 seconds"))

  const holdings = makeHoldings(settings, state)
  const { pairs, batches, dropPair, dropDead } = holdings
  const carryOut = yield* makeCommands(settings, holdings, scope)

  const stopping = (op: string): BusError =>
    busError("Stopping", { op, detail: `Agent ${options.rank} stops.`, remedy: "Start it again.", isRetryable: true })

  const defect = (op: string, cause: Cause.Cause<unknown>): BusError =>
    busError("ServiceFailed", {
      op,
      detail: `Agent ${options.rank} failed for an unknown reason: ${String(Cause.squash(cause)).slice(0, 400)}.`,
      remedy: "Report it with the agent's log."
    })

  /** How a command ended, as its client is to know it. */
  const outcomeOf = (message: Message, exit: Exit.Exit<unknown, BusError>): BusError | undefined => {
    if (Exit.isSuccess(exit)) return undefined
    const failure = Cause.findErrorOption(exit.cause)
    if (Option.isSome(failure)) return failure.value
    return Cause.hasInterrupts(exit.cause) ? stopping(message._tag) : defect(message._tag, exit.cause)
  }

  const answer = (message: Message, work: Effect.Effect<Value | undefined, BusError>): Effect.Effect<void> =>
    Effect.onExit(work, (exit) => {
      const error = outcomeOf(message, exit)
      const value = Exit.isSuccess(exit) ? exit.value : undefined
      const told = completions.complete(message.semaphoreName, error, value)
      return error === undefined
        ? told
        : Effect.andThen(Effect.logWarning(`${message._tag} failed: ${error.message}`), told)
    }).pipe(Effect.exit, Effect.asVoid)

  const space = processSpace()
  const self = {
    pid: process.pid,
    processStart: processStart("self") ?? "",
    ...(space === undefined ? {} : { space })
  }
  const beat = Effect.gen(function* () {
    const wall = yield* Clock.currentTimeMillis
    const millis = yield* monotonicMillis
    const process = encodeBeat({ ...self, rank: options.rank, millis })
    yield* state.put([
      [heartbeatName, textEncoder.encode(String(wall / 1000))],
      [beatName, textEncoder.encode(process)]
    ])
    yield* completions.expire(millis)
  })
  // A client that comes before the first command is taken must not meet what the agent before this one said of itself.
  yield* Effect.ignore(beat)
  yield* Effect.addFinalizer(() =>
    Effect.suspend(() => Effect.forEach([...pairs.values()], (pair) => dropPair(pair, "it stops"), { discard: true }))
  )

  /** A command that was lost on its way ends no agent: whoever waits for it has a deadline. */
  const commands = Effect.catchIf(
    queue.dequeue(),
    ({ reason }) => reason._tag === "Corrupt",
    (error) => Effect.as(Effect.logError(error.message), [])
  )

  const serve: Effect.Effect<never, CommandQueueError | AgentStateError> = Effect.scoped(
    Effect.gen(function* () {
      const running = yield* FiberSet.make<void>()
      yield* beat
      yield* Effect.forkScoped(Effect.ignore(beat, { log: true }).pipe(Effect.repeat(Schedule.spaced(heartbeat))))
      const lookAfter = dropDead((batch, work) =>
        Effect.asVoid(FiberSet.run(running, lanes.enter([`batch:${batch.id}`], [])(work)))
      )
      yield* Effect.forkScoped(lookAfter.pipe(Effect.repeat(Schedule.spaced(Duration.min(heartbeat, mostBlind)))))
      for (;;) {
        for (const message of yield* commands) {
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
      return Effect.asVoid(lanes.enter(holds, after)(carryOut(message)))
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
