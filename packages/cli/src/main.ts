#!/usr/bin/env node
/** The `tensorferry` command. Exit codes: 0 ok, 1 failure, 2 wrong usage, 130 signal. */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as CliError from "effect/cli/CliError"
import * as Command from "effect/cli/Command"
import * as Effect from "effect/Effect"
import { agent } from "./commands/agent.ts"
import { backends } from "./commands/backends.ts"
import { doctor } from "./commands/doctor.ts"
import { plan } from "./commands/plan.ts"
import { replay } from "./commands/replay.ts"
import { reshard } from "./commands/reshard.ts"
import { verify } from "./commands/verify.ts"

const root = Command.make("tensorferry").pipe(
  Command.withDescription("Move model weights between parallel layouts"),
  Command.withSubcommands([reshard, plan, verify, replay, backends, doctor, agent])
)

const program = Command.runWith(root, { version: "0.1.0" })(process.argv.slice(2)).pipe(
  Effect.catchIf(CliError.isCliError, (error) =>
    Effect.sync(() => {
      process.exitCode = error._tag === "ShowHelp" && error.errors.length === 0 ? 0 : 2
    })
  ),
  Effect.provide(NodeServices.layer)
)

NodeRuntime.runMain(program)
