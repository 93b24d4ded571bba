// SPDX-License-Identifier: Apache-2.0
/**
 * The fenced blocks of a page, and what their marks say. Marks stand behind the language and do not show in the rendered
 * page.
 *
 *   ```ts file=spool/index.ts   is written there, in the page's folder; TypeScript is checked by the compiler
 *   ```python file=trainer.py   is run by the tests of the Python package
 *   ```ts prelude=replay        a fragment: checked by the compiler where the prelude of that name says `// block`
 *   ```sh run                   runs in bash; `exit=1` where it must end so; with `full` only in full runs
 *   ```sh parse                 cannot run here (a device, a launcher, minutes): its commands and flags must exist
 *   ```text                     no code; with `output` it is in what the block that ran before it printed
 *
 * Anything else is a fault, so that no block goes untried by oversight.
 */

export interface Block {
  readonly language: string
  readonly marks: ReadonlyArray<string>
  readonly text: string
  /** Line of the page on which it begins. */
  readonly line: number
}

export const blocksOf = (page: string): ReadonlyArray<Block> => {
  const blocks: Array<Block> = []
  let open:
    | { readonly fence: string; readonly info: string; readonly line: number; readonly lines: Array<string> }
    | undefined
  for (const [at, line] of page.split("\n").entries()) {
    const fence = /^\s*(```+)(.*)$/.exec(line)
    if (open === undefined) {
      if (fence !== null) open = { fence: fence[1]!, info: fence[2]!.trim(), line: at + 1, lines: [] }
    } else if (fence !== null && fence[1] === open.fence && fence[2]!.trim() === "") {
      const [language = "", ...marks] = open.info.split(/\s+/)
      blocks.push({ language, marks, text: `${open.lines.join("\n")}\n`, line: open.line })
      open = undefined
    } else open.lines.push(line)
  }
  if (open !== undefined) blocks.push({ language: "", marks: ["unclosed"], text: "", line: open.line })
  return blocks
}

/** Flags that the text of a page names in inline code, with their lines. */
export const flagsOf = (page: string): ReadonlyArray<{ readonly flag: string; readonly line: number }> => {
  let isOpen = false
  return page.split("\n").flatMap((text, at) => {
    if (/^\s*```/.test(text)) isOpen = !isOpen
    if (isOpen) return []
    const spans = text.match(/`[^`]+`/g) ?? []
    return spans.flatMap((span) =>
      [...span.matchAll(/(?<![\w-])--([a-z][a-z-]*)/g)].map((found) => ({ flag: found[1]!, line: at + 1 }))
    )
  })
}

export const valueOf = ({ marks }: Block, name: string): string | undefined =>
  marks.find((mark) => mark.startsWith(`${name}=`))?.slice(name.length + 1)

export const has = ({ marks }: Block, mark: string): boolean => marks.includes(mark)

/** What each language may be marked with: one of these, and with it what is in brackets. */
const allowed: Readonly<Record<string, ReadonlyArray<RegExp>>> = {
  text: [/^(output)?$/],
  sh: [/^run( full)?( exit=\d+)?$/, /^parse$/],
  ts: [/^file=\S+$/, /^prelude=\S+$/],
  json: [/^file=\S+$/],
  yaml: [/^file=\S+$/],
  python: [/^file=\S+$/]
}

/** What is wrong with the marks of a block. */
export const markFault = (block: Block): string | undefined => {
  if (has(block, "unclosed")) return "the block does not end"
  const forms = allowed[block.language]
  if (forms === undefined) return `a block of "${block.language}"; there are ${Object.keys(allowed).join(", ")}`
  if (forms.some((form) => form.test(block.marks.join(" ")))) return undefined
  return `a block of ${block.language} marked "${block.marks.join(" ")}"; see scripts/pages/blocks.ts for what there is`
}
