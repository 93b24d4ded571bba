// SPDX-License-Identifier: Apache-2.0
/** TypeScript modules as syntax trees: nodes, the lines they stand on, and what a module imports. */
import { parseAst } from "rolldown/parseAst"
import type { SourceFile } from "./tree.ts"

export interface Node {
  readonly type: string
  readonly start: number
  readonly end: number
  readonly [key: string]: unknown
}

export interface Import {
  readonly specifier: string
  readonly line: number
}

export interface Module {
  readonly body: ReadonlyArray<Node>
  readonly imports: ReadonlyArray<Import>
  /** First and last lines of import statements and of exports from elsewhere. */
  readonly passages: ReadonlyArray<readonly [number, number]>
  readonly lineAt: (offset: number) => number
}

export const isNode = (value: unknown): value is Node =>
  typeof value === "object" && value !== null && "type" in value && typeof value.type === "string"

export const childrenOf = (node: Node): ReadonlyArray<Node> => {
  const children: Array<Node> = []
  for (const value of Object.values(node)) {
    if (Array.isArray(value)) for (const each of value) isNode(each) && children.push(each)
    else if (isNode(value)) children.push(value)
  }
  return children
}

const linesAt = (text: string): ((offset: number) => number) => {
  const starts = [0]
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) starts.push(at + 1)
  return (offset) => {
    let low = 0
    let high = starts.length
    while (high - low > 1) {
      const middle = (low + high) >> 1
      if (starts[middle]! <= offset) low = middle
      else high = middle
    }
    return low + 1
  }
}

const specifierOf = (node: Node): string | undefined => {
  if (!/^(Import(Declaration|Expression)|Export(Named|All)Declaration|TSImportType)$/.test(node.type)) return undefined
  const source = [node.source, node.argument].find(isNode)
  const literal = source?.type === "TSLiteralType" && isNode(source.literal) ? source.literal : source
  return typeof literal?.value === "string" ? literal.value : undefined
}

const parse = (file: SourceFile): Module => {
  const lineAt = linesAt(file.text)
  const program: unknown = parseAst(file.text, { lang: file.path.endsWith(".d.ts") ? "dts" : "ts" }, file.path)
  const body = isNode(program) ? childrenOf(program) : []
  const imports: Array<Import> = []
  const visit = (node: Node): void => {
    const specifier = specifierOf(node)
    if (specifier !== undefined) imports.push({ specifier, line: lineAt(node.start) })
    for (const child of childrenOf(node)) visit(child)
  }
  body.forEach(visit)
  const passages = body
    .filter((node) => node.type !== "ExpressionStatement" && specifierOf(node) !== undefined)
    .map((node) => [lineAt(node.start), lineAt(node.end - 1)] as const)
  return { body, imports, passages, lineAt }
}

const parsed = new WeakMap<SourceFile, Module>()

export const moduleOf = (file: SourceFile): Module => {
  const known = parsed.get(file)
  if (known !== undefined) return known
  const module = parse(file)
  parsed.set(file, module)
  return module
}
