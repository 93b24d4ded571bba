// SPDX-License-Identifier: Apache-2.0
/** `tensorferry report`: a record of a run as one page that any browser shows. */
import { writeFile } from "node:fs/promises"
import * as path from "node:path"
import { systemCall } from "@tensorferry/model/checkpoint/FileAccess"
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { withFailures } from "../output/CliFailure.ts"
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
    out: pathFlag("out", "file").pipe(
      Flag.withDescription("File for the page; by default the record's name with .html"),
      Flag.optional
    ),
    json
  },
  (flags) =>
    withFailures(
      flags.json,
      Effect.gen(function* () {
        const file = path.resolve(flags.record)
        const { dir, name } = path.parse(file)
        const out = path.resolve(Option.getOrElse(flags.out, () => path.join(dir, `${name}.html`)))
        if (out === file) {
          return yield* usage("The page would overwrite its record.", "Name another file by --out.")
        }
        const record = yield* readRunRecord(file)
        yield* checkTarget(out)
        yield* systemCall("WriteFailed", out, "write the page", () => writeFile(out, reportPage(record)))
        yield* printEither(
          flags.json,
          () => ({ ok: true, file: out }),
          () => out
        )
      })
    )
).pipe(
  Command.withDescription("Show a record of a run as one HTML page: traffic, timeline, memory, parameters"),
  Command.withExamples([
    { command: "tensorferry report run.json", description: "Write run.html beside it" },
    { command: "tensorferry report run.json --out /tmp/run.html", description: "Write it elsewhere" }
  ])
)
