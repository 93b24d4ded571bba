// SPDX-License-Identifier: Apache-2.0
/** `tensorferry report`: a record of a run, or two beside each other, as one page that any browser shows. */
import * as path from "node:path"
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { writeWhole } from "../model/writeWhole.ts"
import { withFailures } from "../output/CliFailure.ts"
import { comparisonPage } from "../report/comparison.ts"
import { reportPage } from "../report/page.ts"
import { readRunRecord } from "../report/RunRecord.ts"
import { checkTarget } from "../report/runFiles.ts"
import { printEither } from "../text/terminal.ts"
import { usage } from "./meshFlags.ts"
import { pathArgument, pathFlag } from "./paths.ts"
import { json } from "./shared.ts"

export const report = Command.make(
  "report",
  {
    record: pathArgument("RUN", "file").pipe(Argument.withDescription("What reshard --record wrote")),
    other: pathArgument("OTHER", "file").pipe(
      Argument.withDescription("A later run to compare RUN with: the page shows what changed"),
      Argument.optional
    ),
    out: pathFlag("out", "file").pipe(
      Flag.withDescription(
        "File for the page; by default the last record's name with .html, RUN-and-OTHER.html for two"
      ),
      Flag.optional
    ),
    json
  },
  (flags) =>
    withFailures(
      flags,
      Effect.gen(function* () {
        const files = [flags.record, ...Option.toArray(flags.other)].map((one) => path.resolve(one))
        const [file, other] = files as [string, string?]
        const { dir, name } = path.parse(other ?? file)
        const both = other === undefined ? name : `${path.parse(file).name}-and-${name}`
        const out = path.resolve(Option.getOrElse(flags.out, () => path.join(dir, `${both}.html`)))
        if (files.includes(out)) {
          return yield* usage("The page would overwrite a record.", "Name another file by --out.")
        }
        const record = yield* readRunRecord(file)
        const page =
          other === undefined
            ? reportPage(record)
            : comparisonPage([file, other], [record, yield* readRunRecord(other)])
        yield* checkTarget(out)
        yield* writeWhole(out, "the page", page)
        yield* printEither(
          flags.json,
          () => ({ ok: true, file: out }),
          () => out
        )
      })
    )
).pipe(
  Command.withDescription(
    "Show a record of a run as one HTML page: traffic, waterfall, timeline, memory, parameters; or compare two"
  ),
  Command.withExamples([
    { command: "tensorferry report run.json", description: "Write run.html beside it" },
    { command: "tensorferry report run.json --out /tmp/run.html", description: "Write it elsewhere" },
    { command: "tensorferry report before.json after.json", description: "What changed between two runs" }
  ])
)
