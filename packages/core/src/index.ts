// SPDX-License-Identifier: Apache-2.0
/**
 * The public names of tensorferry's core. What applications use most is exported by name; modules whose functions read
 * best under the module's name are namespaces. Every module is also reachable by itself
 * (`@tensorferry/core/planner/RosterPlanner`), which loads less.
 *
 * Not here: the kit for authors of backends, at `@tensorferry/testing`.
 */

// Backends: what packages offer, and how an application chooses.
export {
  type BackendDescriptor,
  BackendError,
  type BackendOptions,
  backendApiVersion,
  ProbeResult
} from "./backend/BackendDescriptor.ts"
export {
  buildReplayTransferBackend,
  type CopyServiceChoice,
  chooseCopyBackend,
  copyService,
  hostMemory,
  type ReplayTransferChoice,
  replayTransfer,
  tensorEngine
} from "./backend/BackendLayer.ts"
export { loadBackendPackage, loaderLayer } from "./backend/BackendLoader.ts"
export { BackendRegistry, registryLayer } from "./backend/BackendRegistry.ts"
export * as Digest from "./base/Digest.ts"
// Element types, regions, names.
export * as DType from "./base/DType.ts"
export type { Part, Rank, TaskId } from "./base/Ids.ts"
export * as Region from "./base/Region.ts"

// Checkpoints.
export { type CopyServiceOptions, copyServiceLayer } from "./copy/CopyServiceLayer.ts"
export { matchLocalOpsByTaskId } from "./copy/matchLocalOps.ts"
export * as ProcessGroupEnvironment from "./group/ProcessGroupEnvironment.ts"
export * as ProcessGroupInProcess from "./group/ProcessGroupInProcess.ts"
export * as ProcessGroupTcp from "./group/ProcessGroupTcp.ts"
// Plans between meshes, as data.
export * as Bucket from "./ir/Bucket.ts"
export * as Chunk from "./ir/Chunk.ts"
export * as M2MMap from "./ir/M2MMap.ts"
export * as MeshPlan from "./ir/MeshPlan.ts"
// Plans as data.
export type { Message, MessagePart } from "./ir/Message.ts"
export { PlanTensor, planDigest, ReshardPlan, ReshardPlanSet } from "./ir/ReshardPlan.ts"
export * as Route from "./ir/Route.ts"
export { TransferOp } from "./ir/TransferOp.ts"
// Layouts.
export * as DeviceMesh from "./layout/DeviceMesh.ts"
export * as MeshText from "./layout/MeshText.ts"
export * as ParameterMetadata from "./layout/ParameterMetadata.ts"
export * as ParameterNames from "./layout/ParameterNames.ts"
export * as Placement from "./layout/Placement.ts"
export * as Roster from "./layout/Roster.ts"
export * as ShardingRules from "./layout/ShardingRules.ts"
// Carrying plans out.
// Planning.
export * as Estimate from "./planner/Estimate.ts"
export * as Lowering from "./planner/Lowering.ts"
export * as MeshCheck from "./planner/MeshCheck.ts"
export * as MeshPlanner from "./planner/MeshPlanner.ts"
export * as PlanCheck from "./planner/PlanCheck.ts"
export { PlanError } from "./planner/PlanError.ts"
export * as RosterPlanner from "./planner/RosterPlanner.ts"
export * as Refit from "./refit/Refit.ts"
export { RefitError, type RefitReason } from "./refit/RefitError.ts"
export type { Reading } from "./refit/RefitReaders.ts"
export { type CommitResult, makeRefitSession, type RefitSession } from "./refit/RefitSession.ts"
export type { DerivedCache, KernelForm, RefitSpec, RefitTensor } from "./refit/RefitSpec.ts"
export type { RefitState, RefitVersion } from "./refit/RefitState.ts"
export type { RefitWarning } from "./refit/RefitUpdate.ts"
export { portChannel, remotePackRequests, servePackRequests } from "./replay/ReplayPackChannel.ts"
export * as ReplayPackRequests from "./replay/ReplayPackRequests.ts"
export {
  type LargeBatch,
  makeReplayPipeline,
  type ReplayPipeline,
  type ReplayPipelineInput,
  type ReplayPipelineReport
} from "./replay/ReplayPipeline.ts"
export { ReplayPipelineError } from "./replay/ReplayPipelineError.ts"
export * as ReplayRing from "./replay/ReplayRing.ts"
export { ReplayRingError } from "./replay/ReplayRingError.ts"
export * as ReplayRowLayout from "./replay/ReplayRowLayout.ts"
export { drawRows } from "./replay/ReplaySampling.ts"
export * as ReplaySlots from "./replay/ReplaySlots.ts"
export {
  ReplayTransferDeadline,
  type ReplayTransferLayerOptions,
  ReplayTransferTiming,
  replayTransferLayer
} from "./replay/ReplayTransferLayer.ts"
export { type ExecuteOptions, executeReshardPlan, type ReshardReport } from "./reshard/executeReshardPlan.ts"
export { PlanCache, PlanCacheCapacity } from "./reshard/PlanCache.ts"
export { ReshardError } from "./reshard/ReshardError.ts"
export { exchangeRosters } from "./reshard/RosterExchange.ts"
export { makeUpdateMemory, type UpdateMemory } from "./reshard/UpdateMemory.ts"
// Services.
export {
  CopyDriver,
  type CopyDriverCapabilities,
  CopyDriverError,
  type CopyDriverShape,
  copyDriverError,
  type InFlight,
  type PeerPath,
  type PeerTimes,
  type Program
} from "./service/CopyDriver.ts"
export {
  CopyError,
  CopyReport,
  CopyService,
  type CopyServiceShape,
  copyError,
  type RecvOp,
  type RunOptions,
  type SendOp,
  type SubmitOptions
} from "./service/CopyService.ts"
export * as HostMemory from "./service/HostMemory.ts"
export { ProcessGroup, ProcessGroupError, type ProcessGroupShape } from "./service/ProcessGroup.ts"
export type { ReplayCopy, ReplayDevice } from "./service/ReplayDevice.ts"
export * as ReplayTransferBackend from "./service/ReplayTransferBackend.ts"
export {
  type Fence,
  ReduceOp,
  TensorEngine,
  type TensorEngineCapabilities,
  type TensorEngineShape,
  TensorError,
  tensorError
} from "./service/TensorEngine.ts"
// Tensors.
export * as Device from "./tensor/Device.ts"
export {
  isQuantized,
  mxfp8Recipe,
  type QuantizationRecipe,
  type QuantizedForm,
  type QuantizedTensor,
  quantizationRecipe,
  recipeId,
  type ScaleLayout,
  type ScaleRule
} from "./tensor/QuantizedTensor.ts"
export { makeStorage, type Storage } from "./tensor/Storage.ts"
export * as Tensor from "./tensor/Tensor.ts"
export { resolveTensor, type TensorDict, tensorDict } from "./tensor/TensorDict.ts"
export { type TraceDocument, type TraceEvent, traceDocument } from "./trace/TraceDocument.ts"
export { makeTrace, type Trace, type TraceOptions, traced } from "./trace/TraceFile.ts"
export { TraceRecord } from "./trace/TraceRecord.ts"

// Transforms.
export { type CastOptions, cast } from "./transform/Cast.ts"
export { compose, firstOf, forParameters } from "./transform/Compose.ts"
export { identity } from "./transform/Identity.ts"
export { type Mxfp8Options, mxfp8, quantize } from "./transform/Quantize.ts"
export { type KnownMaxima, ownMaxima, type QuantizeOptions } from "./transform/QuantizeWork.ts"
export {
  type ReshardTransform,
  TransformError,
  type TransformOp,
  transformError
} from "./transform/ReshardTransform.ts"
