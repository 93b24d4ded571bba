/**
 * The public names of tensorferry's core. What applications use most is exported by name; modules whose functions read
 * best under the module's name are namespaces. Every module is also reachable by itself
 * (`@tensorferry/core/planner/RosterPlanner`), which loads less.
 *
 * Not here: the kit for authors of backends, at `@tensorferry/core/testing`.
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
export * as CheckpointIndex from "./checkpoint/CheckpointIndex.ts"
export * as CheckpointWriter from "./checkpoint/CheckpointWriter.ts"
export * as Safetensors from "./checkpoint/Safetensors.ts"

// Carrying plans out.
export { executeMeshPlan, type MeshReport } from "./exec/executeMeshPlan.ts"
export { type ExecuteOptions, executeReshardPlan, type ReshardReport } from "./exec/executeReshardPlan.ts"
export { agreeOnMeshPlan } from "./exec/MeshAgreement.ts"
export { PlanCache } from "./exec/PlanCache.ts"
export * as Refit from "./exec/Refit.ts"
export { RefitError, type RefitReason } from "./exec/RefitError.ts"
export type { Reading } from "./exec/RefitReaders.ts"
export { type CommitResult, makeRefitSession, type RefitSession } from "./exec/RefitSession.ts"
export type { DerivedCache, KernelForm, RefitSpec, RefitTensor } from "./exec/RefitSpec.ts"
export type { RefitState, RefitVersion } from "./exec/RefitState.ts"
export type { RefitWarning } from "./exec/RefitUpdate.ts"
export { portChannel, remotePackRequests, servePackRequests } from "./exec/ReplayPackChannel.ts"
export * as ReplayPackRequests from "./exec/ReplayPackRequests.ts"
export {
  type LargeBatch,
  makeReplayPipeline,
  type ReplayPipeline,
  type ReplayPipelineInput,
  type ReplayPipelineReport
} from "./exec/ReplayPipeline.ts"
export { ReplayPipelineError } from "./exec/ReplayPipelineError.ts"
export * as ReplayRing from "./exec/ReplayRing.ts"
export { ReplayRingError } from "./exec/ReplayRingError.ts"
export * as ReplayRowLayout from "./exec/ReplayRowLayout.ts"
export { drawRows } from "./exec/ReplaySampling.ts"
export * as ReplaySlots from "./exec/ReplaySlots.ts"
export { ReshardError } from "./exec/ReshardError.ts"
export { exchangeRosters } from "./exec/RosterExchange.ts"
export { type TraceDocument, type TraceEvent, traceDocument } from "./exec/TraceDocument.ts"
export { makeTrace, type Trace, type TraceOptions, traced } from "./exec/TraceFile.ts"
export { TraceRecord } from "./exec/TraceRecord.ts"
export { makeUpdateMemory, type UpdateMemory } from "./exec/UpdateMemory.ts"
export type { Writeback } from "./exec/Writeback.ts"
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
export * as ModelFamilies from "./layout/ModelFamilies.ts"
export * as ModelLayout from "./layout/ModelLayout.ts"
export * as ParameterMetadata from "./layout/ParameterMetadata.ts"
export * as ParameterNames from "./layout/ParameterNames.ts"
export * as Placement from "./layout/Placement.ts"
export * as Roster from "./layout/Roster.ts"
export * as ShardingRules from "./layout/ShardingRules.ts"

// Planning.
export * as Estimate from "./planner/Estimate.ts"
export * as Lowering from "./planner/Lowering.ts"
export * as MeshCheck from "./planner/MeshCheck.ts"
export * as MeshPlanner from "./planner/MeshPlanner.ts"
export * as PlanCheck from "./planner/PlanCheck.ts"
export { PlanError } from "./planner/PlanError.ts"
export * as RosterPlanner from "./planner/RosterPlanner.ts"

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
export { type CopyServiceOptions, copyServiceLayer } from "./service/CopyServiceLayer.ts"
export * as HostMemory from "./service/HostMemory.ts"
export { matchLocalOpsByTaskId } from "./service/matchLocalOps.ts"
export { ProcessGroup, ProcessGroupError, type ProcessGroupShape } from "./service/ProcessGroup.ts"
export * as ProcessGroupEnvironment from "./service/ProcessGroupEnvironment.ts"
export * as ProcessGroupInProcess from "./service/ProcessGroupInProcess.ts"
export * as ProcessGroupTcp from "./service/ProcessGroupTcp.ts"
export type { ReplayCopy, ReplayDevice } from "./service/ReplayDevice.ts"
export * as ReplayTransferBackend from "./service/ReplayTransferBackend.ts"
export {
  ReplayTransferDeadline,
  type ReplayTransferLayerOptions,
  ReplayTransferTiming,
  replayTransferLayer
} from "./service/ReplayTransferLayer.ts"
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
  type QuantizedTensor,
  recipeId,
  type ScaleLayout,
  type ScaleRule
} from "./tensor/QuantizedTensor.ts"
export { makeStorage, type Storage } from "./tensor/Storage.ts"
export * as Tensor from "./tensor/Tensor.ts"
export { resolveTensor, type TensorDict, tensorDict } from "./tensor/TensorDict.ts"

// Transforms.
export { type CastOptions, cast } from "./transform/Cast.ts"
export { compose, firstOf, forParameters } from "./transform/Compose.ts"
export { identity } from "./transform/Identity.ts"
export { type Mxfp8Options, mxfp8 } from "./transform/Mxfp8.ts"
export { mxfp8BufferBytes } from "./transform/Mxfp8Memory.ts"
export {
  type ReshardTransform,
  TransformError,
  type TransformOp,
  transformError
} from "./transform/ReshardTransform.ts"
export { type RoundingReport, roundingReport } from "./transform/RoundingReport.ts"
