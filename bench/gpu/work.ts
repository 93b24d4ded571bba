// SPDX-License-Identifier: Apache-2.0
/**
 * What the programs of `bench/gpu` tell each other: the work of a rank's process, and the lines that it prints. Data only.
 */
import type { CaseResult, RankOutcome } from "@tensorferry/testing"

export type Work =
  /** All cases of the kit for this number of ranks. */
  | { readonly kind: "conformance" }
  /** Recorded rosters of Megatron-LM, carried out with real bytes three times each. */
  | { readonly kind: "golden"; readonly file: string }
  /** Cases of `reshards.ts` by number. */
  | {
      readonly kind: "reshard"
      readonly cases: ReadonlyArray<number>
      readonly warmUps: number
      readonly rounds: number
    }
  /** Cases of `namedCases.ts` by number. */
  | { readonly kind: "names"; readonly cases: ReadonlyArray<number>; readonly warmUps: number; readonly rounds: number }
  /** The same small update again and again. */
  | { readonly kind: "repeats"; readonly count: number }

export interface RankSpec {
  readonly rank: number
  readonly size: number
  /** Of rank 0 on loopback; 0 lets rank 0 choose. */
  readonly port: number
  readonly backend: string
  readonly options: { readonly [name: string]: unknown }
  /** Whether what a reshard writes to lies in the symmetric heap; only with `nvshmem`. */
  readonly symmetric?: boolean
  /** Divides long dimensions of the weights, for rehearsals; 1 by default. */
  readonly shrink?: number
  readonly work: Work
}

/** One timed update; times are milliseconds. */
export interface ReshardTimes {
  readonly case: string
  /** Of the slowest rank in every round. */
  readonly roundsMs: ReadonlyArray<number>
  readonly operations: number
  readonly localBytes: number
  readonly sentBytes: number
  readonly receivedBytes: number
  readonly phasesMs: { readonly [phase: string]: number }
  readonly paths: ReadonlyArray<string>
  /** Empty where every sampled element is right. */
  readonly faults: ReadonlyArray<string>
}

export interface RepeatSample {
  readonly milliseconds: number
  readonly heapBytes: number
  readonly residentBytes: number
  readonly descriptors: number
}

export type RankLine =
  | { readonly event: "port"; readonly port: number }
  | { readonly event: "outcome"; readonly name: string; readonly outcome: RankOutcome }
  | { readonly event: "result"; readonly result: CaseResult }
  | { readonly event: "reshard"; readonly times: ReshardTimes }
  | { readonly event: "sample"; readonly sample: RepeatSample }
