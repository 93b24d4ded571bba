// SPDX-License-Identifier: Apache-2.0
/** The other tests again, with an addon and a simulated driver that find misuse of memory. */
import { describeSanitized } from "@tensorferry/simulators/sanitized"
import { packageFolder } from "../src/Addon.ts"

describeSanitized({
  packageFolder,
  prebuild: "@TENSORFERRY/BACKEND_XPU_PREBUILD",
  isSimulated: true,
  files: ["Addon", "ReplayDevice", "ReplayConformance", "conformance", "Faults", "InOrder"],
  leaking: ["libpocl", "libOpenCL", "libLLVM", "libze_"]
})
