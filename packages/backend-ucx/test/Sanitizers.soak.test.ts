// SPDX-License-Identifier: Apache-2.0
/** The other tests again, with an addon that finds misuse of memory and races between threads. */
import { describeSanitized } from "@tensorferry/simulators/sanitized"
import { packageFolder } from "../src/Addon.ts"

describeSanitized({
  packageFolder,
  prebuild: "@TENSORFERRY/BACKEND_UCX_PREBUILD",
  files: ["CopyDriver", "descriptor", "conformance"],
  sanitizers: ["address", "thread"],
  // UCX keeps what it has read of its configuration and of the machine.
  leaking: ["libuc[pst]", "libucm"]
})
