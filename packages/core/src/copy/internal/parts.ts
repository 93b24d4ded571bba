// SPDX-License-Identifier: Apache-2.0
/** What a copy service is made of and keeps from its first run to its last. */
import type * as Scope from "effect/Scope"
import type { Rank } from "../../base/Ids.ts"
import type { CopyDriverCapabilities } from "../../service/CopyDriver.ts"
import type { ProcessGroupShape } from "../../service/ProcessGroup.ts"
import type { TensorEngineShape } from "../../service/TensorEngine.ts"
import type { makeRounds } from "./rounds.ts"
import type { Signals } from "./signals.ts"
import type { CopyTelemetry } from "./telemetry.ts"
import type { makeDriverCalls } from "./transfer.ts"

export interface CopyParts {
  readonly group: ProcessGroupShape
  readonly signals: Signals
  readonly engine: TensorEngineShape
  /** Of the whole service. */
  readonly scope: Scope.Scope
  readonly backend: string
  readonly rank: Rank
  readonly capabilities: CopyDriverCapabilities
  /** Bytes. */
  readonly stagingBytes: number
  readonly telemetry: CopyTelemetry
  /** Known batches are repeated without a collective. */
  readonly isPairwise: boolean
  readonly rounds: ReturnType<typeof makeRounds>
  readonly calls: ReturnType<typeof makeDriverCalls>
}
