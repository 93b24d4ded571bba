// SPDX-License-Identifier: Apache-2.0
/**
 * The fenced blocks of a page, and what their marks say. Marks stand behind the language and do not show in the rendered
 * page.
 *
 *   ```ts file=spool/index.ts   is written there, in the page's folder; TypeScript is checked by the compiler
 *   ```python file=trainer.py   is run by the tests of the Python package
 *   ```ts in=replay.ts          a fragment: runs in that file of the page, where it says `// Here goes a fragment below.`;
 *                               with `types` only the compiler reads it, since it needs a device or other machines
 *   ```sh run                   runs in bash; `exit=1` where it must end so; with `full` only in full runs; with `simulated`
 *                               on simulated GPUs, where those are built
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

/** Where a file of a page takes fragments; the line's indent is theirs. */
const place = /^ *\/\/ Here goes a fragment below\.$/m

/** The block with the file that a fragment goes into: an earlier one of the same page, which readers have seen. */
export const baseOf = (blocks: ReadonlyArray<Block>, fragment: Block): Block | undefined =>
  blocks
    .slice(0, blocks.indexOf(fragment))
    .find((block) => valueOf(block, "file") === valueOf(fragment, "in") && place.test(block.text))

/** The file with the fragment where it says; imports stand on top, as a reader puts them. */
export const joined = (base: Block, fragment: Block): string => {
  const imports = fragment.text.match(/^import .*\n/gm) ?? []
  const rest = fragment.text.replaceAll(/^import .*\n/gm, "")
  return imports.join("") + base.text.replace(place, () => rest.trimEnd())
}

/** The file that a page writes by a block: its own, or for a fragment one beside it, named after the fragment's line. */
export const fileOf = (block: Block): string | undefined => {
  const into = valueOf(block, "in")
  return into === undefined ? valueOf(block, "file") : into.replace(/[^/]*$/, (name) => `line-${block.line}-${name}`)
}

/** What a reader lacks, since marks do not show: the name of the file that a block is or goes into. */
export const nameFault = (page: string, block: Block): string | undefined => {
  const [file, into] = [valueOf(block, "file"), valueOf(block, "in")]
  const name = (file ?? into)?.replace(/^.*\//, "")
  if (name === undefined || !/\.(ts|py)$/.test(name)) return undefined
  const lines = page.split("\n")
  const before = lines.slice(0, block.line - 1).findLast((line) => line.trim() !== "") ?? ""
  if (into !== undefined && !before.includes(`\`${name}\``))
    return `the line before it does not say that it goes into \`${name}\``
  const elsewhere = [...lines.slice(0, block.line), ...lines.slice(block.line + block.text.split("\n").length - 1)]
  return elsewhere.some((line) => !line.startsWith("```") && line.includes(name))
    ? undefined
    : `nothing on the page says that it is ${name}`
}

/** Packages of which each name is imported from the module that defines it. */
const byModule = /from "(@tensorferry\/(?:core|model|fleet|replay|native)|effect)"/

/** What is wrong with the imports of a block. */
export const importFault = (block: Block): string | undefined => {
  const found = block.language === "ts" ? byModule.exec(block.text) : null
  return found === null ? undefined : `imports from "${found[1]}"; pages import each name from its module`
}

/** What each language may be marked with: one of these, and with it what is in brackets. */
const allowed: Readonly<Record<string, ReadonlyArray<RegExp>>> = {
  text: [/^(output)?$/],
  sh: [/^run( full)?( simulated)?( exit=\d+)?$/, /^parse$/],
  ts: [/^file=\S+$/, /^in=\S+( types)?$/],
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
