// SPDX-License-Identifier: Apache-2.0
/** Sends regions as they are. The transform to compare others with. */
import * as Effect from "effect/Effect"
import { plainRegion, type ReshardTransform } from "./ReshardTransform.ts"

/** Changes nothing: regions travel as they are. */
export const identity: ReshardTransform = {
  name: "identity",
  shouldTransform: () => true,
  prepareSend: (op) => Effect.map(plainRegion(op), (view) => [view]),
  prepareRecv: (op) => Effect.map(plainRegion(op), (view) => [view]),
  finalizeRecv: () => Effect.void
}
