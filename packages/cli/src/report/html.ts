// SPDX-License-Identifier: Apache-2.0
/**
 * Text that becomes HTML. Everything that comes from a record goes through `escapeHtml` or `jsonForScript`: names of
 * tensors, ranks' hosts and files are foreign text.
 */

const entities: Readonly<Record<string, string>> = {
  "&": "&amp;",
  "<": "&lt;",
  ">": "&gt;",
  '"': "&quot;",
  "'": "&#39;"
}

export const escapeHtml = (text: string): string => text.replace(/[&<>"']/g, (character) => entities[character]!)

/** JSON that can stand between script tags, whatever it holds. */
export const jsonForScript = (value: unknown): string =>
  JSON.stringify(value).replace(
    /[<>&\u2028\u2029]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`
  )

/** `0–3, 7` of 0, 1, 2, 3, 7. */
export const formatRanks = (ranks: ReadonlyArray<number>): string => {
  const runs: Array<[first: number, last: number]> = []
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    const run = runs.at(-1)
    if (run !== undefined && rank <= run[1] + 1) run[1] = rank
    else runs.push([rank, rank])
  }
  return runs.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ")
}

/** A part of a whole as a number for a style, of few digits. */
export const fraction = (part: number, whole: number): string =>
  (whole === 0 ? 0 : part / whole).toFixed(6).replace(/\.?0+$/, "")
