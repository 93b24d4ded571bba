// SPDX-License-Identifier: Apache-2.0
/** Which modules and bare parameters of a base an adapter's config means, each with its own rank and scale. */
import type { Shape } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import { type MappingError, mappingError } from "../MappingError.ts"
import type { AdapterConfig } from "./AdapterConfig.ts"
import { type ModulePattern, matchesModule, modulePattern, type Work } from "./ModulePattern.ts"

/** The base by modules. */
export interface BaseModules {
  /** Shapes by the full names of tensors; other names of a storage are here too. */
  readonly tensors: ReadonlyMap<string, Shape>
  /** Paths of all modules: those with tensors of their own, and those around them. */
  readonly paths: ReadonlySet<string>
  /** Module paths by the path of the module that has the same storage. */
  readonly tied: ReadonlyMap<string, ReadonlyArray<string>>
}

/** A module or parameter that is adapted. */
export interface AdapterTarget {
  readonly module: string
  readonly parameter: string | undefined
  readonly rank: number
  readonly alpha: number
  readonly scale: number
}

type Outcome<A> = Result.Result<A, MappingError>

const noTarget = (subject: string, detail: string) =>
  mappingError(
    "no_target",
    subject,
    undefined,
    detail,
    "Check that the adapter is for this model, or correct its config."
  )

const readPattern = (text: string): Outcome<ModulePattern> =>
  Result.match(modulePattern(text), {
    onFailure: (why) =>
      mappingError("unsupported", text, undefined, why, "State the pattern in simpler words, or list the modules."),
    onSuccess: (pattern) => Result.succeed(pattern)
  })

const readPatterns = (texts: ReadonlyArray<string>): Outcome<ReadonlyArray<ModulePattern>> =>
  Result.gen(function* () {
    const patterns: Array<ModulePattern> = []
    for (const text of texts) patterns.push(yield* readPattern(text))
    return patterns
  })

/** Members of a set that a path is, or ends with behind a dot. */
const endsIn = (ends: ReadonlySet<string>, path: string): ReadonlyArray<string> => {
  const found = ends.has(path) ? [path] : []
  for (let dot = path.indexOf("."); dot >= 0; dot = path.indexOf(".", dot + 1))
    if (ends.has(path.slice(dot + 1))) found.push(path.slice(dot + 1))
  return found
}

type PathTest = (path: string) => boolean

/** A test for what a config states as ends of paths or as one expression. */
const pathTest = (stated: string | ReadonlyArray<string>, work: Work): Outcome<PathTest> => {
  if (typeof stated === "string")
    return Result.map(readPattern(stated), (pattern) => (path) => matchesModule(pattern, path, "start", work))
  const ends = new Set(stated)
  return Result.succeed((path) => endsIn(ends, path).length > 0)
}

/** The number of the layer in whose module a path lies: the first number with a name before it and another behind. */
const layerOf = (path: string, patterns: ReadonlyArray<ModulePattern>, work: Work): number | undefined => {
  const components = path.split(".")
  let before = components[0]!
  for (let at = 1; at < components.length - 1; at++) {
    const isNumber = /^\d{1,9}$/.test(components[at]!)
    const isLayers =
      patterns.length === 0 ? at >= 2 : patterns.some((one) => matchesModule(one, before, "component", work))
    if (isNumber && isLayers) return Number(components[at])
    before = `${before}.${components[at]}`
  }
  return undefined
}

/** Modules that the config names, before it excludes some. */
const namedModules = (config: AdapterConfig, base: BaseModules, work: Work): Outcome<ReadonlyArray<string>> =>
  Result.gen(function* () {
    const { modules } = config
    if (modules === undefined) return []
    if (typeof modules === "string") {
      const test = yield* pathTest(modules, work)
      const found = [...base.paths].filter(test)
      if (found.length === 0 && work.steps >= 0) return yield* noTarget(modules, "It fits no module of the base.")
      return found
    }
    const patterns = yield* readPatterns(config.layerPatterns)
    const ends = new Set(modules)
    const seen = new Set<string>()
    const layers = new Set(config.layers)
    const missed = new Set(config.layers)
    const found: Array<string> = []
    for (const path of base.paths) {
      const own = endsIn(ends, path)
      if (own.length === 0) continue
      for (const end of own) seen.add(end)
      if (config.layers === undefined || ends.has(path)) {
        found.push(path)
        continue
      }
      const layer = layerOf(path, patterns, work)
      if (layer === undefined || !layers.has(layer)) continue
      missed.delete(layer)
      found.push(path)
    }
    const unseen = modules.find((one) => !seen.has(one))
    if (unseen !== undefined) return yield* noTarget(unseen, "The base has no module whose path ends so.")
    const [layer] = missed
    if (layer !== undefined && found.every((path) => !ends.has(path)))
      return yield* noTarget(String(layer), "No module of a layer of this number is adapted.")
    return found
  })

/** Whether a module is one that the adapter holds in full, or lies in one. */
const isSaved = (saved: ReadonlyArray<string>, path: string): boolean =>
  saved.some((one) => `.${path}.`.includes(`.${one}.`))

/** Modules with those that have the same storage, where the adapter ensures that they change alike. */
const withTied = (
  config: AdapterConfig,
  base: BaseModules,
  found: ReadonlySet<string>,
  spoken: ReadonlyArray<string>
): ReadonlySet<string> => {
  if (!config.ensureTying) return found
  // The library ensures it for these two names only.
  const isKnown = (path: string): boolean => /(^|\.)(embed_tokens|lm_head)$/.test(path)
  const tied = [...base.tied].flatMap(([path, others]) => {
    const group = [path, ...others]
    const isMeant = group.some((one) => found.has(one) && (isKnown(one) || group.every((all) => spoken.includes(all))))
    return isMeant ? group : []
  })
  return new Set([...found, ...tied])
}

/** Bare parameters that the config names, in the base's order. */
const namedParameters = (
  config: AdapterConfig,
  base: BaseModules
): Outcome<ReadonlyArray<readonly [module: string, parameter: string]>> => {
  const ends = new Set(config.parameters)
  const seen = new Set<string>()
  const found: Array<readonly [string, string]> = []
  for (const name of base.tensors.keys()) {
    const dot = name.lastIndexOf(".")
    const own = endsIn(ends, name)
    if (dot < 0 || own.length === 0) continue
    for (const end of own) seen.add(end)
    found.push([name.slice(0, dot), name.slice(dot + 1)])
  }
  const unseen = config.parameters.find((one) => !seen.has(one))
  return unseen === undefined
    ? Result.succeed(found)
    : noTarget(unseen, "The base has no parameter whose name ends so.")
}

/** The number of the first pattern that fits a path; every one that fits is marked as used. */
const valueFor = (
  path: string,
  patterns: ReadonlyArray<readonly [ModulePattern, number]>,
  used: Set<string>,
  otherwise: number,
  work: Work
): number => {
  let value: number | undefined
  for (const [pattern, stated] of patterns) {
    if (!matchesModule(pattern, path, "component", work)) continue
    used.add(pattern.text)
    value ??= stated
  }
  return value ?? otherwise
}

/** Gives each target its rank, alpha and scale; the two are looked up apart. */
const ranked = (
  config: AdapterConfig,
  targets: ReadonlyArray<readonly [module: string, parameter: string | undefined]>,
  work: Work
): Outcome<ReadonlyArray<AdapterTarget>> =>
  Result.gen(function* () {
    const tables: Array<ReadonlyArray<readonly [ModulePattern, number]>> = []
    for (const stated of [config.rankPatterns, config.alphaPatterns]) {
      const patterns = yield* readPatterns(stated.map(([text]) => text))
      tables.push(patterns.map((pattern, at) => [pattern, stated[at]![1]]))
    }
    const used = [new Set<string>(), new Set<string>()]
    const found = targets.map(([module, parameter]): AdapterTarget => {
      const path = parameter === undefined ? module : `${module}.${parameter}`
      const rank = valueFor(path, tables[0]!, used[0]!, config.rank, work)
      const alpha = valueFor(path, tables[1]!, used[1]!, config.alpha, work)
      return { module, parameter, rank, alpha, scale: alpha / (config.byRoot ? Math.sqrt(rank) : rank) }
    })
    for (const [at, table] of tables.entries()) {
      const unused = table.find(([pattern]) => !used[at]!.has(pattern.text))
      if (unused === undefined || work.steps < 0) continue
      return yield* mappingError(
        "unused_pattern",
        unused[0].text,
        undefined,
        `It states ${at === 0 ? "a rank" : "an alpha"} and fits no adapted module.`,
        "Correct the pattern, or take it out of the config."
      )
    }
    return found
  })

const withinWork = (work: Work): Outcome<void> =>
  work.steps >= 0
    ? Result.succeed(undefined)
    : mappingError(
        "unsupported",
        "adapter_config.json",
        undefined,
        "Its patterns take too many steps to match.",
        "List the modules by their names."
      )

/** All that a config means. `spoken` are modules that the adapter's tensors name: they count where the config lists none. */
export const adapterTargets = (
  config: AdapterConfig,
  base: BaseModules,
  spoken: ReadonlyArray<string>,
  work: Work
): Outcome<ReadonlyArray<AdapterTarget>> =>
  Result.gen(function* () {
    const parameters = yield* namedParameters(config, base)
    const bare = new Set(parameters.map(([module]) => module))
    const named =
      config.modules === undefined
        ? spoken.filter((path) => base.paths.has(path) && !bare.has(path))
        : yield* namedModules(config, base, work)
    const isExcluded = yield* pathTest(config.excluded, work)
    const found = new Set(named.filter((path) => !isExcluded(path) && !isSaved(config.saved, path)))
    yield* withinWork(work)
    const both = [...found].find((path) => bare.has(path))
    if (both !== undefined) {
      const detail = "The config names the module and a parameter of it."
      return yield* mappingError("unsupported", both, undefined, detail, "Name one of them.")
    }
    const isEmpty = found.size === 0 && parameters.length === 0
    if (isEmpty && named.length > 0) return yield* noTarget(named[0]!, "All modules that are named are excluded.")
    if (isEmpty && config.modules !== undefined && config.modules.length > 0) {
      const [first] = typeof config.modules === "string" ? [config.modules] : config.modules
      return yield* noTarget(first!, "No module is adapted.")
    }
    const targets = [
      ...[...withTied(config, base, found, spoken)].map((path) => [path, undefined] as const),
      ...parameters
    ]
    const result = yield* ranked(config, targets, work)
    yield* withinWork(work)
    return result
  })
