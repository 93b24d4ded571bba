// SPDX-License-Identifier: Apache-2.0
/** The other tests again, with an addon that finds misuse of memory. */
import { describeSanitized } from "@tensorferry/simulators/sanitized"
import { packageFolder } from "../src/Addon.ts"

describeSanitized({
  packageFolder,
  prebuild: "@TENSORFERRY/BACKEND_UCX_PREBUILD",
  files: ["CopyDriver", "descriptor", "conformance"],
  // UCX keeps what it has read of its configuration and of the machine.
  leaking: ["libuc[pst]", "libucm"]
})
