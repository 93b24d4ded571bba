// SPDX-License-Identifier: Apache-2.0
/** The other tests again, with an addon and a simulated driver that find misuse of memory. */
import { describeSanitized } from "@tensorferry/simulators/sanitized"
import { packageFolder } from "../src/Addon.ts"

describeSanitized({
  packageFolder,
  prebuild: "@TENSORFERRY/BACKEND_NVSHMEM_PREBUILD",
  files: ["CopyDriver", "Symmetric", "conformance", "descriptor"],
  isSimulated: true
})
