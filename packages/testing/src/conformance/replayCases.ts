// SPDX-License-Identifier: Apache-2.0
/**
 * All cases of a `ReplayTransferBackend`.
 */
import type { ReplayCase } from "./replayCase.ts"
import { replayLifecycleCases } from "./replayLifecycleCases.ts"
import { replayMoveCases } from "./replayMoveCases.ts"
import { replayRefusalCases } from "./replayRefusalCases.ts"
import { replayStateCases } from "./replayStateCases.ts"

/** Moves, states of slots, refusals and life cycle. */
export const replayConformanceCases: ReadonlyArray<ReplayCase> = [
  ...replayMoveCases,
  ...replayStateCases,
  ...replayRefusalCases,
  ...replayLifecycleCases
]
