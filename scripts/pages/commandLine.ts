// SPDX-License-Identifier: Apache-2.0
/** Whether `tensorferry` would take a command line: the command's own parser judges it, and nothing is carried out. */
import * as NodeServices from "@effect/platform-node/NodeServices"
import { subcommands } from "@tensorferry/cli/commands"
import * as Console from "effect/Console"
import type * as CliError from "effect/cli/CliError"
import * as Command from "effect/cli/Command"
import * as Effect from "effect/Effect"

/** The handler of the root stands for those of all subcommands. */
const idle = Command.make("tensorferry").pipe(
  Command.withSubcommands(subcommands),
  Command.withHandler(() => Effect.void)
)

/** The help that goes with a refusal is not asked for. */
const quiet: Console.Console = { ...globalThis.console, log: () => {}, error: () => {} }

const textOf = (error: CliError.CliError): string =>
  error._tag === "ShowHelp" ? error.errors.map(textOf).join("; ") || "names no subcommand" : error.message

export const commandLineFault = (args: ReadonlyArray<string>): Promise<string | undefined> =>
  Command.runWith(idle, { version: "", renderErrors: false })(args).pipe(
    Effect.match({ onFailure: textOf, onSuccess: () => undefined }),
    Effect.provideService(Console.Console, quiet),
    Effect.provide(NodeServices.layer),
    Effect.runPromise
  )
