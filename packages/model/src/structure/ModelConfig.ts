// SPDX-License-Identifier: Apache-2.0
/**
 * The config.json of a model, as it was published: an object of JSON that names a `model_type`. What of it decides a layout
 * is read where it is needed, field by field.
 */
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"

/** A config.json. */
export const ModelConfig = Schema.JsonObject.check(
  Schema.makeFilter((config) => typeof config.model_type === "string" || "it names no model_type")
)
export type ModelConfig = typeof ModelConfig.Type

/** An object of a config, as `text_config` is. */
export type ConfigObject = { readonly [key: string]: unknown }

/** The object under a key; undefined where there is none. */
export const objectAt = (config: ConfigObject, key: string): ConfigObject | undefined => {
  const value = config[key]
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as ConfigObject) : undefined
}

const textKeys = ["text_config", "llm_config", "language_config"] as const

/** The part that describes the language model of a model that also sees or hears. */
export const textOf = (config: ConfigObject): ConfigObject => {
  for (const key of textKeys) {
    const found = objectAt(config, key)
    if (found !== undefined) return found
  }
  return config
}

const codec = Schema.fromJsonString(ModelConfig)

/** Writers of Python leave numbers in the text that JSON has no words for; no layout follows from them. */
const withoutInfinities = (text: string): string =>
  text.replace(/"(?:[^"\\]|\\.)*"|-?\bInfinity\b|\bNaN\b/g, (found) => (found.startsWith('"') ? found : "null"))

/** Most objects and lists inside one another; published configs have a handful, and what copies them calls itself for each. */
const mostLevels = 256

const isTooDeep = (text: string): boolean => {
  let level = 0
  for (const [found] of text.matchAll(/"(?:[^"\\]|\\.)*"|[[\]{}]/g)) {
    if (found === "{" || found === "[") level++
    else if (found === "}" || found === "]") level--
    if (level > mostLevels) return true
  }
  return false
}

/** Reads the text of a config.json, or says what is wrong with it. */
export const parseModelConfig = (text: string): Result.Result<ModelConfig, string> =>
  isTooDeep(text)
    ? Result.fail(`it has more than ${mostLevels} objects and lists inside one another`)
    : Result.mapError(Schema.decodeResult(codec)(withoutInfinities(text)), (error) => error.message)
