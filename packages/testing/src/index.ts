// SPDX-License-Identifier: Apache-2.0
/**
 * The kit for authors of backends and planners: conformance cases, virtual clusters, deliberate faults and lies, generators,
 * laws and the oracle. No test runner in it; `@tensorferry/testing/vitest` has the adapter for one.
 */

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
export * as DelayedEngine from "./DelayedEngine.ts"
export * as DelayedReplayDevice from "./DelayedReplayDevice.ts"
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
export * as mutate from "./mutate.ts"
export * as mappings from "./names/randomMapping.ts"
export * as arbitraries from "./planning/arbitraries.ts"
export * as laws from "./planning/laws.ts"
export * as meshArbitraries from "./planning/meshArbitraries.ts"
export * as meshLaws from "./planning/meshLaws.ts"
export * as meshOracle from "./planning/meshOracle.ts"
export * as oracle from "./planning/oracle.ts"
export * as ReferenceEngine from "./ReferenceEngine.ts"
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
