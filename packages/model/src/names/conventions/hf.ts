// SPDX-License-Identifier: Apache-2.0
/** The checkpoint's own names: nothing is renamed and nothing joined. */
import type { Convention } from "./Convention.ts"

/** The names of published checkpoints, which all others are stated in. */
export const hf: Convention = {
  name: "hf",
  reference: "the checkpoint itself",
  placement: () => ({}),
  mapping: () => ({ rules: [], others: "keep" })
}
