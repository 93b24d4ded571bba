// SPDX-License-Identifier: Apache-2.0
/** Functions of C++ sources and their length, by matching the braces of formatted code. */
import type { Place } from "./measure.ts"
import type { SourceFile } from "./tree.ts"

/** The text with comments, strings and preprocessor lines blanked; lines stay where they are. */
const blanked = (text: string): string =>
  text.replace(
    /\/\/[^\n]*|\/\*[\s\S]*?\*\/|R"([^(\s]*)\([\s\S]*?\)\1"|"(?:\\[\s\S]|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\[\s\S]|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*/gm,
    (found) => found.replace(/[^\n]/g, " ")
  )

/** Whether what stands before a brace begins a body of statements. */
const beginsFunction = (head: string): boolean =>
  head.includes("(") && !/^\s*(namespace|class|struct|union|enum)\b/.test(head)

const opensScope = (head: string): boolean => /\b(namespace|class|struct|union|extern)\b/.test(head)

export const nativeFunctions = (file: SourceFile): ReadonlyArray<Place> => {
  const text = blanked(file.text)
  const found: Array<Place> = []
  let line = 1
  let head = ""
  let headLine = 1
  /** Braces inside the function that is being read; 0 outside of one. */
  let depth = 0
  let begun = { name: "", line: 1 }
  for (const character of text) {
    if (character === "\n") line++
    if (depth > 0) {
      if (character === "{") depth++
      if (character === "}" && --depth === 0) {
        found.push({ at: `${file.path}:${begun.line}`, name: begun.name, figure: line - begun.line + 1 })
        head = ""
      }
      continue
    }
    if (character === "{" && beginsFunction(head)) {
      const isRest = /^\s*[,{]/.test(head)
      begun = isRest ? begun : { name: /([~\w:]+)\s*\(/.exec(head)?.[1] ?? "(function)", line: headLine }
      depth = 1
    } else if (character === ";" || character === "}" || (character === "{" && opensScope(head))) head = ""
    else if (head === "" && /\s/.test(character)) continue
    else {
      if (head === "") headLine = line
      head += character
    }
  }
  return found
}
