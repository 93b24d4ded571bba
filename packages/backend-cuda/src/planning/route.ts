// SPDX-License-Identifier: Apache-2.0
/**
 * By which way the parts of one rank get to another, as both ends must answer alike.
 *
 * Invariant: everything asked here is known to both ends: what they published, and what the end that moves the bytes found
 * out and reported. Decisions are taken per flow, that is per sender and receiver.
 */
import * as Result from "effect/Result"

/** Which driver asks: the two plain ones have one way only. */
export type DriverKind = "cuda" | "cuda-ipc" | "nccl"

export const routeNames = ["same-process", "ipc", "nccl"] as const
export type RouteName = (typeof routeNames)[number]

export interface Route {
  readonly name: RouteName
  readonly reason: string
}

/** What the end that moves the bytes found when it looked for the other end's memory. */
export type Reached =
  | { readonly _tag: "Reached"; readonly name: Exclude<RouteName, "nccl">; readonly reason: string }
  | { readonly _tag: "Unreached"; readonly why: string }

export interface RouteFacts {
  readonly kind: DriverKind
  /** Absent for a driver that does not look for the memory. */
  readonly reached: Reached | undefined
  /** Every rank has a library for collectives. */
  readonly hasCollectives: boolean
}

/** The way, or in words why there is none. */
export const routeOf = ({ kind, reached, hasCollectives }: RouteFacts): Result.Result<Route, string> => {
  if (kind !== "nccl" && reached?._tag === "Reached") {
    return Result.succeed({ name: reached.name, reason: reached.reason })
  }
  const why = reached?._tag === "Unreached" ? reached.why : "memory was not looked for"
  if (kind === "cuda-ipc") return Result.fail(`ipc: ${why}`)
  const reason = kind === "nccl" ? "the only path of this backend" : `ipc: ${why}`
  if (hasCollectives) return Result.succeed({ name: "nccl", reason })
  return Result.fail(`${kind === "nccl" ? "" : `ipc: ${why}; `}nccl: a rank could not open the library`)
}
