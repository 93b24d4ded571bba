// SPDX-License-Identifier: Apache-2.0
/**
 * A copy driver for memory that the wire does not reach: regions of a device pass through a ring of host buffers, which a
 * driver of the host moves between ranks. While one buffer is on the wire, the next is filled from the device and the one
 * before is emptied into it.
 *
 * Invariants: both ends of a pair cut what passes between them alike, as the service cut it into messages alike. A slot is
 * filled again only when its bytes have left, and received into only when it was emptied, which both ends state to each other.
 */

import { type BackendError, backendError, type StagingOptions } from "@tensorferry/core/backend/BackendDescriptor"
import { exchange } from "@tensorferry/core/group/Exchange"
import {
  CopyDriver,
  type CopyDriverError,
  type CopyDriverShape,
  type PeerPath,
  type Program
} from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import { nothingToMove } from "../driver/Transfers.ts"
import { cutStreams, ringBytes, type StagedRound, slotCount, stagedRounds, streamsOf } from "./rounds.ts"
import { stagingErrors, transferRounds } from "./transfer.ts"
import { makeTurns } from "./turns.ts"

const defaultMessageBytes = 2 * 1024 * 1024
const defaultStagingBytes = 192 * 1024 * 1024

/** What was prepared for a program that the service knows. */
interface Prepared {
  readonly rounds: ReadonlyArray<StagedRound & { readonly wire: Program }>
}

const Count = Schema.Int

const laneOf = (host: string): string => `staging ${host}`

/** The largest number that a rank states: a collective. */
const largest = (
  group: ProcessGroupShape,
  errors: ReturnType<typeof stagingErrors>,
  label: string,
  own: number
): Effect.Effect<number, CopyDriverError> =>
  Effect.mapBoth(exchange(group, label, Count, own), {
    onSuccess: (all) => Math.max(...all),
    onFailure: errors.ofGroup
  })

const make = (
  hostLayer: Layer.Layer<CopyDriver, BackendError, ProcessGroup>,
  hostEngine: TensorEngineShape,
  options: StagingOptions
): Effect.Effect<CopyDriverShape, BackendError, ProcessGroup | TensorEngine | Scope.Scope> =>
  Effect.gen(function* () {
    const group = yield* ProcessGroup
    const engine = yield* TensorEngine
    const scope = yield* Effect.scope
    const host = yield* Effect.map(Layer.build(hostLayer), (built) => Context.get(built, CopyDriver))
    const { rank } = group
    const errors = stagingErrors(host.name, rank)
    if (host.capabilities.pairwise !== true) {
      return yield* backendError("NotOffered", {
        backend: host.name,
        detail: "Its starts need all ranks at once, so nothing can be staged through it.",
        remedy: "Stage through a pairwise driver."
      })
    }
    // Opened when all ranks prepare something: whether a driver is built at all may differ between ranks.
    const turnsOf = yield* Effect.cached(
      Effect.provideService(Effect.flatMap(group.lane(laneOf(host.name)), makeTurns), Scope.Scope, scope)
    )
    const messageBytes = options.messageBytes ?? defaultMessageBytes
    const stagingBytes = options.stagingBytes ?? defaultStagingBytes
    const isFetched = host.capabilities.requiresProcessGroupBarrier

    /** The ring that all programs share, since no two run at once. A longer one replaces it for programs made later. */
    let ring: Tensor | undefined
    const ringOf = (byteLength: number): Effect.Effect<Tensor, CopyDriverError> =>
      Effect.gen(function* () {
        if (ring !== undefined && ring.shape[0]! >= byteLength) return ring
        const made = yield* hostEngine.allocate("uint8", [byteLength])
        if (engine.pinHost !== undefined) yield* engine.pinHost(made)
        ring = made
        return made
      }).pipe(
        Effect.provideService(Scope.Scope, scope),
        Effect.mapError((error) => errors.ofEngine(error, "prepare"))
      )

    const prepared = new WeakMap<Program, Prepared>()
    const prepare: CopyDriverShape["prepare"] = Effect.fnUntraced(function* (messages) {
      yield* turnsOf
      const streams = Math.max(1, yield* largest(group, errors, "staged streams", streamsOf(messages).length))
      const even = Math.max(messageBytes, Math.floor(stagingBytes / (slotCount * streams)))
      const limit = Math.min(even, host.capabilities.maxMessageBytes)
      const cut = cutStreams(messages, limit)
      const needed = ringBytes(cut)
      const rounds = needed === 0 ? [] : stagedRounds(cut, yield* ringOf(needed))
      const count = yield* largest(group, errors, "staged rounds", rounds.length)
      const wires: Array<Program> = []
      for (let at = 0; at < count; at++) wires.push(yield* host.prepare(rounds[at]?.messages ?? []))
      const program: Program = {
        messages,
        paths: (wires[0]?.paths ?? []).map(
          ({ peer, path, reason }): PeerPath => ({
            peer,
            path: `staged-${path}`,
            reason: `through host buffers, as ${host.name} does not reach the memory; ${reason}`
          })
        )
      }
      prepared.set(program, { rounds: rounds.map((round, at) => ({ ...round, wire: wires[at]! })) })
      return program
    })

    const start: CopyDriverShape["start"] = Effect.fnUntraced(function* (program) {
      const known = prepared.get(program)
      if (known === undefined) {
        return yield* errors.fail("InvalidProgram", "The program belongs to another driver.", "Prepare it here.")
      }
      const turns = yield* (yield* turnsOf)([...new Set(program.messages.map(({ peer }) => peer))])
      return yield* transferRounds({ engine, host, errors, isFetched }, known.rounds, turns, scope)
    })

    return {
      name: host.name,
      rank,
      worldSize: group.size,
      capabilities: {
        gather: true,
        requiresProcessGroupBarrier: false,
        requiresTaskId: host.capabilities.requiresTaskId,
        deviceFamilies: [...engine.deviceFamilies],
        maxMessageBytes: Math.min(messageBytes, host.capabilities.maxMessageBytes),
        pairwise: true
      },
      prepare,
      start
    }
  })

/**
 * The part in the collectives of a staged driver of a rank that has none, and so exchanges nothing by it; `host` takes the part
 * in those of the driver below.
 */
export const makeAbsentStaged = (host: CopyDriverShape, group: ProcessGroupShape): Effect.Effect<CopyDriverShape> =>
  Effect.gen(function* () {
    const errors = stagingErrors(host.name, group.rank)
    const lane = yield* Effect.cached(group.lane(laneOf(host.name)))
    const prepare: CopyDriverShape["prepare"] = Effect.fnUntraced(function* (messages) {
      yield* lane
      yield* largest(group, errors, "staged streams", 0)
      const count = yield* largest(group, errors, "staged rounds", 0)
      for (let at = 0; at < count; at++) yield* host.prepare(messages)
      return { messages, paths: [] }
    })
    return { ...host, prepare, start: () => Effect.succeed(nothingToMove) }
  })

/** `CopyDriver` for memory of the engine in its context, over a driver of the host and an engine for its memory. */
export const stagedDriverLayer = (
  hostDriver: Layer.Layer<CopyDriver, BackendError, ProcessGroup | TensorEngine>,
  hostEngine: Layer.Layer<TensorEngine, BackendError>,
  options: StagingOptions = {}
): Layer.Layer<CopyDriver, BackendError, ProcessGroup | TensorEngine> =>
  Layer.effect(
    CopyDriver,
    Effect.gen(function* () {
      const engine = Context.get(yield* Layer.build(hostEngine), TensorEngine)
      return yield* make(Layer.provide(hostDriver, Layer.succeed(TensorEngine, engine)), engine, options)
    })
  )
