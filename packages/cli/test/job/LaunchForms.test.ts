// SPDX-License-Identifier: Apache-2.0
/** The command under the variables of a launcher that is tried nowhere else, and under wrong ones. */
import { describeForms, describeWrong, wrong } from "../support/launchForms.ts"

describeForms(["Slurm"])
// Every variable by itself is tried in core's tests; a command takes a while to start.
describeWrong(wrong.slice(0, 2))
