// SPDX-License-Identifier: Apache-2.0
/**
 * The program of a rank's routed flows: what is moved between memories, and what is packed, sent and unpacked.
 *
 * Invariant: nothing here meets other ranks. What packed flows share with their other ends is cut by what all ranks
 * published, so both ends cut alike.
 */
import type { CopyDriverError, PeerPath } from "@tensorferry/core/service/CopyDriver"
import { acquireProgram } from "@tensorferry/gpu/GpuProgram"
import type { TransferProgram } from "@tensorferry/gpu/ProgramTransfer"
import type { Checked, DriverErrors } from "@tensorferry/native/driver/DriverErrors"
import { mergePaths } from "@tensorferry/native/driver/PeerPaths"
import type { ProcessIdentity } from "@tensorferry/native/driver/ProcessIdentity"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type { Connection } from "./Connections.ts"
import { type DirectMoves, directMoves } from "./directMoves.ts"
import type { DriverParts } from "./driverParts.ts"
import type { Mapping } from "./Mappings.ts"
import { transferSizes } from "./options.ts"
import { type GroupWindow, packedPlan } from "./packedMoves.ts"
import { windowLimits } from "./planning/windows.ts"
import type { Published } from "./publisher.ts"
import { isPushed, type RoutedFlow, type Routes } from "./routedFlows.ts"
import { transferSteps, windowLimit } from "./transferSteps.ts"

/** A program and all that it depends on. */
export interface PreparedTransfer extends TransferProgram {
  readonly paths: ReadonlyArray<PeerPath>
  /** Set where the program sends or receives. */
  readonly connection: Connection | undefined
  /** Memory of peers that the program touches. */
  readonly mappings: ReadonlyArray<Mapping>
  /** Processes whose memory it touches, by rank. */
  readonly processes: ReadonlyMap<number, ProcessIdentity>
  /** Peers write into memory of this rank. */
  readonly isPushedTo: boolean
  /** All ranks meet when their own moves are done, because some push. The same on all ranks. */
  readonly meets: boolean
}

const compileDirect = (
  errors: DriverErrors,
  flows: ReadonlyArray<RoutedFlow>,
  { lists }: Published,
  copyEngineBytes: number
): Checked<ReadonlyArray<DirectMoves>> => {
  const all: Array<DirectMoves> = []
  for (const { flow, memory, route } of flows) {
    if (route.name === "nccl" || memory === undefined) continue
    const moves = directMoves(errors, flow, lists.get(flow.peer)!, memory, copyEngineBytes)
    if (Result.isFailure(moves)) return Result.fail(moves.failure)
    all.push(moves.success)
  }
  return Result.succeed(all)
}

const compilePacked = (
  { memory, errors }: DriverParts,
  flows: ReadonlyArray<RoutedFlow>,
  { settings }: Published,
  { collectivePeers }: Routes
): Effect.Effect<ReadonlyArray<GroupWindow>, CopyDriverError, Scope.Scope> =>
  Effect.gen(function* () {
    const packed = flows.filter(({ route }) => route.name === "nccl").map(({ flow }) => flow)
    if (packed.length === 0) return []
    // Both ends must cut alike: what all ranks have, and what the smallest allows.
    const limits = windowLimits(Math.min(...settings.map((each) => each.stagingBytes)), collectivePeers)
    const directBytes = Math.max(...settings.map((each) => each.directBytes))
    const plan = yield* Effect.fromResult(packedPlan(errors, packed, limits, directBytes))
    if (plan.windowCount > windowLimit) {
      const detail = `${plan.windowCount} windows are more than the ${windowLimit} that a program can hold.`
      return yield* errors.fail("TransportFailed", `${detail} Raise stagingBytes.`, { op: "prepare" })
    }
    const staging =
      plan.stagingBytes === 0
        ? undefined
        : yield* Effect.mapError(memory.allocate(plan.stagingBytes), ({ reason }) =>
            errors.fail("TransportFailed", `Staging: ${reason.detail}`, { op: "prepare" })
          )
    return yield* Effect.fromResult(plan.windows(staging))
  })

/** Makes the program; it is closed with the scope. */
export const compileTransfer = (
  parts: DriverParts,
  flows: ReadonlyArray<RoutedFlow>,
  published: Published,
  routes: Routes,
  connection: Connection | undefined
): Effect.Effect<PreparedTransfer, CopyDriverError, Scope.Scope> =>
  Effect.gen(function* () {
    const { gpu, errors, options } = parts
    const { copyEngineBytes } = transferSizes(options)
    const direct = yield* Effect.fromResult(compileDirect(errors, flows, published, copyEngineBytes))
    const windows = yield* compilePacked(parts, flows, published, routes)
    const { steps, moves, spans, usesCommunicator } = transferSteps(direct, windows)
    const program = yield* acquireProgram(gpu, errors, { steps, moves, communicator: connection?.native })
    const touched = flows.filter(({ route, memory }) => route.name !== "nccl" && memory !== undefined)
    return {
      paths: mergePaths(
        flows.map((each) => {
          const { name, reason } = each.route
          return { peer: each.flow.peer, path: name, reason: isPushed(each) ? `${reason}, pushed` : reason }
        })
      ),
      program,
      spans,
      connection: usesCommunicator ? connection : undefined,
      mappings: touched.flatMap(({ memory }) => [...memory!.mappings.values()]),
      processes: new Map(touched.map(({ flow }) => [flow.peer, published.settings[flow.peer]!.process])),
      isPushedTo: flows.some((each) => isPushed(each) && each.flow.isReceiving),
      meets: flows.some(isPushed)
    }
  })
