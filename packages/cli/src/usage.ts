// SPDX-License-Identifier: Apache-2.0
/**
 * How wrong usage is told: for people in a few lines on standard error, for machines as the document that every failure is.
 * Help that was asked for is printed as a page.
 */
import type * as CliError from "effect/cli/CliError"
import * as CliOutput from "effect/cli/CliOutput"
import type { HelpDoc } from "effect/cli/HelpDoc"
import * as Option from "effect/Option"
import { type HelpPage, helpStyle, renderHelp } from "./text/helpPage.ts"
import { inOneLine, print, printError, printHelp } from "./text/terminal.ts"

/** Of a command that nobody knows no flag is known either. */
const withoutConsequences = (
  errors: ReadonlyArray<CliError.NonShowHelpErrors>
): ReadonlyArray<CliError.NonShowHelpErrors> =>
  errors.some(({ _tag }) => _tag === "UnknownSubcommand")
    ? errors.filter(({ _tag }) => _tag !== "UnrecognizedOption")
    : errors

/** In the form of every other failure; the module that prints those loads what runs jobs. */
const asFailure = (error: CliError.NonShowHelpErrors) => ({
  tag: error._tag,
  reason: "InvalidUsage",
  message: inOneLine(error.message),
  fields: null,
  ranks: []
})

/** What Effect knows of a command, as a page. */
export const helpPageOf = (doc: HelpDoc): HelpPage => {
  const flags = (title: string, some: HelpDoc["flags"] = []): HelpPage["sections"] =>
    some.length === 0
      ? []
      : [
          {
            title,
            kind: "value",
            rows: some.map(({ aliases, description, name, type }) => ({
              names: [`--${name}`, ...aliases],
              // The words list what may be chosen.
              type: type === "boolean" ? "" : type.includes("|") ? "choice" : type,
              text: Option.getOrElse(description, () => "")
            }))
          }
        ]
  const { args = [], subcommands = [], examples = [] } = doc
  return {
    description: doc.description,
    usage: doc.usage,
    sections: [
      ...(args.length === 0
        ? []
        : [
            {
              title: "ARGUMENTS",
              kind: "value" as const,
              rows: args.map(({ description, name, required, type, variadic }) => ({
                names: [`${name}${variadic ? "..." : ""}`],
                type,
                text: `${Option.getOrElse(description, () => "")}${required ? "" : " (optional)"}`.trim()
              }))
            }
          ]),
      ...subcommands.map(({ commands, group }) => ({
        title: group ?? "SUBCOMMANDS",
        kind: "command" as const,
        rows: commands.map(({ alias, description, name, shortDescription }) => ({
          names: alias === undefined ? [name] : [name, alias],
          type: "",
          text: shortDescription ?? description
        }))
      })),
      ...flags("FLAGS", doc.flags),
      ...flags("INHERITED FLAGS", doc.inheritedFlags),
      ...flags("GLOBAL FLAGS", doc.globalFlags)
    ],
    examples: examples.map(({ command, description = "" }) => ({ command, description }))
  }
}

export const presenterFor = (given: ReadonlyArray<string>) => {
  const isForMachines = given.some((arg) => /^--json(=true)?$/.test(arg))
  return CliOutput.layerPresenter({
    present: (event) => {
      if (event._tag === "Help") return printHelp(renderHelp(helpPageOf(event.helpDoc), helpStyle()))
      if (event._tag !== "InvalidInvocation") return CliOutput.defaultPresenter.present(event)
      const { commandPath, helpDoc } = event
      const errors = withoutConsequences(event.errors)
      if (isForMachines) {
        return print(JSON.stringify({ ok: false, errors: errors.map(asFailure) }, null, 2))
      }
      const lines = [
        ...errors.map(({ message }) => `error: ${inOneLine(message)}`),
        `usage: ${helpDoc.usage}`,
        `See ${commandPath.join(" ")} --help.`
      ]
      return printError(lines.join("\n"))
    }
  })
}

interface Named {
  readonly name: string
  readonly subcommands: ReadonlyArray<{ readonly commands: ReadonlyArray<Named> }>
}

/** Commands that do nothing by themselves or take no arguments: a word behind them is one of their subcommands. */
const groups = new Set(["tensorferry", "backends", "replay", "fleet"])

const isHelp = (arg: string): boolean => arg === "--help" || arg === "-h"

/**
 * The arguments without a wish for help where a word among them is no command: that is then an error and not a help about
 * something else.
 */
export const withoutVainHelp = (root: Named, given: ReadonlyArray<string>): ReadonlyArray<string> => {
  let command = root
  for (const word of given) {
    if (word.startsWith("-") || !groups.has(command.name)) return given
    const next = command.subcommands.flatMap(({ commands }) => commands).find(({ name }) => name === word)
    if (next === undefined) return given.filter((arg) => !isHelp(arg))
    command = next
  }
  return given
}
