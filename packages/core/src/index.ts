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
/** Digests of values that several processes must agree on. */
export * as Digest from "./base/Digest.ts"
// Element types, regions, names.
/** Element types: their names, widths and kinds. */
export * as DType from "./base/DType.ts"
export type { Part, Rank, TaskId } from "./base/Ids.ts"
/** Boxes of array indices: half-open intervals, one per dimension. */
export * as Region from "./base/Region.ts"

// Checkpoints.
export { type CopyServiceOptions, copyServiceLayer } from "./copy/CopyServiceLayer.ts"
export { matchLocalOpsByTaskId } from "./copy/matchLocalOps.ts"
/** The process group that a launcher's environment describes. */
export * as ProcessGroupEnvironment from "./group/ProcessGroupEnvironment.ts"
/** The ranks of a job as fibers of one process: for tests, simulations, and jobs of one rank. */
export * as ProcessGroupInProcess from "./group/ProcessGroupInProcess.ts"
/** The ranks of a job as processes that meet over TCP: rank 0 serves a hub and is a member itself. */
export * as ProcessGroupTcp from "./group/ProcessGroupTcp.ts"
// Plans between meshes, as data.
/** Chunks that travel together from one rank to the same others, and where each lies in the buffer. */
export * as Bucket from "./ir/Bucket.ts"
/** One box of one tensor that moves in one piece. */
export * as Chunk from "./ir/Chunk.ts"
/** How any tensor laid out on one mesh gets to another. */
export * as M2MMap from "./ir/M2MMap.ts"
/** What one rank does to bring tensors from one mesh layout to another: its local copies and its buckets. */
export * as MeshPlan from "./ir/MeshPlan.ts"
// Plans as data.
export type { Message, MessagePart } from "./ir/Message.ts"
export { PlanTensor, planDigest, ReshardPlan, ReshardPlanSet } from "./ir/ReshardPlan.ts"
/** Who sends which cell to whom between two meshes, whatever the tensor's shape. */
export * as Route from "./ir/Route.ts"
export { TransferOp } from "./ir/TransferOp.ts"
// Layouts.
/** Ranks in a grid of one or more dimensions, which may have names. */
export * as DeviceMesh from "./layout/DeviceMesh.ts"
/** Layouts as people write them: `MESH[@RANKS]:PLACEMENTS`. */
export * as MeshText from "./layout/MeshText.ts"
/** What one rank says about one of its parameters: its local shape, and how that shard lies in the whole tensor. */
export * as ParameterMetadata from "./layout/ParameterMetadata.ts"
/** Global names of parameters. */
export * as ParameterNames from "./layout/ParameterNames.ts"
/** How a tensor lies on a device mesh. */
export * as Placement from "./layout/Placement.ts"
/** What all ranks of one side (source or destination) say about their parameters. */
export * as Roster from "./layout/Roster.ts"
/** How a model's tensors are cut over tensor-parallel ranks and spread over pipeline stages, by name. */
export * as ShardingRules from "./layout/ShardingRules.ts"
// Carrying plans out.
// Planning.
/** What a set of plans costs before anything runs: bytes between ranks, memory per rank and a predicted time. */
export * as Estimate from "./planner/Estimate.ts"
/** One rank's plan for a list of tensors: chunks and buckets. */
export * as Lowering from "./planner/Lowering.ts"
/** Proves that mesh plans are plans, also ones read from a file. */
export * as MeshCheck from "./planner/MeshCheck.ts"
/** From two layouts to the map between them, and from the map to its routes. */
export * as MeshPlanner from "./planner/MeshPlanner.ts"
/** Proves that plans are plans, also ones read from a file. */
export * as PlanCheck from "./planner/PlanCheck.ts"
export { PlanError } from "./planner/PlanError.ts"
/** Turns two rosters into one rank's plan. */
export * as RosterPlanner from "./planner/RosterPlanner.ts"
/** Updates one model from another again and again: agree and plan once, then move as often as weights change. */
export * as Refit from "./refit/Refit.ts"
export { RefitError, type RefitReason } from "./refit/RefitError.ts"
export type { Reading } from "./refit/RefitReaders.ts"
export { type CommitResult, makeRefitSession, type RefitSession } from "./refit/RefitSession.ts"
export type { DerivedCache, KernelForm, RefitSpec, RefitTensor } from "./refit/RefitSpec.ts"
export type { RefitState, RefitVersion } from "./refit/RefitState.ts"
export type { RefitWarning } from "./refit/RefitUpdate.ts"
export { portChannel, remotePackRequests, servePackRequests } from "./replay/ReplayPackChannel.ts"
/** How a learner has the next batch packed. */
export * as ReplayPackRequests from "./replay/ReplayPackRequests.ts"
export {
  type LargeBatch,
  makeReplayPipeline,
  type ReplayPipeline,
  type ReplayPipelineInput,
  type ReplayPipelineReport
} from "./replay/ReplayPipeline.ts"
export { ReplayPipelineError } from "./replay/ReplayPipelineError.ts"
/** A ring of packed rows in memory that processes share: one writer appends, any number of readers take samples. */
export * as ReplayRing from "./replay/ReplayRing.ts"
export { ReplayRingError } from "./replay/ReplayRingError.ts"
/** How one replay row lies in memory: named columns of a fixed type and shape, packed one behind the other. */
export * as ReplayRowLayout from "./replay/ReplayRowLayout.ts"
export { drawRows } from "./replay/ReplaySampling.ts"
/** Host slots of a replay pipeline: one batch of packed rows each, in memory that processes share. */
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
/** Host memory that other processes of the machine can map. */
export * as HostMemory from "./service/HostMemory.ts"
export { ProcessGroup, ProcessGroupError, type ProcessGroupShape } from "./service/ProcessGroup.ts"
export type { ReplayCopy, ReplayDevice } from "./service/ReplayDevice.ts"
/** Moves replay batches from host slots to device slots without stalling the learner. */
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
/** Where memory lives: a family that one `TensorEngine` serves, and the index within it. */
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
/** A view of storage: element type, shape, strides and where it starts. */
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
