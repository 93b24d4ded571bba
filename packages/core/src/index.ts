// SPDX-License-Identifier: Apache-2.0
/**
 * The public names of tensorferry's core. What applications use most is exported by name; modules whose functions read
 * best under the module's name are namespaces. Every module is also reachable by itself
 * (`@tensorferry/core/planner/RosterPlanner`), which loads less.
 *
 * Not here: the kit for authors of backends, at `@tensorferry/testing`.
 */
import * as Digest from "./base/Digest.ts"
import * as DType from "./base/DType.ts"
import * as Region from "./base/Region.ts"
import * as ProcessGroupEnvironment from "./group/ProcessGroupEnvironment.ts"
import * as ProcessGroupInProcess from "./group/ProcessGroupInProcess.ts"
import * as ProcessGroupTcp from "./group/ProcessGroupTcp.ts"
import * as Bucket from "./ir/Bucket.ts"
import * as Chunk from "./ir/Chunk.ts"
import * as M2MMap from "./ir/M2MMap.ts"
import * as MeshPlan from "./ir/MeshPlan.ts"
import * as Route from "./ir/Route.ts"
import * as DeviceMesh from "./layout/DeviceMesh.ts"
import * as MeshText from "./layout/MeshText.ts"
import * as ParameterMetadata from "./layout/ParameterMetadata.ts"
import * as ParameterNames from "./layout/ParameterNames.ts"
import * as Placement from "./layout/Placement.ts"
import * as Roster from "./layout/Roster.ts"
import * as ShardingRules from "./layout/ShardingRules.ts"
import * as Estimate from "./planner/Estimate.ts"
import * as Lowering from "./planner/Lowering.ts"
import * as MeshCheck from "./planner/MeshCheck.ts"
import * as MeshPlanner from "./planner/MeshPlanner.ts"
import * as PlanCheck from "./planner/PlanCheck.ts"
import * as RosterPlanner from "./planner/RosterPlanner.ts"
import * as Refit from "./refit/Refit.ts"
import * as ReplayPackRequests from "./replay/ReplayPackRequests.ts"
import * as ReplayRing from "./replay/ReplayRing.ts"
import * as ReplayRowLayout from "./replay/ReplayRowLayout.ts"
import * as ReplaySlots from "./replay/ReplaySlots.ts"
import * as HostMemory from "./service/HostMemory.ts"
import * as ReplayTransferBackend from "./service/ReplayTransferBackend.ts"
import * as Device from "./tensor/Device.ts"
import * as Tensor from "./tensor/Tensor.ts"

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
// Element types, regions, names.
export type { Part, Rank, TaskId } from "./base/Ids.ts"

// Checkpoints.
export { type CopyServiceOptions, copyServiceLayer } from "./copy/CopyServiceLayer.ts"
export { matchLocalOpsByTaskId } from "./copy/matchLocalOps.ts"
// Plans between meshes, as data.
// Plans as data.
export type { Message, MessagePart } from "./ir/Message.ts"
export { PlanTensor, planDigest, ReshardPlan, ReshardPlanSet } from "./ir/ReshardPlan.ts"
export { TransferOp } from "./ir/TransferOp.ts"
// Layouts.
// Carrying plans out.
// Planning.
export { PlanError } from "./planner/PlanError.ts"
export { RefitError, type RefitReason } from "./refit/RefitError.ts"
export type { Reading } from "./refit/RefitReaders.ts"
export { type CommitResult, makeRefitSession, type RefitSession } from "./refit/RefitSession.ts"
export type { DerivedCache, KernelForm, RefitSpec, RefitTensor } from "./refit/RefitSpec.ts"
export type { RefitState, RefitVersion } from "./refit/RefitState.ts"
export type { RefitWarning } from "./refit/RefitUpdate.ts"
export {
  type LargeBatch,
  makeReplayPipeline,
  type ReplayPipeline,
  type ReplayPipelineInput,
  type ReplayPipelineReport
} from "./replay/ReplayPipeline.ts"
export { ReplayPipelineError } from "./replay/ReplayPipelineError.ts"
export { ReplayRingError } from "./replay/ReplayRingError.ts"
export { drawRows } from "./replay/ReplaySampling.ts"
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
export { ProcessGroup, ProcessGroupError, type ProcessGroupShape } from "./service/ProcessGroup.ts"
export type { ReplayCopy, ReplayDevice } from "./service/ReplayDevice.ts"
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

export {
  /** Chunks that travel together from one rank to the same others, and where each lies in the buffer. */
  Bucket,
  /** One box of one tensor that moves in one piece. */
  Chunk,
  /** Where memory lives: a family that one `TensorEngine` serves, and the index within it. */
  Device,
  /** Ranks in a grid of one or more dimensions, which may have names. */
  DeviceMesh,
  /** Digests of values that several processes must agree on. */
  Digest,
  /** Element types: their names, widths and kinds. */
  DType,
  /** What a set of plans costs before anything runs: bytes between ranks, memory per rank and a predicted time. */
  Estimate,
  /** Host memory that other processes of the machine can map. */
  HostMemory,
  /** One rank's plan for a list of tensors: chunks and buckets. */
  Lowering,
  /** How any tensor laid out on one mesh gets to another. */
  M2MMap,
  /** Proves that mesh plans are plans, also ones read from a file. */
  MeshCheck,
  /** What one rank does to bring tensors from one mesh layout to another: its local copies and its buckets. */
  MeshPlan,
  /** From two layouts to the map between them, and from the map to its routes. */
  MeshPlanner,
  /** Layouts as people write them: `MESH[@RANKS]:PLACEMENTS`. */
  MeshText,
  /** What one rank says about one of its parameters: its local shape, and how that shard lies in the whole tensor. */
  ParameterMetadata,
  /** Global names of parameters. */
  ParameterNames,
  /** How a tensor lies on a device mesh. */
  Placement,
  /** Proves that plans are plans, also ones read from a file. */
  PlanCheck,
  /** The process group that a launcher's environment describes. */
  ProcessGroupEnvironment,
  /** The ranks of a job as fibers of one process: for tests, simulations, and jobs of one rank. */
  ProcessGroupInProcess,
  /** The ranks of a job as processes that meet over TCP: rank 0 serves a hub and is a member itself. */
  ProcessGroupTcp,
  /** Updates one model from another again and again: agree and plan once, then move as often as weights change. */
  Refit,
  /** Boxes of array indices: half-open intervals, one per dimension. */
  Region,
  /** How a learner has the next batch packed. */
  ReplayPackRequests,
  /** A ring of packed rows in memory that processes share: one writer appends, any number of readers take samples. */
  ReplayRing,
  /** How one replay row lies in memory: named columns of a fixed type and shape, packed one behind the other. */
  ReplayRowLayout,
  /** Host slots of a replay pipeline: one batch of packed rows each, in memory that processes share. */
  ReplaySlots,
  /** Moves replay batches from host slots to device slots without stalling the learner. */
  ReplayTransferBackend,
  /** What all ranks of one side (source or destination) say about their parameters. */
  Roster,
  /** Turns two rosters into one rank's plan. */
  RosterPlanner,
  /** Who sends which cell to whom between two meshes, whatever the tensor's shape. */
  Route,
  /** How a model's tensors are cut over tensor-parallel ranks and spread over pipeline stages, by name. */
  ShardingRules,
  /** A view of storage: element type, shape, strides and where it starts. */
  Tensor
}
