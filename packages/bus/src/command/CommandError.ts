// SPDX-License-Identifier: Apache-2.0
/** Why bytes are not a command: which rule they break, and where. */

import { ReasonError, type ReasonInput, reason, reasonOf } from "@tensorferry/core/base/Reason"
import * as Schema from "effect/Schema"

/** Why a command failed, by tag. */
export const CommandReason = Schema.Union([
  /** The bytes are not one whole message: cut short, too long, nested too deeply, not UTF-8. */
  reason("Malformed"),
  /** A sound message that is no command: a field is missing or of another type. */
  reason("Invalid")
])
export type CommandReason = typeof CommandReason.Type

/** Why a command could not be read or answered. */
export class CommandError extends ReasonError<CommandError>()("CommandError", CommandReason) {}

/** Makes the error of this reason; `input` has at least `detail` and `remedy`. */
export const commandError = (tag: CommandReason["_tag"], input: ReasonInput): CommandError =>
  new CommandError({ reason: reasonOf(tag, input) })
