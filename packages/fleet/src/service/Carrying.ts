// SPDX-License-Identifier: Apache-2.0
/** What a member's weights are to its fleet: how their bytes go from member to member, and how a version of them is proven. */
import type { Digest } from "@tensorferry/core/base/Digest"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"
import { type BundleBytes, digestWeights, type Weights, weightBytes, wholeBytes } from "../edges/Pieces.ts"
import { type FleetError, fleetError } from "../FleetError.ts"
import type { FleetMember } from "../version/FleetLog.ts"
import type { Manifest } from "../version/Manifest.ts"
import { type StageDemand, wholeDemand } from "./stagePlan.ts"

/** See the head of this file. */
export interface Carrying {
  /** The replica that this member is a process of, where it is not all of one. */
  readonly part: FleetMember["part"]
  readonly demand: StageDemand
  /** The bytes of bundles in these tensors. */
  readonly bytesOf: (weights: Weights) => BundleBytes
  /** Ends when the tensors, and those of others that are one with this member, are what the version says. Fails with NotProven. */
  readonly prove: (weights: Weights, manifest: Manifest) => Effect.Effect<void, FleetError, TensorEngine>
  /** The digest of each tensor that the source holds; ends when all of its processes have stated theirs under this label. */
  readonly digests: (
    weights: Weights,
    label: string,
    since: number
  ) => Effect.Effect<Readonly<Record<string, Digest>>, FleetError, TensorEngine>
  /** States again what others may need from the store, which may have lost it. */
  readonly restate: Effect.Effect<void>
  /** Whether this process proposes what the source publishes. */
  readonly leads: boolean
}

/** That something could not be computed or is not what it should be. */
export const notProven = (detail: string, remedy: string, paramName?: string): FleetError =>
  fleetError("NotProven", [], { ...(paramName === undefined ? {} : { paramName }), detail, remedy, isRetryable: true })

const seeFailure = ({ message }: { readonly message: string }): FleetError =>
  fleetError("NotProven", [], { detail: message, remedy: "See the failure that caused it." })

/** Of a member that holds whole tensors. */
export const wholeCarrying = (weights: Weights): Carrying => ({
  part: undefined,
  leads: true,
  restate: Effect.void,
  demand: wholeDemand(weightBytes(weights)),
  bytesOf: wholeBytes,
  digests: (held) => Effect.mapError(digestWeights(held), seeFailure),
  prove: (held, { serial, tensors }) =>
    Effect.gen(function* () {
      const found = yield* Effect.mapError(digestWeights(held), seeFailure)
      const names = [...new Set([...Object.keys(found), ...Object.keys(tensors)])]
      const wrong = names.find((name) => found[name] !== tensors[name])
      if (wrong === undefined) return
      return yield* notProven(
        `Tensor ${wrong} of version ${serial} has digest ${found[wrong] ?? "none"} here, not ${tensors[wrong] ?? "none"}.`,
        "See that source and replicas hold tensors of the same names, types and shapes, and that the source does not change them.",
        wrong
      )
    })
})
