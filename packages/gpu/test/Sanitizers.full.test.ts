// SPDX-License-Identifier: Apache-2.0
/** Tests of the device layer, and of backend-cuda over it, with an addon and a simulated driver that find misuse of memory. */
import { fileURLToPath } from "node:url"
import { describeSanitized } from "@tensorferry/simulators/sanitized"
import { packageFolder } from "../src/Addon.ts"

describeSanitized({
  packageFolder,
  prebuild: "@TENSORFERRY/GPU_PREBUILD",
  files: ["Addon", "AddonPrograms", "DeviceMemory"],
  above: [
    fileURLToPath(new URL("../../backend-cuda", import.meta.url)),
    ["conformance", "Replay", "ReplayAddon", "ReplayConformance"]
  ],
  isSimulated: true
})
