// SPDX-License-Identifier: Apache-2.0
/** Tests of the addon again, with one that finds misuse of memory. */
import { describeSanitized } from "@tensorferry/simulators/sanitized"
import { packageFolder } from "../src/Addon.ts"

describeSanitized({
  packageFolder,
  prebuild: "@TENSORFERRY/BUS_PREBUILD",
  files: ["queue/CommandQueue", "state/AgentState", "state/NamedSemaphore", "payload/TorchMemory", "queue/QueueEnds"]
})
