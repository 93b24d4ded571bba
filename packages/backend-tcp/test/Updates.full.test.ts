// SPDX-License-Identifier: Apache-2.0
/** Many updates by the same program over tcp leave nothing behind. */
import { describeUpdates } from "@tensorferry/simulators/updates"
import * as Effect from "effect/Effect"
import { loadAddon } from "../src/Addon.ts"
import * as CopyDriver from "../src/CopyDriver.ts"
import { hostEngine } from "./support.ts"

// A second lane is opened once the first has more to carry than it can, and has both of its ends here.
describeUpdates(
  "updates",
  hostEngine,
  (group) => Effect.flatMap(loadAddon, (addon) => CopyDriver.make(addon, group, undefined, { lanes: 2 })),
  2
)
