// SPDX-License-Identifier: Apache-2.0
/**
 * The help of one command as plain data, and how it stands on a terminal: names in a column, what they mean beside it or
 * below, nothing wider than the terminal. Imports only letters: a packed command answers help before it loads anything else.
 *
 * Contract: a page is JSON. Where there is no terminal, each entry is one line, so that a search for a flag finds its words.
 */
import { inLocale } from "./locale.ts"

/** One flag, argument or subcommand. */
export interface HelpRow {
  /** As they are typed: `--help`, `-h`. */
  readonly names: ReadonlyArray<string>
  /** What a value is; empty where there is none. */
  readonly type: string
  readonly text: string
}

export interface HelpPage {
  readonly description: string
  readonly usage: string
  readonly sections: ReadonlyArray<{
    readonly title: string
    /** What names are: subcommands have the colour of what is typed first. */
    readonly kind: "command" | "value"
    readonly rows: ReadonlyArray<HelpRow>
  }>
  readonly examples: ReadonlyArray<{ readonly command: string; readonly description: string }>
}

export interface HelpStyle {
  /** Of the terminal; undefined where there is none. */
  readonly columns: number | undefined
  readonly hasColor: boolean
}

/** Lines longer than this are hard to read, however wide the terminal is. */
const mostColumns = 120
/** Names take at most this much of a line; a longer one has its words below it. */
const mostNames = 26
/** On less than this, words stand below the names. */
const narrow = 72
const indent = "  "

/** Whether text may have colours: as Effect's `TerminalCapabilities`, which the packed command does not load. */
export const canColor = ({ NO_COLOR, FORCE_COLOR, TERM }: NodeJS.ProcessEnv, isTerminal: boolean): boolean => {
  if (TERM === "dumb" || (NO_COLOR !== undefined && NO_COLOR !== "")) return false
  const forced = FORCE_COLOR !== undefined && !["", "0", "false"].includes(FORCE_COLOR.toLowerCase())
  return forced || isTerminal
}

/** Of standard output. */
export const helpStyle = (): HelpStyle => {
  const isTerminal = process.stdout.isTTY === true
  return { columns: isTerminal ? process.stdout.columns : undefined, hasColor: canColor(process.env, isTerminal) }
}

/** Words in lines of at most so many letters; a longer word is broken. */
const linesOf = (text: string, width: number): ReadonlyArray<string> => {
  const lines: Array<string> = []
  let line = ""
  for (const word of text.split(" ")) {
    const longer = line === "" ? word : `${line} ${word}`
    if (longer.length <= width) {
      line = longer
      continue
    }
    if (line !== "") lines.push(line)
    line = word
    for (; line.length > width; line = line.slice(width)) lines.push(line.slice(0, width))
  }
  return [...lines, line]
}

/** Stands for the space between a flag and its value, which stay on one line. */
const tie = "\u00a0"

/** A command line that can still be copied: a line that goes on ends with a backslash. */
const commandLines = (command: string, width: number): ReadonlyArray<string> => {
  const tied = command.replace(/(^| )(--?[\w-]+) (?=[^-\s])/g, `$1$2${tie}`)
  const lines = linesOf(tied, width - 4).map((line) => line.replaceAll(tie, " "))
  return lines.map((line, at) => `${at === 0 ? "" : indent}${line}${at < lines.length - 1 ? " \\" : ""}`)
}

/** The page as text; ends without a line break. */
export const renderHelp = (page: HelpPage, { columns, hasColor }: HelpStyle): string => {
  const width = columns === undefined ? Number.POSITIVE_INFINITY : Math.max(20, Math.min(columns, mostColumns))
  const inColor = (code: number) => (text: string) =>
    hasColor && text !== "" ? `\u001b[${code}m${text}\u001b[0m` : text
  const [bold, dim, green, cyan] = [inColor(1), inColor(2), inColor(32), inColor(36)]
  const indented = (lines: ReadonlyArray<string>, color: (text: string) => string = (text) => text) =>
    lines.map((line) => `${indent}${color(line)}`)

  const section = ({ kind, rows }: HelpPage["sections"][number]): ReadonlyArray<string> => {
    const plainNames = rows.map(({ names, type }) => `${names.join(", ")}${type === "" ? "" : ` ${type}`}`)
    const fitting = plainNames.filter((name) => name.length <= mostNames || width === Number.POSITIVE_INFINITY)
    const isBelow = width < narrow
    const start = isBelow ? 6 : indent.length + Math.max(0, ...fitting.map((name) => name.length)) + 3
    return rows.flatMap(({ names, type, text }, at) => {
      const own = names.map(kind === "command" ? cyan : green).join(", ")
      const plainName = plainNames[at]!
      const lines = text === "" ? [] : linesOf(text, width - start)
      const head = `${indent}${own}${type === "" ? "" : ` ${dim(type)}`}`
      const isBeside = !isBelow && indent.length + plainName.length + 2 < start
      if (!isBeside) return [head, ...lines.map((line) => " ".repeat(start) + line)]
      const [first = "", ...rest] = lines
      const padding = " ".repeat(start - indent.length - plainName.length)
      return [`${head}${padding}${first}`.trimEnd(), ...rest.map((line) => " ".repeat(start) + line)]
    })
  }

  const parts: ReadonlyArray<ReadonlyArray<string>> = [
    ...(page.description === "" ? [] : [[bold("DESCRIPTION"), ...indented(linesOf(page.description, width - 2))]]),
    [bold("USAGE"), ...indented(linesOf(page.usage, width - 2), cyan)],
    ...page.sections.map((one) => [bold(one.title), ...section(one)]),
    ...(page.examples.length === 0
      ? []
      : [
          [
            bold("EXAMPLES"),
            ...page.examples.flatMap(({ command, description }, at) => [
              ...(at > 0 && description !== "" ? [""] : []),
              ...(description === "" ? [] : indented(linesOf(`# ${description}`, width - 2), dim)),
              ...indented(commandLines(command, width - 2), cyan)
            ])
          ]
        ])
  ]
  return inLocale(parts.map((lines) => lines.join("\n")).join("\n\n"))
}
