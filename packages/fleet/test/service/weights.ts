// SPDX-License-Identifier: Apache-2.0
/** What the processes of a test fleet and the test agree on: the weights, the times, where ranks are. */
import { createHash } from "node:crypto"
import { type Topology, uniformTopology } from "../../src/topology/Topology.ts"
import type { FleetTimes } from "../../src/version/FleetTimes.ts"

/** How much weighs what: 150 kB, 24 MiB, or one tensor of so many elements of 4 bytes. */
export type WeightSize = "small" | "large" | number

/** Elements of 4 bytes of each tensor, and no length that chunks divide. */
export const shapesOf = (size: WeightSize): Readonly<Record<string, number>> =>
  size === "small"
    ? { embed: 20_001, layer: 10_003, norm: 777, output: 7001 }
    : size === "large"
      ? { embed: 3_000_001, layer: 2_500_003, norm: 777, output: 790_001 }
      : { weight: size }

/** For one busy host. */
export const testTimes: FleetTimes = { beat: 0.1, fence: 1.5, grace: 0.5, dead: 1.5, stage: 60, prepare: 10 }

/** Every rank alone on a host, so that they form a chain. */
export const testTopology = (ranks: number): Topology =>
  uniformTopology({ hosts: ranks, ranksPerHost: 1, bytesPerSecond: 1e9, latencySeconds: 1e-5 })

/** Bytes of a version, different at every place. */
export const fillWeights = (weights: ReadonlyMap<string, Uint8Array>, seed: number): void => {
  let state = (seed * 2_654_435_761 + 1) >>> 0
  for (const bytes of weights.values()) {
    const words = new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4)
    for (let at = 0; at < words.length; at++) {
      state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
      words[at] = state
    }
  }
}

/** The hash of a version, computed away from all processes. */
export const hashOf = (seed: number, size: WeightSize): string => {
  const weights = new Map(Object.entries(shapesOf(size)).map(([name, length]) => [name, new Uint8Array(length * 4)]))
  fillWeights(weights, seed)
  const found = createHash("sha256")
  for (const bytes of weights.values()) found.update(bytes)
  return found.digest("hex")
}

/** What a process is started with. */
export interface MemberInput {
  readonly role: "source" | "replica"
  readonly rank: number
  readonly ranks: number
  readonly controls: boolean
  readonly size: WeightSize
  /** Of the served store; of etcd where it is a text. */
  readonly store: number | string
  /** Where others reach it, and bytes go over TCP; by default memory is mapped, on this host. */
  readonly address?: string
  /** It holds a part of the sharded model, and `size` does not count. */
  readonly isSharded?: boolean
  /** Every rank alone on a host by default. */
  readonly topology?: Topology
  /** `testTimes` by default. */
  readonly times?: FleetTimes
}

/** What a process prints. */
export type MemberLine =
  | { readonly event: "ready" }
  | {
      readonly event: "status"
      /** Seconds of the machine's clock, which all its processes read. */
      readonly at: number
      /** Label of the version that it serves. */
      readonly serving: string | null
      readonly staging: string | null
      readonly staged: string | null
      readonly members: ReadonlyArray<number>
      readonly failure: string
    }
  | { readonly event: "published"; readonly label: string; readonly serial: number }
  | { readonly event: "used"; readonly label: string; readonly hash: string }
  | { readonly event: "failed"; readonly message: string }
