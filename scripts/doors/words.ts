// SPDX-License-Identifier: Apache-2.0
/**
 * Which names of a public module have no comment of their own, so that an editor says nothing of them. The header of a file
 * is not shown there; a type and a value of one name are one symbol, and share their words. The same for members of services.
 */
import { childrenOf, isNode, moduleOf, type Node } from "../house/syntax.ts"
import type { SourceFile } from "../house/tree.ts"

const nameOf = (node: unknown): string | undefined =>
  isNode(node) && typeof node.name === "string" ? node.name : undefined

/** What a declaration gives names to. */
const namesOf = (declaration: Node): ReadonlyArray<string> => {
  const own = nameOf(declaration.id)
  if (own !== undefined) return [own]
  if (declaration.type !== "VariableDeclaration") return []
  return childrenOf(declaration).flatMap((declarator) => {
    const { id } = declarator
    const name = nameOf(id)
    if (name !== undefined) return [name]
    return isNode(id) ? childrenOf(id).flatMap((property) => nameOf(property.value) ?? []) : []
  })
}

const hasComment = (text: string, start: number): boolean => /\*\/\s*$/.test(text.slice(0, start))

/** The header is the first thing of a file, and no words of the declaration behind it. */
const isHeaderAlone = (text: string, start: number): boolean => {
  const before = text.slice(0, start).replace(/^(#!.*\n|\/\/.*\n)*/, "")
  return /^\/\*\*(?:(?!\*\/)[\s\S])*\*\/\s*$/.test(before)
}

/** Members of the shapes of services, which a user meets one by one behind a dot. */
const membersWithoutWords = (file: SourceFile, declaration: Node): ReadonlyArray<readonly [string, number]> => {
  const { body } = declaration
  if (!/\/src\/service\//.test(file.path) || declaration.type !== "TSInterfaceDeclaration" || !isNode(body)) return []
  return childrenOf(body).flatMap((member) => {
    const name = nameOf(member.key)
    return name === undefined || hasComment(file.text, member.start)
      ? []
      : [[`${nameOf(declaration.id)}.${name}`, member.start] as const]
  })
}

export const withoutWords = (file: SourceFile): ReadonlyArray<{ readonly at: string; readonly what: string }> => {
  const { body, lineAt } = moduleOf(file)
  const bare = new Map<string, string>()
  const documented = new Set<string>()
  for (const node of body) {
    const { declaration } = node
    if (node.type !== "ExportNamedDeclaration" || !isNode(declaration)) continue
    const isSaid = hasComment(file.text, node.start) && !isHeaderAlone(file.text, node.start)
    for (const [member, start] of membersWithoutWords(file, declaration))
      bare.set(member, `${file.path}:${lineAt(start)}`)
    for (const name of namesOf(declaration)) {
      if (isSaid) documented.add(name)
      else bare.set(name, `${file.path}:${lineAt(node.start)}`)
    }
  }
  return [...bare].flatMap(([what, at]) => (documented.has(what) ? [] : [{ at, what }]))
}
