// SPDX-License-Identifier: Apache-2.0
/** A side of a job in one word, as it is typed. */
import { formatParallelConfig, type ParallelConfig } from "@tensorferry/model/layout/ModelLayout"

/** `vllm:tp=8`; without a convention `tp=8`. */
export const sideText = (config: ParallelConfig, convention?: string): string =>
  `${convention === undefined ? "" : `${convention}:`}${formatParallelConfig(config)}`
