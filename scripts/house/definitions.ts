// SPDX-License-Identifier: Apache-2.0
/** Definitions above 200 lines. Types and pure data are told apart: they keep no state and exceed no limit. */
import { byFigure, type Measure, type Place } from "./measure.ts"
import { nativeFunctions } from "./nativeFunctions.ts"
import { childrenOf, isNode, type Module, moduleOf, type Node } from "./syntax.ts"
import { type SourceFile, sourcesOf, type Tree } from "./tree.ts"

export const mostLines = 200

/** Pure planners that may be longer, each with its reason. */
const exceptions: ReadonlyArray<{ readonly file: string; readonly name: string; readonly reason: string }> = []

interface Definition {
  readonly kind: "code" | "data" | "type"
  readonly name: string
  readonly node: Node
}

const isFunction = (node: Node): boolean =>
  /^(Function(Declaration|Expression)|ArrowFunctionExpression|Class(Declaration|Expression))$/.test(node.type)

const holdsCode = (node: Node): boolean =>
  isFunction(node) || /^(NewExpression|AwaitExpression)$/.test(node.type) || childrenOf(node).some(holdsCode)

const nameOf = (node: Node): string | undefined => {
  const id = [node.id, node.key].find(isNode)
  if (typeof id?.name === "string") return id.name
  return typeof id?.value === "string" ? id.value : undefined
}

/** The definitions that a statement of the module makes. */
const definitionsOf = (statement: Node): ReadonlyArray<Definition> => {
  const inner = statement.declaration
  if (/^Export(Named|Default)Declaration$/.test(statement.type) && isNode(inner)) {
    const found = definitionsOf(inner)
    if (found.length > 0 || statement.type === "ExportNamedDeclaration") return found
    return [{ kind: holdsCode(inner) ? "code" : "data", name: "default", node: inner }]
  }
  const name = nameOf(statement) ?? "default"
  if (/^TS/.test(statement.type) || statement.declare === true) return [{ kind: "type", name, node: statement }]
  if (isFunction(statement) && statement.type.endsWith("Declaration")) return [{ kind: "code", name, node: statement }]
  if (statement.type !== "VariableDeclaration" || !Array.isArray(statement.declarations)) return []
  return statement.declarations.filter(isNode).map((each) => ({
    kind: isNode(each.init) && holdsCode(each.init) ? "code" : "data",
    name: nameOf(each) ?? "(pattern)",
    node: each
  }))
}

/** Named parts of a definition that are too long themselves, with the path of names that leads to them. */
const nested = (module: Module, node: Node, trail: string): ReadonlyArray<Definition> =>
  childrenOf(node).flatMap((child) => {
    if (linesOf(module, child) <= mostLines) return []
    const isNamed = /^(VariableDeclarator|Property|MethodDefinition|PropertyDefinition|FunctionDeclaration)$/
    const own = isNamed.test(child.type) && holdsCode(child) ? nameOf(child) : undefined
    if (own === undefined) return nested(module, child, trail)
    const name = `${trail} > ${own}`
    return [{ kind: "code" as const, name, node: child }, ...nested(module, child, name)]
  })

const linesOf = (module: Module, node: Node): number => module.lineAt(node.end - 1) - module.lineAt(node.start) + 1

const longOnes = (file: SourceFile): ReadonlyArray<Place & { readonly kind: Definition["kind"]; file: string }> => {
  if (file.lines <= mostLines) return []
  const module = moduleOf(file)
  return module.body
    .flatMap(definitionsOf)
    .filter((definition) => linesOf(module, definition.node) > mostLines)
    .flatMap((definition) =>
      definition.kind === "code" ? [definition, ...nested(module, definition.node, definition.name)] : [definition]
    )
    .map(({ kind, name, node }) => ({
      at: `${file.path}:${module.lineAt(node.start)}`,
      name,
      figure: linesOf(module, node),
      kind,
      file: file.path
    }))
}

export const definitions = (tree: Tree): ReadonlyArray<Measure> => {
  const sources = sourcesOf(tree)
  const long = sources.filter((file) => file.language === "ts").flatMap(longOnes)
  const place = ({ at, name, figure }: Place): Place => ({ at, name, figure })
  const reasonOf = (each: (typeof long)[number]): string | undefined =>
    exceptions.find((other) => other.file === each.file && other.name === each.name)?.reason
  const code = long.filter((each) => each.kind === "code")
  const offenders = code
    .filter((each) => reasonOf(each) === undefined)
    .map(place)
    .sort(byFigure)
  const excepted = code.flatMap((each) => {
    const reason = reasonOf(each)
    return reason === undefined ? [] : [{ ...place(each), name: `${each.name}, an exception: ${reason}` }]
  })
  const apart = long.filter((each) => each.kind !== "code")
  const native = sources
    .filter((file) => file.language === "native")
    .flatMap(nativeFunctions)
    .filter((each) => each.figure! > mostLines)
    .sort(byFigure)
  return [
    {
      key: "long-definitions",
      title: `definitions above ${mostLines} lines`,
      figure: offenders.length,
      limit: 0,
      offenders,
      others: excepted
    },
    { key: "long-exceptions", title: "  pure planners excepted from that", figure: excepted.length },
    {
      key: "long-types",
      title: "  types and data above that",
      figure: apart.length,
      others: apart.map((each) => ({ ...place(each), name: `${each.name} (${each.kind})` }))
    },
    {
      key: "long-functions",
      title: `C++ functions above ${mostLines} lines`,
      figure: native.length,
      limit: 0,
      offenders: native
    }
  ]
}
