// SPDX-License-Identifier: Apache-2.0
/** What moves a batch: by where its tensors lie, the services of its pair or some of its own. */

import type { CopyService } from "@tensorferry/core/service/CopyService"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { cpu, type Device, formatDevice } from "@tensorferry/core/tensor/Device"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import { type BusError, busError } from "../BusError.ts"
import type { Pair } from "./Held.ts"
import { type PairSettings, type Transport, transportFailed } from "./Pair.ts"

const op = "RegisterTensors"

/** What a move needs. */
export type TransferNeeds = CopyService | TensorEngine | ProcessGroup
/** What moves a batch. */
export type TransferServices = Context.Context<TransferNeeds>

/** The kind of devices that the tensors of this rank lie on, and one of them. */
export const batchDevice = (
  id: string,
  tensors: ReadonlyArray<Tensor>,
  { rank, deviceTransports }: PairSettings
): Result.Result<Device, BusError> => {
  const [first] = tensors
  const device = first!.device
  const odd = tensors.find((tensor) => tensor.device.family !== device.family)
  const unsupported = (detail: string, remedy: string) =>
    Result.fail(busError("UnsupportedTensor", { op, detail: `Batch ${id}: ${detail}`, remedy }))
  if (odd !== undefined) {
    return unsupported(
      `tensors lie on ${formatDevice(device)} and on ${formatDevice(odd.device)}.`,
      "Register tensors of the host and of devices as batches of their own."
    )
  }
  return device.family === cpu.family || deviceTransports[device.family] !== undefined
    ? Result.succeed(device)
    : unsupported(
        `agent ${rank} has nothing that moves memory of ${device.family}.`,
        "Start the agent with a backend for the device."
      )
}

/**
 * A batch of the host goes by the pair's services. One on devices has a copy service of its own, made by the first
 * transfer: what it maps of other agents goes with the batch, and its programs stay whatever other batches do.
 */
export const batchServices = (
  id: string,
  pair: Pair,
  transport: Transport | undefined,
  scope: Scope.Scope
): Effect.Effect<TransferServices, BusError> => {
  if (transport === undefined) return Effect.succeed(Context.add(pair.services, ProcessGroup, pair.group))
  let made: TransferServices | undefined
  const make = Effect.gen(function* () {
    const ranks = Array.from({ length: pair.group.size }, (_, rank) => rank)
    const group = yield* pair.group.subgroup(ranks)
    const layer = Layer.provide(Layer.fresh(transport), Layer.succeed(ProcessGroup, group))
    return Context.add(yield* Layer.build(layer), ProcessGroup, group)
  })
  return Effect.suspend((): Effect.Effect<TransferServices, BusError> => {
    if (made !== undefined) return Effect.succeed(made)
    return Effect.uninterruptibleMask((restore) =>
      Effect.gen(function* () {
        const own = yield* Scope.fork(scope)
        const services = yield* Effect.onExit(restore(Scope.provide(make, own)), (exit) =>
          exit._tag === "Failure" ? Scope.close(own, exit) : Effect.void
        )
        made = services
        return services
      })
    ).pipe(Effect.mapError((error) => transportFailed("Transfer", `Batch ${id}, pair ${pair.name}`, error)))
  })
}
