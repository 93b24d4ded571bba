// SPDX-License-Identifier: Apache-2.0
/**
 * Checked by the compiler, never run: which failures an operation can have, and which services it needs, exactly.
 */
import type * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import { expectTypeOf } from "vitest"
import type { BackendError, BackendReason } from "../../src/backend/BackendDescriptor.ts"
import type { copyService, hostMemory, replayTransfer, tensorEngine } from "../../src/backend/BackendLayer.ts"
import type { loadBackendPackage, loaderLayer } from "../../src/backend/BackendLoader.ts"
import type { BackendRegistry, registryLayer } from "../../src/backend/BackendRegistry.ts"
import type * as ProcessGroupEnvironment from "../../src/group/ProcessGroupEnvironment.ts"
import type { PlanError } from "../../src/planner/PlanError.ts"
import type { PreparedRefit, prepare } from "../../src/refit/Refit.ts"
import type { RefitError } from "../../src/refit/RefitError.ts"
import type { makeRefitSession } from "../../src/refit/RefitSession.ts"
import type { makeReplayPipeline } from "../../src/replay/ReplayPipeline.ts"
import type { ReplayPipelineError } from "../../src/replay/ReplayPipelineError.ts"
import type { executeReshardPlan } from "../../src/reshard/executeReshardPlan.ts"
import type { PlanCache } from "../../src/reshard/PlanCache.ts"
import type { ReshardError } from "../../src/reshard/ReshardError.ts"
import type { CopyDriverError, CopyDriverReason, CopyDriverShape } from "../../src/service/CopyDriver.ts"
import type { CopyError, CopyReason, CopyService, CopyServiceShape } from "../../src/service/CopyService.ts"
import type { HostMemory, HostMemoryError, HostMemoryShape } from "../../src/service/HostMemory.ts"
import type { ProcessGroup, ProcessGroupError, ProcessGroupShape } from "../../src/service/ProcessGroup.ts"
import type {
  ReplayTransferBackend,
  ReplayTransferBackendShape,
  ReplayTransferError
} from "../../src/service/ReplayTransferBackend.ts"
import type { TensorEngine, TensorEngineShape, TensorError } from "../../src/service/TensorEngine.ts"

/** Failures of what a function gives. */
type Fails<F> = F extends (...args: never) => infer Given ? FailsOf<Given> : FailsOf<F>
type FailsOf<Given> =
  Given extends Effect.Effect<unknown, infer E, unknown>
    ? E
    : Given extends Layer.Layer<infer _Out, infer E, infer _In>
      ? E
      : never
/** Services that it needs. */
type Needs<F> = F extends (...args: never) => infer Given ? NeedsOf<Given> : NeedsOf<F>
type NeedsOf<Given> =
  Given extends Effect.Effect<unknown, unknown, infer R>
    ? R
    : Given extends Layer.Layer<infer _Out, infer _E, infer R>
      ? R
      : never

// Layers of a chosen backend.
expectTypeOf<Fails<typeof copyService>>().toEqualTypeOf<BackendError>()
expectTypeOf<Needs<typeof copyService>>().toEqualTypeOf<BackendRegistry | ProcessGroup>()
expectTypeOf<Layer.Success<ReturnType<typeof copyService>>>().toEqualTypeOf<CopyService | TensorEngine>()
expectTypeOf<Fails<typeof replayTransfer>>().toEqualTypeOf<BackendError>()
expectTypeOf<Needs<typeof replayTransfer>>().toEqualTypeOf<BackendRegistry>()
expectTypeOf<Layer.Success<ReturnType<typeof replayTransfer>>>().toEqualTypeOf<ReplayTransferBackend>()
expectTypeOf<Fails<typeof tensorEngine>>().toEqualTypeOf<BackendError>()
expectTypeOf<Fails<typeof hostMemory>>().toEqualTypeOf<BackendError>()
expectTypeOf<Layer.Success<ReturnType<typeof hostMemory>>>().toEqualTypeOf<HostMemory>()
expectTypeOf<Fails<typeof registryLayer>>().toEqualTypeOf<BackendError>()
expectTypeOf<Fails<typeof loaderLayer>>().toEqualTypeOf<BackendError>()
expectTypeOf<Needs<typeof loaderLayer>>().toEqualTypeOf<never>()
expectTypeOf<Fails<typeof loadBackendPackage>>().toEqualTypeOf<BackendError>()

// Services.
expectTypeOf<Fails<CopyServiceShape["run"]>>().toEqualTypeOf<CopyError>()
expectTypeOf<Needs<CopyServiceShape["run"]>>().toEqualTypeOf<never>()
expectTypeOf<Fails<CopyServiceShape["submitSend"]>>().toEqualTypeOf<CopyError>()
expectTypeOf<Fails<CopyServiceShape["submitRecv"]>>().toEqualTypeOf<CopyError>()
expectTypeOf<Fails<CopyDriverShape["prepare"]>>().toEqualTypeOf<CopyDriverError>()
expectTypeOf<Needs<CopyDriverShape["prepare"]>>().toEqualTypeOf<Scope.Scope>()
expectTypeOf<Fails<CopyDriverShape["start"]>>().toEqualTypeOf<CopyDriverError>()
expectTypeOf<Fails<TensorEngineShape["copy"]>>().toEqualTypeOf<TensorError>()
expectTypeOf<Fails<TensorEngineShape["allocate"]>>().toEqualTypeOf<TensorError>()
expectTypeOf<Needs<TensorEngineShape["allocate"]>>().toEqualTypeOf<Scope.Scope>()
expectTypeOf<Fails<HostMemoryShape["allocate"]>>().toEqualTypeOf<HostMemoryError>()
expectTypeOf<Fails<ReplayTransferBackendShape["submitH2d"]>>().toEqualTypeOf<ReplayTransferError>()
expectTypeOf<Fails<ReplayTransferBackendShape["waitReady"]>>().toEqualTypeOf<ReplayTransferError>()
expectTypeOf<Fails<ReplayTransferBackendShape["attributes"]>>().toEqualTypeOf<never>()
expectTypeOf<Fails<ProcessGroupShape["allGather"]>>().toEqualTypeOf<ProcessGroupError>()
expectTypeOf<Fails<typeof ProcessGroupEnvironment.layer>>().toEqualTypeOf<ProcessGroupError>()

// Execution.
expectTypeOf<Fails<typeof executeReshardPlan>>().toEqualTypeOf<ReshardError | CopyError>()
expectTypeOf<Needs<typeof executeReshardPlan>>().toEqualTypeOf<CopyService | TensorEngine>()
expectTypeOf<Fails<typeof prepare>>().toEqualTypeOf<ReshardError | PlanError>()
expectTypeOf<Needs<typeof prepare>>().toEqualTypeOf<ProcessGroup | PlanCache | Scope.Scope>()
expectTypeOf<Fails<PreparedRefit["swap"]>>().toEqualTypeOf<ReshardError | CopyError>()
expectTypeOf<Fails<typeof makeRefitSession>>().toEqualTypeOf<RefitError>()
expectTypeOf<Fails<typeof makeReplayPipeline>>().toEqualTypeOf<ReplayPipelineError | ReplayTransferError>()

// Every failure has a tag of its own and a reason with a remedy.
expectTypeOf<CopyError["_tag"]>().toEqualTypeOf<"CopyError">()
expectTypeOf<CopyDriverReason["_tag"]>().toEqualTypeOf<
  "PeerGone" | "TransportFailed" | "UnreachableMemory" | "Unsupported" | "Broken" | "InvalidProgram"
>()
expectTypeOf<BackendReason["_tag"]>().toEqualTypeOf<
  | "UnknownBackend"
  | "AmbiguousBackend"
  | "IncompatibleApiVersion"
  | "InvalidOptions"
  | "NotOffered"
  | "Unavailable"
  | "LoadFailed"
  | "InvalidDescriptor"
>()
type Reasons = CopyReason | CopyDriverReason | BackendReason | TensorError["reason"] | ReshardError["reason"]
expectTypeOf<Reasons["remedy"]>().toEqualTypeOf<string>()
expectTypeOf<Reasons["scope"]>().toEqualTypeOf<"op" | "peer" | "service">()
expectTypeOf<Reasons["isRetryable"]>().toEqualTypeOf<boolean>()
