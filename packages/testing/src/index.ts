// SPDX-License-Identifier: Apache-2.0
/**
 * The kit for authors of backends and planners: conformance cases, virtual clusters, deliberate faults and lies, generators,
 * laws and the oracle. No test runner in it; `@tensorferry/testing/vitest` has the adapter for one.
 */
import * as DelayedEngine from "./DelayedEngine.ts"
import * as DelayedReplayDevice from "./DelayedReplayDevice.ts"
import * as mutate from "./mutate.ts"
import * as mappings from "./names/randomMapping.ts"
import * as arbitraries from "./planning/arbitraries.ts"
import * as laws from "./planning/laws.ts"
import * as meshArbitraries from "./planning/meshArbitraries.ts"
import * as meshLaws from "./planning/meshLaws.ts"
import * as meshOracle from "./planning/meshOracle.ts"
import * as oracle from "./planning/oracle.ts"
import * as ReferenceEngine from "./ReferenceEngine.ts"

export {
  CaseFailure,
  CaseResult,
  type CopyCase,
  type CopyDriverCase,
  checkQuirks,
  combineOutcomes,
  copyCases,
  copyDriverCases,
  defaultCaseDeadline,
  defaultGroupDeadline,
  defaultTestLimit,
  describeCause,
  type Quirks,
  RankOutcome,
  runCopyCaseRank,
  runCopyDriverCaseRank,
  runTensorEngineCase,
  runTensorEngineCases,
  type Stated,
  StatedCapabilities,
  type TensorEngineCase,
  tensorEngineCases,
  withQuirks
} from "./Conformance.ts"
export { meetAfterCase, type RankRun, runConformanceRank } from "./ConformanceRank.ts"
export { ConformanceReport, countCases, judgedServices, ServiceResults } from "./ConformanceReport.ts"
export { type ReplayStreams, ReplaySubject, type ReplaySubjectShape } from "./conformance/ReplaySubject.ts"
export { replaySubject } from "./DescriptorSubject.ts"
export { type Fault, type FaultAction, type FaultOptions, makeFault } from "./Faulty.ts"
export {
  type FuzzOptions,
  type FuzzReport,
  type FuzzTarget,
  type FuzzTargets,
  fuzz,
  fuzzMain
} from "./fuzz.ts"
export { type HeldCopies, makeHeldCopies } from "./HeldEngine.ts"
export {
  type LoopbackNetwork,
  type LoopbackOptions,
  loopbackLayer,
  makeLoopbackNetwork,
  strictLayer
} from "./Loopback.ts"
export {
  type DescriptorLie,
  type DriverLie,
  descriptorLies,
  driverLies,
  type EngineLie,
  engineLies,
  lyingDriver,
  lyingEngine
} from "./Lying.ts"
export {
  delayedReplaySubject,
  type ReplayCase,
  replayConformanceCases,
  runReplayCase,
  runReplayCases
} from "./ReplayConformance.ts"
export {
  type ClusterOf,
  type RankServices,
  runCluster,
  runCopyCase,
  runCopyDriverCase,
  runMembers,
  runRanks,
  type VirtualClusterOptions
} from "./VirtualCluster.ts"
export { elementCodec } from "./values/casts.ts"

export {
  /** Generators of what planners and executors must handle. */
  arbitraries,
  /** An engine whose copies and reductions are done late, in a seeded order, and only when the test lets them. */
  DelayedEngine,
  /** A replay device in memory of this process, whose copies end when a test says so. */
  DelayedReplayDevice,
  /** What must hold for any planner's plans. */
  laws,
  /** Random mappings of names. */
  mappings,
  /** Generators of pairs of mesh layouts and tensors. */
  meshArbitraries,
  /** What must hold for the mesh plans of any pair of layouts, each law as a function that lists its violations. */
  meshLaws,
  /** Carries out the mesh plans of all ranks on plain arrays. */
  meshOracle,
  /** Damages valid inputs of parsers, so that fuzzing gets past the first check. */
  mutate,
  /** What must be true of an update, found by brute force. */
  oracle,
  /** The slow `TensorEngine` in plain TypeScript that defines the bits: other engines are right where they agree with it. */
  ReferenceEngine
}
