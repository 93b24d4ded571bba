// SPDX-License-Identifier: Apache-2.0
/** A pair "p" of one rank on each side. */
import { shard } from "@tensorferry/core/layout/Placement"

export const oneEach = (local: string, remote: string) => ({
  pair: "p",
  local,
  remote,
  mesh: [1],
  placements: [shard(0)]
})
