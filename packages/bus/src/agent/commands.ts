// SPDX-License-Identifier: Apache-2.0
/** What each command does with the pairs and batches of an agent. */
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import { type BusError, busError } from "../BusError.ts"
import type {
  CleanupBatch,
  InitPair,
  LeavePair,
  LoadTensors,
  Message,
  QueryStatus,
  RegisterModel,
  RegisterTensors,
  Transfer
} from "../command/Command.ts"
import { AgentState, type AgentStateError, pairName, signalName, versionName } from "../state/AgentState.ts"
import { encodeValue, type Value } from "../wire/Value.ts"
import { isSignalled, registerBatch, signalPrefix } from "./Batch.ts"
import type { Holdings } from "./Holdings.ts"
import { initPair, type PairSettings, storeFailed } from "./Pair.ts"
import { TensorImporter } from "./TensorImporter.ts"
import { transferBatch } from "./Transfer.ts"

const stateFailed = (op: string, error: AgentStateError): BusError =>
  busError(error.reason._tag === "TooLarge" ? "InvalidCommand" : "ServiceFailed", {
    op,
    detail: error.reason.detail,
    remedy: error.reason.remedy
  })

/** Carries out one command at a time or several side by side; their order is the caller's. */
export const makeCommands = Effect.fnUntraced(function* (
  settings: PairSettings,
  holdings: Holdings,
  scope: Scope.Scope
) {
  const { rank, store } = settings
  const { pairs, registrations, batches, batchOf, dropBatch, dropPair, makeRoom, makeRoomForBatch } = holdings
  const state = yield* AgentState
  const memory = yield* HostMemory
  const importer = yield* Effect.serviceOption(TensorImporter)

  const onInitPair = Effect.fnUntraced(function* (command: InitPair) {
    yield* makeRoom(command.pairName)
    const { pair, registration } = yield* initPair(command, settings, scope)
    pairs.set(pair.name, pair)
    registrations.set(pair.name, registration)
    yield* Effect.mapError(state.put([[pairName(pair.name), encodeValue("matched")]]), (error) =>
      stateFailed("InitPair", error)
    )
  })

  const onRegister = Effect.fnUntraced(function* (command: RegisterTensors | RegisterModel) {
    yield* makeRoomForBatch(command.batchId)
    const registering = registerBatch(command, pairs, settings, scope).pipe(Effect.provideService(HostMemory, memory))
    const batch = yield* Option.match(importer, {
      onNone: () => registering,
      onSome: (service) => Effect.provideService(registering, TensorImporter, service)
    })
    batches.set(batch.id, batch)
  })

  const onLoad = Effect.fnUntraced(function* (command: LoadTensors) {
    // What knows names and forms of models is loaded only where a client asks for it.
    const { loadTensors } = yield* Effect.promise(() => import("./loadTensors.ts"))
    const loading = loadTensors(command, settings).pipe(Effect.provideService(HostMemory, memory))
    return yield* Option.match(importer, {
      onNone: () => loading,
      onSome: (service) => Effect.provideService(loading, TensorImporter, service)
    })
  })

  const onTransfer = Effect.fnUntraced(function* (command: Transfer) {
    const batch = yield* batchOf("Transfer", command.batchId)
    const version = yield* transferBatch(batch, command, settings)
    if (version === undefined) return
    yield* Effect.mapError(state.put([[versionName(batch.id), encodeValue(version)]]), (error) =>
      stateFailed("Transfer", error)
    )
  })

  const onQuery = Effect.fnUntraced(function* ({ batchId, stateName }: QueryStatus) {
    const batch = yield* batchOf("QueryStatus", batchId)
    if (stateName !== "transfer_signal") {
      return yield* busError("InvalidCommand", {
        op: "QueryStatus",
        detail: `There is no state ${JSON.stringify(stateName.slice(0, 80))}.`,
        remedy: 'Ask for "transfer_signal".'
      })
    }
    const read = Semaphore.withPermits(batch.signal, 1)(store.list(signalPrefix(batch)))
    const entries = yield* Effect.mapError(read, (error) => storeFailed("QueryStatus", error))
    yield* Effect.mapError(state.put([[signalName(batchId), encodeValue(isSignalled(batch, entries))]]), (error) =>
      stateFailed("QueryStatus", error)
    )
  })

  const onCleanup = ({ batchId }: CleanupBatch) =>
    Effect.flatMap(batchOf("CleanupBatch", batchId), (batch) => dropBatch(batch, "its client cleaned it up"))

  const onLeave = Effect.fnUntraced(function* ({ pairName: name }: LeavePair) {
    const pair = pairs.get(name)
    if (pair === undefined) {
      return yield* busError("UnknownPair", {
        op: "LeavePair",
        detail: `There is no pair ${JSON.stringify(name.slice(0, 80))} on agent ${rank}.`,
        remedy: "There is nothing to leave; send InitPair to make the pair."
      })
    }
    yield* dropPair(pair, "its client sent LeavePair")
  })

  /** What a command answers, where it asks for something. */
  return (message: Message): Effect.Effect<Value | undefined, BusError> => {
    switch (message._tag) {
      case "InitPair":
        return Effect.as(onInitPair(message), undefined)
      case "RegisterTensors":
      case "RegisterModel":
        return Effect.as(onRegister(message), undefined)
      case "LoadTensors":
        return onLoad(message)
      case "Transfer":
        return Effect.as(onTransfer(message), undefined)
      case "QueryStatus":
        return Effect.as(onQuery(message), undefined)
      case "CleanupBatch":
        return Effect.as(onCleanup(message), undefined)
      case "LeavePair":
        return Effect.as(onLeave(message), undefined)
    }
  }
})
