// SPDX-License-Identifier: Apache-2.0
/**
 * Which rule of a mapping makes which tensors of the other side, and of which tensors of the checkpoint. Whatever the rank:
 * where they lie is in `assemble`.
 */

import * as Result from "effect/Result"
import type { ModelTensor } from "../layout/ModelLayout.ts"
import type { MakeRule, Mapping, Recipe } from "./Mapping.ts"
import { type MappingError, mappingError } from "./MappingError.ts"
import { type Bindings, fillName, matchName, type NamePattern, namePattern, skeletonOf } from "./NamePattern.ts"

/** A tensor that a rule makes: the rule with what its variables stand for. */
export interface MadeTensor {
  readonly rule: MakeRule
  /** With `{layer.local}` and its like still in it. */
  readonly name: string
  readonly bindings: Bindings
  /** Sources by the pattern that names them: one, or by the number of a variable that the rule stacks. */
  readonly sources: ReadonlyMap<string, ReadonlyMap<string, ModelTensor>>
}

/** What a mapping says of a model. */
export interface MatchedMapping {
  readonly made: ReadonlyArray<MadeTensor>
  /** Names of tensors that nothing is made of, as the mapping says. */
  readonly ignored: ReadonlyArray<string>
}

/** Names of sources in a recipe, with the variable that runs over each where there is one. */
const leavesOf = (
  recipe: Recipe,
  over: ReadonlyArray<string> = []
): ReadonlyArray<readonly [string, ReadonlyArray<string>]> => {
  if (typeof recipe === "string") return [[recipe, over]]
  if ("concat" in recipe) return recipe.concat.flatMap((one) => leavesOf(one, over))
  if ("interleave" in recipe) return recipe.interleave.flatMap((one) => leavesOf(one, over))
  if ("either" in recipe) return recipe.either.flatMap((one) => leavesOf(one, over))
  if ("stack" in recipe) return leavesOf(recipe.stack, [...over, recipe.over])
  return leavesOf(innerOf(recipe), over)
}

/** What a recipe of one part is made of. */
export const innerOf = (
  recipe: Exclude<
    Recipe,
    string | { concat: unknown } | { interleave: unknown } | { either: unknown } | { stack: unknown }
  >
): Recipe => {
  if ("unstack" in recipe) return recipe.unstack
  if ("part" in recipe) return recipe.part
  if ("transpose" in recipe) return recipe.transpose
  if ("split" in recipe) return recipe.split
  if ("merge" in recipe) return recipe.merge
  if ("squeeze" in recipe) return recipe.squeeze
  if ("expand" in recipe) return recipe.expand
  if ("pad" in recipe) return recipe.pad
  if ("whole" in recipe) return recipe.whole
  if ("cut" in recipe) return recipe.cut
  if ("onFirst" in recipe) return recipe.onFirst
  if ("add" in recipe) return recipe.to
  return recipe.negExp
}

/** Variables whose numbers come from the length of a stack and not from a name. */
export const unstacked = (recipe: Recipe): ReadonlyArray<readonly [string, string]> => {
  if (typeof recipe === "string") return []
  if ("concat" in recipe) return recipe.concat.flatMap(unstacked)
  if ("interleave" in recipe) return recipe.interleave.flatMap(unstacked)
  if ("either" in recipe) return recipe.either.flatMap(unstacked)
  if ("stack" in recipe) return unstacked(recipe.stack)
  if ("unstack" in recipe) return leavesOf(recipe.unstack).map(([leaf]) => [recipe.at, leaf] as const)
  return unstacked(innerOf(recipe))
}

interface Leaf {
  readonly rule: number
  readonly pattern: NamePattern
}

interface Draft {
  readonly rule: MakeRule
  readonly bindings: Bindings
  readonly sources: Map<string, Map<string, ModelTensor>>
}

/** Whether a rule names a tensor to the end, and not by a pattern for any. */
export const namedBy = ({ rules }: Mapping): ((name: string) => boolean) => {
  const texts = rules.flatMap((rule) =>
    "name" in rule ? leavesOf(rule.from).map(([leaf]) => leaf) : "ignore" in rule ? [rule.ignore] : []
  )
  const patterns = [...new Set(texts)].filter((text) => !text.endsWith("}")).map(namePattern)
  return (name) => patterns.some((pattern) => matchName(pattern, name) !== undefined)
}

/** Rules that are for none of these tensors, by what they make, alias or ignore. */
export const idleRules = ({ rules }: Mapping, tensors: ReadonlyArray<string>): ReadonlyArray<string> => {
  const skeletons = new Map(tensors.map((name) => [skeletonOf(name), name]))
  const fits = (text: string): boolean => {
    const pattern = namePattern(text)
    const names = /\d/.test(text) ? tensors : skeletons.values()
    for (const name of names) if (matchName(pattern, name) !== undefined) return true
    return false
  }
  return rules.flatMap((rule) => {
    if ("name" in rule) return leavesOf(rule.from).some(([leaf]) => fits(leaf)) ? [] : [rule.name]
    return "ignore" in rule && !fits(rule.ignore) ? [rule.ignore] : []
  })
}

/** The first tensor that the other side cannot have. */
const refusedTensor = ({ rules }: Mapping, tensors: ReadonlyArray<ModelTensor>): Result.Result<void, MappingError> => {
  for (const rule of rules) {
    if (!("refuse" in rule)) continue
    const pattern = namePattern(rule.refuse)
    for (const { name } of tensors) {
      const bindings = matchName(pattern, name)
      if (bindings === undefined) continue
      const subject = rule.as === undefined ? name : fillName(namePattern(rule.as), bindings)
      return mappingError(rule.kind, subject, undefined, rule.why, "Choose a system that has it, or state the rules.")
    }
  }
  return Result.succeed(undefined)
}

/** A tensor that the other side has, and that nothing is there for. */
const neededFault = (
  rules: ReadonlyArray<MakeRule>,
  made: ReadonlyMap<string, MadeTensor>
): Result.Result<void, MappingError> => {
  for (const rule of rules) {
    if (rule.needed !== true) continue
    const [[variable, numbers] = ["", [0]]] = Object.entries(rule.only ?? {})
    for (const number of numbers) {
      const bindings = new Map([[variable, String(number)]])
      if (made.has(fillName(namePattern(rule.name), bindings))) continue
      const [[leaf]] = leavesOf(rule.from) as [readonly [string, unknown]]
      return mappingError(
        "missing_source",
        fillName(namePattern(leaf), bindings),
        rule.name,
        "The other side has it, and the checkpoint has nothing for it.",
        "Complete the checkpoint, or correct its config.json."
      )
    }
  }
  return Result.succeed(undefined)
}

const remedyOfRules = "Correct the mapping."

/** The key of a source among those that one pattern names: the number of the stacked variable, or nothing. */
const keyOf = (bindings: Bindings, over: ReadonlyArray<string>): string =>
  over.map((name) => bindings.get(name)).join("/")

/** Whether a recipe finds all that it needs; else the first name that is missing. */
const missingOf = (recipe: Recipe, draft: Draft, missing: (pattern: string) => string): string | undefined => {
  if (typeof recipe === "string") return draft.sources.has(recipe) ? undefined : missing(recipe)
  if ("either" in recipe) {
    const lacks = recipe.either.map((one) => missingOf(one, draft, missing))
    return lacks.includes(undefined) ? undefined : lacks[0]
  }
  const parts =
    "concat" in recipe
      ? recipe.concat
      : "interleave" in recipe
        ? recipe.interleave
        : ["stack" in recipe ? recipe.stack : innerOf(recipe)]
  for (const part of parts) {
    const lack = missingOf(part, draft, missing)
    if (lack !== undefined) return lack
  }
  return undefined
}

/** Finds what each rule makes. Fails with what is missing, left over or named twice. */
export const matchRules = (
  mapping: Mapping,
  tensors: ReadonlyArray<ModelTensor>
): Result.Result<MatchedMapping, MappingError> => {
  const refused = refusedTensor(mapping, tensors)
  if (Result.isFailure(refused)) return Result.fail(refused.failure)
  const rules = mapping.rules.filter((rule): rule is MakeRule => "name" in rule)
  const ignoring = mapping.rules.flatMap((rule) => ("ignore" in rule ? [namePattern(rule.ignore)] : []))
  const leaves: Array<Leaf> = []
  const overs: Array<ReadonlyMap<string, ReadonlyArray<string>>> = []
  const splits: Array<ReadonlyArray<readonly [string, string]>> = []
  for (const [at, rule] of rules.entries()) {
    const found = leavesOf(rule.from)
    overs.push(new Map(found))
    splits.push(unstacked(rule.from))
    const target = namePattern(rule.name)
    if (rule.name === "")
      return mappingError(
        "invalid_rule",
        leavesOf(rule.from)[0]![0],
        rule.name,
        "It makes a tensor without a name.",
        remedyOfRules
      )
    const bound = new Set([
      ...target.variables,
      ...found.flatMap(([text, over]) => [...namePattern(text).variables, ...over])
    ])
    const stranger = Object.keys(rule.only ?? {}).find((name) => !bound.has(name))
    if (stranger !== undefined)
      return mappingError(
        "invalid_rule",
        rule.name,
        rule.name,
        `"only" restricts {${stranger}}, and no source has it.`,
        remedyOfRules
      )
    const free = new Set([...target.variables].filter((name) => !splits[at]!.some(([own]) => own === name)))
    for (const [text, over] of found) {
      const pattern = namePattern(text)
      leaves.push({ rule: at, pattern })
      const unbound = [...free].find((name) => !pattern.variables.has(name))
      const unused = [...pattern.variables].find(
        (name) => !target.variables.has(name) && !over.includes(name) && rule.only?.[name]?.length !== 1
      )
      const fault = unbound ?? unused
      if (fault === undefined) continue
      const detail =
        unbound === undefined
          ? `{${fault}} of source ${text} is neither in the name that the rule makes nor stacked.`
          : `Source ${text} does not bind {${fault}}.`
      return mappingError("invalid_rule", rule.name, rule.name, detail, remedyOfRules)
    }
  }
  const bySkeleton = new Map<string, ReadonlyArray<Leaf>>()
  const drafts = new Map<string, Draft>()
  const ignored = new Set(
    tensors.flatMap(({ name }) => (ignoring.some((pattern) => matchName(pattern, name) !== undefined) ? [name] : []))
  )
  for (const tensor of tensors) {
    if (ignored.has(tensor.name)) continue
    const skeleton = skeletonOf(tensor.name)
    // Names that differ in numbers only mostly fit the same patterns; patterns with numbers of their own are tried on each.
    const likely =
      bySkeleton.get(skeleton) ??
      leaves.filter(({ pattern }) => /\d/.test(pattern.text) || matchName(pattern, skeleton) !== undefined)
    bySkeleton.set(skeleton, likely)
    for (const { rule: at, pattern } of likely) {
      const bindings = matchName(pattern, tensor.name)
      if (bindings === undefined) continue
      const rule = rules[at]!
      if (!isAllowed(rule, bindings)) continue
      const split = splits[at]!.filter(([, leaf]) => leaf === pattern.text)
      const numbers = split.length === 0 ? [undefined] : Array.from({ length: tensor.shape[0] ?? 0 }, (_, one) => one)
      for (const number of numbers) {
        const all = new Map(bindings)
        if (number !== undefined) for (const [name] of split) all.set(name, String(number))
        const key = `${at} ${[...namePattern(rule.name).variables].map((name) => all.get(name)).join("/")}`
        const draft: Draft = drafts.get(key) ?? { rule, bindings: all, sources: new Map() }
        drafts.set(key, draft)
        const known = draft.sources.get(pattern.text) ?? new Map<string, ModelTensor>()
        known.set(keyOf(bindings, overs[at]!.get(pattern.text)!), tensor)
        draft.sources.set(pattern.text, known)
      }
    }
  }
  return finish(mapping, [...drafts.values()], tensors, ignored)
}

const allowed = new WeakMap<ReadonlyArray<number>, ReadonlySet<number>>()

/** Whether a rule is for these numbers. */
const isAllowed = ({ only }: MakeRule, bindings: Bindings): boolean =>
  only === undefined ||
  Object.entries(only).every(([name, numbers]) => {
    const set = allowed.get(numbers) ?? new Set(numbers)
    allowed.set(numbers, set)
    return set.has(Number(bindings.get(name)))
  })

/** The sources that no earlier rule took. */
const freeSources = (
  sources: Draft["sources"],
  isFree: (tensor: ModelTensor) => boolean
): Map<string, Map<string, ModelTensor>> => {
  const free = new Map<string, Map<string, ModelTensor>>()
  for (const [pattern, of] of sources) {
    const own = new Map([...of].filter(([, tensor]) => isFree(tensor)))
    if (own.size > 0) free.set(pattern, own)
  }
  return free
}

const finish = (
  mapping: Mapping,
  drafts: ReadonlyArray<Draft>,
  tensors: ReadonlyArray<ModelTensor>,
  ignored: ReadonlySet<string>
): Result.Result<MatchedMapping, MappingError> => {
  const order = new Map(mapping.rules.map((rule, at) => [rule, at]))
  const made = new Map<string, MadeTensor>()
  const taken = new Set<string>()
  const isFree = (tensor: ModelTensor): boolean => !taken.has(tensor.name)
  const later = new Set<string>()
  let last: MakeRule | undefined
  for (const draft of [...drafts].sort((a, b) => order.get(a.rule)! - order.get(b.rule)!)) {
    if (draft.rule !== last) for (const name of later) taken.add(name)
    last = draft.rule
    const { rule, bindings } = draft
    const sources = freeSources(draft.sources, isFree)
    if (sources.size === 0) continue
    const name = fillName(namePattern(rule.name), bindings)
    const hasLocal = /\.local\}/.test(rule.name)
    const key = hasLocal ? `${name} ${[...bindings.values()].join("/")}` : name
    const other = made.get(key)
    if (other !== undefined)
      return mappingError(
        "written_twice",
        name,
        rule.name,
        other.rule === rule ? "It makes it of several tensors." : `Rule ${other.rule.name} makes it too.`,
        "Let one rule make each tensor."
      )
    const lack = missingOf(rule.from, { ...draft, sources }, (pattern) => fillName(namePattern(pattern), bindings))
    if (lack !== undefined) {
      return mappingError(
        "missing_source",
        lack,
        rule.name,
        `${name} is made of it and of others that are there.`,
        "Complete the checkpoint, or leave the rule out."
      )
    }
    made.set(key, { rule, name, bindings, sources })
    if (rule.also === true) continue
    // Of one rule, several tensors can be made of one: experts of a stack.
    for (const of of sources.values()) for (const tensor of of.values()) later.add(tensor.name)
  }
  for (const name of later) taken.add(name)
  const needed = neededFault(
    mapping.rules.filter((rule): rule is MakeRule => "name" in rule),
    made
  )
  if (Result.isFailure(needed)) return Result.fail(needed.failure)
  const kept: Array<MadeTensor> = []
  for (const tensor of tensors) {
    if (taken.has(tensor.name) || ignored.has(tensor.name)) continue
    if (mapping.others === "refuse") {
      return mappingError(
        "unexpected_source",
        tensor.name,
        undefined,
        "No rule of the mapping takes it.",
        "Add a rule for it, or say that it is ignored."
      )
    }
    const rule: MakeRule = { name: tensor.name, from: tensor.name }
    kept.push({
      rule,
      name: tensor.name,
      bindings: new Map(),
      sources: new Map([[tensor.name, new Map([["", tensor]])]])
    })
  }
  return Result.succeed({ made: [...made.values(), ...kept], ignored: [...ignored] })
}
