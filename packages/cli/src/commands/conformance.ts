// SPDX-License-Identifier: Apache-2.0
/** `tensorferry backends conformance`: the kit's cases on one backend, in processes, with a report. */

import { modelError } from "@tensorferry/model/ModelError"
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { backendOptions } from "../backends/optionsFlag.ts"
import { withFailures } from "../output/CliFailure.ts"
import { quiet } from "../output/quiet.ts"
import { pathFlag } from "./paths.ts"
import { backendPackages, json } from "./shared.ts"

const mostRanks = 4
const defaultCaseSeconds = 60

const flags = {
  name: Argument.String("NAME").pipe(Argument.withDescription("The backend to test")),
  ranks: Flag.Int("ranks").pipe(
    Flag.withSchema(Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: mostRanks }))),
    Flag.withDescription(
      `Most processes of a case, 1 to ${mostRanks}; cases of more ranks are skipped (${mostRanks} by default)`
    ),
    Flag.withDefault(mostRanks)
  ),
  filter: Flag.String("filter").pipe(
    Flag.withDescription("Only cases whose service or name contains this text, such as copyDriver or cancel"),
    Flag.optional
  ),
  options: backendOptions,
  quirks: pathFlag("quirks", "file").pipe(
    Flag.withDescription("YAML or JSON file of cases that are known to fail, each with the reason; they are not run"),
    Flag.optional
  ),
  hooks: pathFlag("hooks", "file").pipe(
    Flag.withDescription(
      "JavaScript or TypeScript module whose replayTesting can delay a replay backend's device; by default the descriptor's"
    ),
    Flag.optional
  ),
  caseSeconds: Flag.Finite("case-seconds").pipe(
    Flag.withSchema(Schema.Finite.check(Schema.isBetween({ minimum: 1, maximum: 3600 }))),
    Flag.withDescription(`Seconds after which a case counts as hanging (${defaultCaseSeconds} by default)`),
    Flag.withDefault(defaultCaseSeconds)
  ),
  report: pathFlag("report", "file").pipe(Flag.withDescription("File to write the report to, as JSON"), Flag.optional),
  note: Flag.String("note").pipe(
    Flag.withDescription("A note for the report, for example that the devices are simulated"),
    Flag.withDefault("")
  ),
  backendPackages,
  quiet,
  json
}

const isMissingKit = (cause: unknown): boolean =>
  (cause as { readonly code?: unknown }).code === "ERR_MODULE_NOT_FOUND" &&
  String(cause).includes("@tensorferry/testing")

/** The kit is a package that is installed by those who judge backends. */
const loadJudge = Effect.tryPromise({
  try: () => import("../backends/judge.ts"),
  catch: (cause) =>
    isMissingKit(cause)
      ? modelError("MissingPackage", {
          detail: "The conformance kit, @tensorferry/testing, is not installed.",
          remedy: "Install that package beside the command, in the same version."
        })
      : modelError("MissingPackage", {
          detail: `The conformance kit cannot be imported: ${String(cause)}.`,
          remedy: "Install @tensorferry/testing again, in the version of the command."
        })
})

export const conformance = Command.make("conformance", flags, (given) =>
  withFailures(
    given,
    Effect.flatMap(loadJudge, ({ judge }) => judge(given))
  )
).pipe(
  Command.withExamples([
    { command: "tensorferry backends conformance torch-copy", description: "The host backend, up to four processes" },
    {
      command: "tensorferry backends conformance spool --backend-package ./spool --filter copyDriver",
      description: "A backend of your own, its driver only"
    },
    {
      command: "tensorferry backends conformance nccl --ranks 2 --report nccl.json",
      description: "Two devices, with a report"
    }
  ])
)
