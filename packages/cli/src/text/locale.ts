// SPDX-License-Identifier: Apache-2.0
/** Letters that the terminal has. Imports nothing: help is answered with this module and before any other is loaded. */

/** Whether a terminal of this environment shows letters of ASCII alone: a locale is stated, and is not of UTF-8. */
export const isAsciiOnly = ({ LC_ALL, LC_CTYPE, LANG }: NodeJS.ProcessEnv = process.env): boolean => {
  const locale = [LC_ALL, LC_CTYPE, LANG].find((stated) => stated !== undefined && stated !== "")
  return locale !== undefined && !/utf-?8/i.test(locale)
}

/** What this command's own marks become, each one letter, so that columns keep their places. */
const asciiMarks: ReadonlyMap<string, string> = new Map([
  ["─", "-"],
  ["·", "."],
  ["→", ">"],
  ["↑", "^"],
  ["↓", "v"],
  ["…", "~"],
  ["×", "x"],
  ["–", "-"],
  ["≤", "<"],
  ["µ", "u"],
  ["█", "#"],
  ["░", "."]
])
const marks = new RegExp(`[${[...asciiMarks.keys()].join("")}]`, "g")

/** Text with marks that the terminal has. */
export const inLocale = (text: string, isAscii = isAsciiOnly()): string =>
  isAscii ? text.replace(marks, (mark) => asciiMarks.get(mark)!) : text
