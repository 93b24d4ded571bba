// SPDX-License-Identifier: Apache-2.0
/** One side as it is typed: degrees, and before a colon how its tensors are named. */

import * as Result from "effect/Result"
import { type ParallelConfig, parseParallelConfig } from "../layout/ModelLayout.ts"
import type { Placement } from "../placement/Placement.ts"
import { conventionNames, findConvention } from "./conventions/conventions.ts"

/** Degrees and the names of tensors. */
export interface StatedSide {
  readonly config: ParallelConfig
  /** Undefined where tensors keep the names that they have. */
  readonly convention: string | undefined
  /** Degrees are left to what the checkpoint notes of the run that wrote it: `megatron` without a colon. */
  readonly isNoted?: true
  /** Where the side has parts of the model, as its notes say. */
  readonly placement?: Placement
}

/** One rank. */
export const single: ParallelConfig = { tp: 1, pp: 1, dp: 1 }

/** `vllm:tp=8`, `tp=8` or `hf:`. Fails with what is expected. */
export const parseSide = (value: string): Result.Result<StatedSide, string> => {
  const [, convention, degrees] = /^(?:([a-z][a-z0-9-]*):)?(.*)$/.exec(value) ?? []
  if (convention !== undefined && findConvention(convention) === undefined)
    return Result.fail(`a convention of ${conventionNames.join(", ")} before the colon`)
  if (convention !== undefined && degrees === "") return Result.succeed({ config: single, convention })
  return Result.mapBoth(parseParallelConfig(degrees ?? ""), {
    onSuccess: (config) => ({ config, convention }),
    onFailure: ({ remedy }) => remedy
  })
}

/** A side that files already have: also `megatron`, whose degrees the run that wrote them noted. */
export const parseSource = (value: string): Result.Result<StatedSide, string> =>
  value === "megatron" ? Result.succeed({ config: single, convention: value, isNoted: true }) : parseSide(value)
