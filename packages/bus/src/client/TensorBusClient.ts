// SPDX-License-Identifier: Apache-2.0
/**
 * A process's way to its agent: sends commands, waits for their completion, and turns replies into typed errors.
 *
 * Contract
 * - Each call ends when the agent is done with the command, or fails: with the agent's error, with "AgentGone" within a second
 *   when its process has ended and a little later when its heartbeat is missing, or with "DeadlineExceeded". Deadlines
 *   follow the monotonic clock.
 * - Tensors are shared, not copied; they must stay alive until their batch is cleaned up.
 * - An interrupted call leaves no semaphore behind; the agent may carry out the command all the same.
 */

import { randomBytes } from "node:crypto"
import type { Placement as MeshPlacement } from "@tensorferry/core/layout/Placement"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { monotonicMillis } from "@tensorferry/core/service/RunningTime"
import { inSeconds, sayWaiting, untilWords } from "@tensorferry/core/service/sayWaiting"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import type { Mapping } from "@tensorferry/model/names/Mapping"
import type { Placement } from "@tensorferry/model/placement/Placement"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { type BusError, busError, busErrorFrom } from "../BusError.ts"
import {
  CleanupBatch,
  InitPair,
  LeavePair,
  LoadTensors,
  type Message,
  QueryStatus,
  RegisterModel,
  RegisterTensors,
  Transfer,
  type TransferType
} from "../command/Command.ts"
import { decodeReply, replyKey } from "../command/Reply.ts"
import { isAlive, processSpace } from "../liveness.ts"
import { encodeMeshShape, encodePlacements } from "../payload/LayoutPayload.ts"
import { encodeSharedTensor } from "../payload/TensorCodec.ts"
import { CommandQueue } from "../queue/CommandQueue.ts"
import {
  type AgentBeat,
  AgentState,
  agentBeatCodec,
  beatName,
  heartbeatName,
  semaphoresOf,
  signalName
} from "../state/AgentState.ts"
import { decodeValue } from "../wire/Value.ts"

/** This process's side of a pair. */
export interface PairInput {
  readonly pair: string
  /** Name of this side's layout and of the other's. */
  readonly local: string
  readonly remote: string
  /** Lengths of the mesh of this side; its ranks are the agents of the side in ascending order. */
  readonly mesh: ReadonlyArray<number>
  /** One per dimension of the mesh. */
  readonly placements: ReadonlyArray<MeshPlacement>
}

/** Tensors that one transfer moves together. */
export interface BatchInput {
  readonly batch: string
  /**
   * Each with the pair that it goes by, and with its name as in a checkpoint. Where all ranks name all tensors of a pair,
   * they meet by name, in whatever order each side lists them; otherwise by their place in the list.
   */
  readonly tensors: ReadonlyArray<readonly [pair: string, tensor: Tensor, name?: string]>
  /** Most bytes of a bucket. The least that any rank states counts; without any, the planner's default does. */
  readonly bucketBytes?: number
  /**
   * Moves only what changed since the transfer before, with copies on the sender of at most this many bytes; what finds no
   * room there is moved whole. All ranks state it, or none, and every transfer then needs a version. Nobody but transfers may
   * write to a destination.
   */
  readonly changesBytes?: number
  /**
   * The quantized form in which this side holds those tensors whose scales are among `tensors`, named after them with `_scale_inv`
   * or `_scale`: `fp8-block`, `mxfp8`, and a rule after a colon. The other side holds values.
   */
  readonly form?: string
}

/** What this process holds of a model, under the names of its own system. */
export interface ModelBatchInput {
  readonly batch: string
  /** Any pair of the ranks of both sides; mesh and placements do not matter here. */
  readonly pair: string
  /** A checkpoint of the model under its own names, where the agent finds it. Its values are not read. */
  readonly model: string
  /** How this side names and cuts the model, and the degrees of all its ranks: `megatron:tp=2`, `vllm:tp=4`. */
  readonly names: string
  /** Rules of its own in place of those of `names`. */
  readonly mapping?: Mapping
  /** Where this side puts layers, experts and vocabulary, where that is not what `names` says. */
  readonly placement?: Placement
  /** The family of a model without a config.json. */
  readonly preset?: string
  /** All tensors of this rank, by their names. */
  readonly tensors: Iterable<readonly [name: string, tensor: Tensor]>
  /** Most bytes that wait on their way between two ranks. The least that any rank states counts. */
  readonly bucketBytes?: number
  /** As of `BatchInput`. */
  readonly changesBytes?: number
  /** As of `BatchInput`. */
  readonly form?: string
}

/** How long a client waits for its agent. */
export interface ClientOptions {
  /** How long a call waits; 90 seconds by default, longer than agents wait for each other. */
  readonly deadline?: Duration.Input
  /** A heartbeat older than this means that the agent is gone; 15 seconds by default. */
  readonly heartbeatAge?: Duration.Input
}

/** Commands to the agent; each call ends as the module's contract says. */
export interface TensorBusClientShape {
  /**
   * Declares this process's side. Ends when all ranks of both sides have declared theirs. Fails with PairExists where the
   * agent has the pair, as after a restart of this process alone: use it, or leave it first.
   */
  readonly initPair: (pair: PairInput) => Effect.Effect<void, BusError>
  /**
   * Takes this process's side out of the pair; its batches are dropped. The other ranks fail with PairBroken, which names
   * this one, and all ranks can call `initPair` again. Fails with UnknownPair.
   */
  readonly leavePair: (pair: string) => Effect.Effect<void, BusError>
  /** Shares the tensors. Fails with UnsupportedTensor for memory that `HostMemory` did not allocate. */
  readonly registerTensors: (batch: BatchInput) => Effect.Effect<void, BusError>
  /**
   * Shares what this process holds of a model. The other side may name, join and cut the model differently; every element
   * travels once. Fails with BatchMismatch, which names rule and tensor, where tensors are not as the names have them.
   */
  readonly registerModel: (batch: ModelBatchInput) => Effect.Effect<void, BusError>
  /** Moves a registered batch; `type` says what this side does, `version` which contents these are: see `Transfer`. */
  readonly transfer: (batch: string, type: TransferType, version?: number) => Effect.Effect<void, BusError>
  /** Whether a sent batch waits to be received. */
  readonly transferSignal: (batch: string) => Effect.Effect<boolean, BusError>
  /** The agent forgets the batch; its tensors may be freed afterwards. */
  readonly cleanupBatch: (batch: string) => Effect.Effect<void, BusError>
  /** Sends any command and waits for its completion; the semaphore is chosen here. */
  readonly send: (message: Message) => Effect.Effect<void, BusError>
  /** Sends a command without waiting for its completion. */
  readonly cast: (message: Message) => Effect.Effect<void, BusError>
}

/** The service of a client: registers tensors with its agent, and says when a batch is to be moved. */
export class TensorBusClient extends Context.Service<TensorBusClient, TensorBusClientShape>()(
  "@tensorferry/bus/client/TensorBusClient"
) {}

/** How long the end of the agent may go unnoticed. */
const sliceMillis = 500
/** How long it is taken for granted that an agent is the one that was seen. */
const freshMillis = 250

const decodeBeat = Schema.decodeResult(agentBeatCodec)

/** The agent as it was before it got a command. */
interface Asked {
  beat: AgentBeat | undefined
  /** Whether its process can be seen from here as long as it lives. */
  isVisible: boolean
  wasAlive: boolean
}

/** The same command with another semaphore. */
const withSemaphore = (message: Message, semaphoreName: string, timestamp: number): Message => {
  const common = { semaphoreName, timestamp }
  switch (message._tag) {
    case "InitPair":
      return new InitPair({ ...message, ...common })
    case "RegisterTensors":
      return new RegisterTensors({ ...message, ...common })
    case "RegisterModel":
      return new RegisterModel({ ...message, ...common })
    case "LoadTensors":
      return new LoadTensors({ ...message, ...common })
    case "Transfer":
      return new Transfer({ ...message, ...common })
    case "QueryStatus":
      return new QueryStatus({ ...message, ...common })
    case "CleanupBatch":
      return new CleanupBatch({ ...message, ...common })
    case "LeavePair":
      return new LeavePair({ ...message, ...common })
  }
}

const agentInWords = (beat: AgentBeat | undefined): string =>
  beat === undefined ? "the agent" : `agent ${beat.rank}, process ${beat.pid},`

interface CommandWait {
  readonly op: string
  /** When the command was given, by the monotonic clock. */
  readonly start: number
  readonly deadlineMillis: number
  readonly agent: () => string
}

/** Waits in slices until the agent is done with a command; between them it is looked at whether the agent still lives. */
const awaitCompletion = <A, E>(
  wait: (sliceMillis: number) => Effect.Effect<A | undefined, E>,
  check: Effect.Effect<void, BusError>,
  { op, start, deadlineMillis, agent }: CommandWait
): Effect.Effect<A, E | BusError> => {
  const sliced = Effect.gen(function* () {
    while (true) {
      const left = deadlineMillis - ((yield* monotonicMillis) - start)
      const completed = yield* wait(Math.max(0, Math.min(left, sliceMillis)))
      if (completed !== undefined) return completed
      if (left <= sliceMillis) {
        return yield* busError("DeadlineExceeded", {
          op,
          detail: `The agent did not complete the command within ${deadlineMillis} ms.`,
          remedy: "See the agent's log, or wait longer.",
          isRetryable: true
        })
      }
      yield* check
    }
  })
  return sayWaiting(
    sliced,
    (millis) => `Waited ${inSeconds(millis)} for ${agent()} to complete ${op}${untilWords(deadlineMillis, millis)}.`
  )
}

/** Makes a client of the agent that serves the queue of the context. It sends nothing before its first call. */
export const make = Effect.fnUntraced(function* (options: ClientOptions = {}) {
  const queue = yield* CommandQueue
  const state = yield* AgentState
  const memory = yield* HostMemory
  const deadlineMillis = Duration.toMillis(Duration.fromInputUnsafe(options.deadline ?? "90 seconds"))
  const ageMillis = Duration.toMillis(Duration.fromInputUnsafe(options.heartbeatAge ?? "15 seconds"))
  const names = `${semaphoresOf(process.pid)}${randomBytes(6).toString("hex")}`
  let count = 0

  const failed =
    (op: string) =>
    (error: { readonly reason: { readonly _tag: string; readonly detail: string; readonly remedy: string } }) =>
      busError(error.reason._tag === "NotServed" ? "AgentGone" : "ServiceFailed", {
        op,
        detail: `${error.reason._tag}: ${error.reason.detail}`,
        remedy: error.reason.remedy
      })

  /** The agent as it was seen last. Commands that follow each other closely share it: an agent takes longer to start again. */
  let last: { readonly asked: Asked; readonly at: number } | undefined

  const gone = (op: string, detail: string): BusError => {
    last = undefined
    return busError("AgentGone", { op, detail, remedy: "Start the agent again, and make pairs and batches again." })
  }

  /** What the agent last said of itself; undefined for an agent that says nothing but its heartbeat. */
  const lastBeat = (op: string): Effect.Effect<AgentBeat | undefined, BusError> =>
    Effect.map(Effect.mapError(state.get(beatName), failed(op)), (bytes) =>
      bytes === undefined ? undefined : Result.getOrUndefined(decodeBeat(new TextDecoder().decode(bytes)))
    )

  /** By the wall clock, as clients in other languages do it. */
  const wallAge = Effect.fnUntraced(function* (op: string) {
    const bytes = yield* Effect.mapError(state.get(heartbeatName), failed(op))
    if (bytes === undefined) return yield* gone(op, "The agent has no heartbeat.")
    return (yield* Clock.currentTimeMillis) - Number(new TextDecoder().decode(bytes)) * 1000
  })

  /** Agents of one queue are seen from here alike: once one was, all are. */
  const space = processSpace()
  let wasSeen = false
  const lookAt = (beat: AgentBeat | undefined): Asked => {
    const wasAlive = beat !== undefined && isAlive(beat)
    wasSeen ||= wasAlive
    return { beat, isVisible: wasSeen || (space !== undefined && beat?.space === space), wasAlive }
  }

  /** Fails where the agent that got the command has ended, is another by now, or has not been heard of for too long. */
  const checkAgent = Effect.fnUntraced(function* (op: string, asked: Asked) {
    const beat = yield* lastBeat(op)
    const named = beat === undefined ? "The agent" : `Agent ${beat.rank}, process ${beat.pid},`
    if (beat !== undefined) {
      const isSame = beat.pid === asked.beat?.pid && beat.processStart === asked.beat.processStart
      if (!isSame) {
        if (asked.wasAlive) {
          return yield* gone(op, `${named} took the place of process ${asked.beat?.pid}, which had got the command.`)
        }
        // What came after the end of an agent waits for the next one.
        Object.assign(asked, lookAt(beat))
      }
      if (asked.isVisible && !isAlive(beat)) return yield* gone(op, `${named} has exited.`)
    }
    const age = beat === undefined ? yield* wallAge(op) : (yield* monotonicMillis) - beat.millis
    if (!(age <= ageMillis)) {
      return yield* gone(op, `${named} sent its last heartbeat ${Math.round(age / 1000)} s ago.`)
    }
  })

  /** The agent that a command will be given to. */
  const askedAgent = Effect.fnUntraced(function* (op: string): Effect.fn.Return<Asked, BusError> {
    const now = yield* monotonicMillis
    if (last !== undefined && now - last.at < freshMillis) return { ...last.asked }
    const asked = lookAt(yield* lastBeat(op))
    last = { asked, at: now }
    return { ...asked }
  })
  yield* Effect.ignore(askedAgent("connect"))

  const send = (message: Message): Effect.Effect<void, BusError> =>
    Effect.scoped(
      Effect.gen(function* () {
        const op = message._tag
        const name = `${names}_${++count}`
        const completion = yield* Effect.mapError(state.expect(name), failed(op))
        const start = yield* monotonicMillis
        const command = withSemaphore(message, name, (yield* Clock.currentTimeMillis) / 1000)
        // In this order: a command that is put after the end of an agent is not lost with it.
        const asked = yield* askedAgent(op)
        yield* Effect.mapError(queue.enqueue([command], deadlineMillis), failed(op))
        const completed = yield* awaitCompletion(
          (slice) => Effect.mapError(completion.wait(replyKey(name), slice), failed(op)),
          checkAgent(op, asked),
          { op, start, deadlineMillis, agent: () => agentInWords(asked.beat) }
        )
        // Where the agent made its state again in the meantime, the wait looked into the old one.
        const bytes = completed.reply ?? (yield* Effect.mapError(state.get(replyKey(name)), failed(op)))
        const reply = bytes === undefined ? undefined : decodeReply(bytes)
        if (reply === undefined) return yield* gone(op, "The command was completed without a reply.")
        if (reply.type === "Error") return yield* busErrorFrom(reply.tag, reply.fields)
      })
    )

  const share = Effect.fnUntraced(function* (op: string, tensor: Tensor, name: string | undefined) {
    const handle = yield* Effect.mapError(memory.share(tensor.storage), (error) =>
      busError("UnsupportedTensor", {
        op,
        detail: error.reason.detail,
        remedy: "Allocate the tensor by the HostMemory of the embedded backend."
      })
    )
    const { dtype, shape, strides, byteOffset } = tensor
    const named = name === undefined ? {} : { name }
    return encodeSharedTensor({ dtype, shape, strides, byteOffset, memory: handle, ...named })
  })

  return {
    send,
    cast: (message) => Effect.mapError(queue.enqueue([message], deadlineMillis), failed(message._tag)),
    initPair: ({ pair, local, remote, mesh, placements }) =>
      send(
        new InitPair({
          pairName: pair,
          localName: local,
          expectedWorldSize: mesh.reduce((product, length) => product * length, 1),
          remoteName: remote,
          meshShapePayload: encodeMeshShape(mesh),
          placementsPayload: encodePlacements(placements)
        })
      ),
    leavePair: (pair) => send(new LeavePair({ pairName: pair })),
    registerTensors: ({ batch, tensors, bucketBytes, changesBytes, form }) =>
      Effect.flatMap(
        Effect.forEach(tensors, ([pair, tensor, name]) =>
          Effect.map(share("RegisterTensors", tensor, name), (payload) => [pair, payload] as const)
        ),
        (shared) =>
          send(
            new RegisterTensors({
              batchId: batch,
              tensors: shared,
              bucketSize: bucketBytes ?? null,
              changesBytes: changesBytes ?? null,
              form: form ?? null
            })
          )
      ),
    registerModel: Effect.fnUntraced(function* (input) {
      const { batch, pair, model, names, mapping, placement, preset, tensors } = input
      const { bucketBytes, changesBytes, form } = input
      const shared = yield* Effect.forEach(tensors, ([name, tensor]) =>
        Effect.map(share("RegisterModel", tensor, name), (payload) => [name, payload] as const)
      )
      // Loaded only here: most clients never need it.
      const { resolveModel } = yield* Effect.promise(() => import("@tensorferry/model/openModel"))
      yield* send(
        new RegisterModel({
          batchId: batch,
          pairName: pair,
          model: resolveModel(model),
          names,
          rules: mapping === undefined ? null : JSON.stringify(mapping),
          placement: placement === undefined ? null : JSON.stringify(placement),
          preset: preset ?? null,
          tensors: shared,
          bucketSize: bucketBytes ?? null,
          changesBytes: changesBytes ?? null,
          form: form ?? null
        })
      )
    }),
    transfer: (batch: string, type: TransferType, version?: number) =>
      send(new Transfer({ batchId: batch, transferType: type, version: version ?? null })),
    transferSignal: (batch) =>
      Effect.gen(function* () {
        yield* send(new QueryStatus({ batchId: batch, stateName: "transfer_signal" }))
        const bytes = yield* Effect.mapError(state.get(signalName(batch)), failed("QueryStatus"))
        const value = bytes === undefined ? undefined : decodeValue(bytes)
        return value !== undefined && Result.isSuccess(value) && value.success === true
      }),
    cleanupBatch: (batch) => send(new CleanupBatch({ batchId: batch }))
  } satisfies TensorBusClientShape
})

/** The client that `make` makes. */
export const layer = (
  options: ClientOptions = {}
): Layer.Layer<TensorBusClient, never, CommandQueue | AgentState | HostMemory> =>
  Layer.effect(TensorBusClient, make(options))
