// SPDX-License-Identifier: Apache-2.0
/** What the process was called with, carried out. */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import { makeProgram } from "./program.ts"

NodeRuntime.runMain(await makeProgram(process.argv.slice(2)))
