// SPDX-License-Identifier: Apache-2.0
/**
 * The lines of a file that can be compared: no blank lines, comments, lone punctuation and imports. Each has its text with
 * white space folded, and its shape, in which names, strings and numbers are placeholders.
 */
import { moduleOf } from "./syntax.ts"
import type { SourceFile } from "./tree.ts"

export interface CodeLine {
  readonly line: number
  readonly text: string
  readonly shape: string
  /** Placeholders and keywords: how much the line says. */
  readonly weight: number
}

const keywords = new Set(
  `abstract alignas alignof as async auto await bool break case catch char class const consteval constexpr constinit
  continue debugger decltype default delete do double else enum explicit export extends extern false final finally float
  for friend from function get goto if implements import in infer inline instanceof int interface is keyof let long
  mutable namespace new noexcept null nullptr of operator override private protected public readonly register return
  satisfies set short signed sizeof static struct super switch template this throw true try type typedef typename typeof
  undefined union unsigned using var virtual void volatile while yield`.split(/\s+/)
)

const blanks = String.raw`(?<space>[ \t\r]+)|(?<end>\n)|(?<comment>\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$))`
const names = String.raw`(?<name>[\p{L}_$#][\p{L}\p{N}_$]*)|(?<number>\.?\d(?:[eE][+\-]|[\w.]|'(?=[\da-fA-F]))*)`
const marks = String.raw`(?<mark>=>|\?\.|\?\?=?|\.\.\.|===?|!==?|&&|\|\||::|->|[+*\/<>\-]=|[\s\S])`
const quoted = String.raw`"(?:\\[\s\S]|[^"\\\n])*"|'(?:\\[\s\S]|[^'\\\n])*'`
const raw = String.raw`(?:u8|[uUL])?R"(?<ends>[^\(\s]*)\([\s\S]*?\)\k<ends>"`
/** One token of a script and one of native code. */
const ofScripts = new RegExp(`(?<string>${quoted})|${blanks}|${names}|${marks}`, "uy")
const ofNative = new RegExp(`(?<string>${raw}|${quoted})|${blanks}|${names}|${marks}`, "uy")
/** A regular expression of a script. */
const pattern = /\/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n[])+\/[a-z]*/y
/** Words of a template literal, up to an expression or the end. */
const piece = /(?:\\[\s\S]|\$(?!\{)|[^`\\$])*/y

interface Draft {
  text: string
  shape: string
  weight: number
  says: boolean
}

type Kind = "word" | "value" | "mark"

/** Reads a file's tokens line by line. */
const draftsOf = (file: SourceFile): ReadonlyArray<Draft> => {
  const { text } = file
  const isNative = file.language === "native"
  const tokens = isNative ? ofNative : ofScripts
  const drafts: Array<Draft> = [{ text: "", shape: "", weight: 0, says: false }]
  /** Braces that are open within each template literal's expression. */
  const templates: Array<number> = []
  let before = ""
  const add = (token: string, kind: Kind): void => {
    const draft = drafts.at(-1)!
    draft.text += token
    draft.shape += kind === "value" ? "¤ " : `${token} `
    if (kind !== "mark") {
      draft.weight++
      draft.says = true
    }
    before = kind === "value" ? "¤" : token
  }
  const next = (): number => drafts.push({ text: "", shape: "", weight: 0, says: false })
  const addLong = (token: string, kind: Kind): void => {
    for (const [at, part] of token.split("\n").entries()) {
      if (at > 0) next()
      if (part.trim() !== "") add(part.trim(), kind)
    }
  }
  const matchAt = (expression: RegExp, at: number): string => {
    expression.lastIndex = at
    return expression.exec(text)?.[0] ?? ""
  }
  for (let at = 0; at < text.length; ) {
    const inTemplate = !isNative && (text[at] === "`" || (text[at] === "}" && templates.at(-1) === 0))
    if (inTemplate) {
      if (text[at] === "}") templates.pop()
      const words = text[at] + matchAt(piece, at + 1)
      at += words.length
      if (text.startsWith("${", at)) {
        addLong(`${words}\${`, "value")
        templates.push(0)
        at += 2
      } else {
        addLong(`${words}\``, "value")
        at++
      }
      continue
    }
    const mayBePattern = !isNative && text[at] === "/" && !"/*".includes(text[at + 1] ?? "/")
    if (mayBePattern && !/^([\])}¤]|this|super|null|true|false)$/.test(before)) {
      const found = matchAt(pattern, at)
      if (found !== "") {
        add(found, "value")
        at += found.length
        continue
      }
    }
    tokens.lastIndex = at
    const groups = tokens.exec(text)?.groups ?? {}
    const { space, end, comment, name, number, string, mark } = groups
    const token = space ?? end ?? comment ?? name ?? number ?? string ?? mark ?? text[at]!
    at += token.length
    if (end !== undefined) next()
    else if (space !== undefined) drafts.at(-1)!.text += " "
    else if (comment !== undefined) for (let lines = comment.split("\n").length; lines > 1; lines--) next()
    else if (name !== undefined) add(name, keywords.has(name) ? "word" : "value")
    else if (number !== undefined || string !== undefined) addLong(token, "value")
    else {
      add(token, "mark")
      const depth = templates.length - 1
      if (depth >= 0 && token === "{") templates[depth]!++
      if (depth >= 0 && token === "}") templates[depth]!--
    }
  }
  return drafts
}

export const codeLinesOf = (file: SourceFile): ReadonlyArray<CodeLine> => {
  const passedOver = new Set<number>()
  if (file.language === "ts")
    for (const [first, last] of moduleOf(file).passages)
      for (let line = first; line <= last; line++) passedOver.add(line)
  return draftsOf(file).flatMap((draft, at): ReadonlyArray<CodeLine> => {
    const text = draft.text.trim().replace(/ +/g, " ")
    const line = at + 1
    if (!draft.says || passedOver.has(line) || /^# ?include\b/.test(text)) return []
    return [{ line, text, shape: draft.shape, weight: draft.weight }]
  })
}
