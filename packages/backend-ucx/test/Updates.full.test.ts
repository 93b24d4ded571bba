// SPDX-License-Identifier: Apache-2.0
/** Many updates by the same program over ucx leave nothing behind, by messages and by writes. */
import { TensorEngine } from "@tensorferry/backend-torch-copy"
import { describeUpdates } from "@tensorferry/simulators/updates"
import * as Effect from "effect/Effect"
import { describe } from "vitest"
import { loadAddon } from "../src/Addon.ts"
import * as CopyDriver from "../src/CopyDriver.ts"
import { noUcx } from "./support.ts"

describe.skipIf(noUcx !== undefined)(noUcx ?? "the driver ucx", () => {
  for (const transfer of ["messages", "emulated-put"] as const)
    describeUpdates(`updates by ${transfer}`, TensorEngine.layer({ threads: 1 }), (group) =>
      Effect.flatMap(loadAddon, (addon) => CopyDriver.make(addon, group, undefined, { transfer }))
    )
})
