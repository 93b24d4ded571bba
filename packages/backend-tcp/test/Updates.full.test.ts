// SPDX-License-Identifier: Apache-2.0
/** Many updates by the same program over tcp leave nothing behind. */
import { describeUpdates } from "@tensorferry/simulators/updates"
import * as Effect from "effect/Effect"
import { loadAddon } from "../src/Addon.ts"
import * as CopyDriver from "../src/CopyDriver.ts"
import { hostEngine } from "./support.ts"

describeUpdates("updates", hostEngine, (group) =>
  Effect.flatMap(loadAddon, (addon) => CopyDriver.make(addon, group, undefined, { lanes: 2 }))
)
