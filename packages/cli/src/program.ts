// SPDX-License-Identifier: Apache-2.0
/**
 * The command and its subcommands, as an effect. The code of a subcommand is imported when it is called for; what the help
 * of all of them needs is here.
 */
import { createRequire } from "node:module"
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as CliError from "effect/cli/CliError"
import * as Command from "effect/cli/Command"
import * as Effect from "effect/Effect"
import * as Logger from "effect/Logger"
import { presenterFor, withoutVainHelp } from "./usage.ts"

/** Completions and the wizard know every flag; otherwise a subcommand that is not named is only a line of the help. */
const isCalled = (given: ReadonlyArray<string>, name: string): boolean =>
  given.includes(name) || given.some((arg) => /^--(completions|wizard)/.test(arg))

const subcommandOf =
  (given: ReadonlyArray<string>) =>
  async <Name extends string, Input, ContextInput, E, R>(
    name: Name,
    description: string,
    load: () => Promise<Command.Command<Name, Input, ContextInput, E, R>>
  ) => {
    const described = Command.withDescription(description)
    return isCalled(given, name) ? described(await load()) : described(Command.make(name))
  }

/** In the order of the help. */
const subcommandsFor = (given: ReadonlyArray<string>) => {
  const subcommand = subcommandOf(given)
  return Promise.all([
    subcommand(
      "reshard",
      "Reshard a checkpoint from one parallel layout to another, or one of its tensors between device meshes, one process per rank, and prove the result",
      async () => (await import("./commands/reshard.ts")).reshard
    ),
    subcommand(
      "convert",
      "Write a model as another system names, joins and cuts its tensors: from files to files of its ranks, by one process",
      async () => (await import("./commands/convert.ts")).convert
    ),
    subcommand(
      "plan",
      "Show what a reshard of a checkpoint, or of one tensor between device meshes, would move: traffic matrix, bytes, memory and predicted time",
      async () => (await import("./commands/plan.ts")).plan
    ),
    subcommand(
      "describe",
      "Show what the tensors of a model mean: stacks of layers, structures that are cut alike, forms, and the degrees of parallelism that fit",
      async () => (await import("./commands/describe.ts")).describe
    ),
    subcommand(
      "report",
      "Show a record of a run as one HTML page: traffic, waterfall, timeline, memory, parameters; or compare two",
      async () => (await import("./commands/report.ts")).report
    ),
    subcommand(
      "verify",
      "Compare two models tensor by tensor, bit by bit or within a tolerance, whatever their layouts; exit code 1 where they differ",
      async () => (await import("./commands/verify.ts")).verify
    ),
    subcommand(
      "delta",
      "Write what changed between two versions of a model as a file, apply such files in their order, or show them",
      async () => (await import("./commands/delta.ts")).delta
    ),
    subcommand(
      "replay",
      "Feed replay batches from a collector process to a learner's device",
      async () => (await import("./commands/replay.ts")).replay
    ),
    subcommand(
      "bench",
      "Measure the speed of a backend between processes, beside plain copies in memory",
      async () => (await import("./commands/bench.ts")).bench
    ),
    subcommand(
      "backends",
      "List backends, show what they find or miss on this machine, and test one with the conformance kit",
      async () => (await import("./commands/backends.ts")).backends
    ),
    subcommand(
      "doctor",
      "Inspect the machine and every backend, with remedies",
      async () => (await import("./commands/doctor.ts")).doctor
    ),
    subcommand(
      "agent",
      "Run an agent of the tensor bus, which exchanges tensors of local processes with other agents",
      async () => (await import("./commands/agent.ts")).agent
    ),
    subcommand(
      "fleet",
      "Show a fleet of replicas: its members, its history, and one version's life step by step",
      async () => (await import("./commands/fleet.ts")).fleet
    ),
    subcommand(
      "watch",
      "Watch a fleet: a live page of members, trees of updates, links and history; or in a terminal, or by Prometheus",
      async () => (await import("./commands/watch.ts")).watch
    )
  ])
}

/** One folder below the package's own, in the sources as in what is published. */
const { version } = createRequire(import.meta.url)("../package.json") as { readonly version: string }

/** The command with those of its subcommands that these arguments name; the others are lines of the help. */
export const makeRoot = async (given: ReadonlyArray<string>) =>
  Command.make("tensorferry").pipe(
    Command.withDescription("Move model weights between parallel layouts"),
    Command.withSubcommands(await subcommandsFor(given))
  )

/** Carries out what these arguments ask for, and sets the process's exit code where they are wrong usage. */
export const makeProgram = async (given: ReadonlyArray<string>) => {
  const root = await makeRoot(given)
  return Command.runWith(root, { version })(withoutVainHelp(root, given)).pipe(
    Effect.catchIf(CliError.isCliError, (error) =>
      Effect.sync(() => {
        process.exitCode = error._tag === "ShowHelp" && error.errors.length === 0 ? 0 : 2
      })
    ),
    Effect.provide([NodeServices.layer, presenterFor(given)]),
    // Standard output is for results.
    Effect.provideService(Logger.LogToStderr, true)
  )
}
