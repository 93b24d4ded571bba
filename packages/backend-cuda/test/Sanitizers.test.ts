/** The kit and other tests again, with an addon and a simulated driver that find misuse of memory (only in full runs). */
import { describeSanitized } from "../../native/test/sanitized.ts"
import { packageFolder } from "../src/Addon.ts"

describeSanitized({
  packageFolder,
  prebuild: "@TENSORFERRY/BACKEND_CUDA_PREBUILD",
  testBuild: "TENSORFERRY_CUDA_TEST_BUILD",
  files: ["Addon", "AddonPrograms", "DeviceMemory", "conformance", "Replay", "ReplayAddon", "ReplayConformance"]
})
