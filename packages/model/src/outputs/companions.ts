// SPDX-License-Identifier: Apache-2.0
/**
 * The small files that make a folder of tensors a model that others open: configuration, tokenizer, templates.
 *
 * Invariant: only files of a stated list are carried along, of bounded size. Code and pickles are never among them,
 * whatever a configuration says.
 */
import { readdir } from "node:fs/promises"
import { join } from "node:path"
import * as Effect from "effect/Effect"
import type { CheckpointError } from "../checkpoint/CheckpointError.ts"
import { readSmallFile, systemCall } from "../checkpoint/FileAccess.ts"
import { folderOf } from "../inputs/openInput.ts"
import { formatPythonJson, parsePythonJson } from "../inputs/PythonJson.ts"
import type { Model } from "../Model.ts"

/** Largest file that is carried along; tokenizers of published models have up to 40 MB. */
const mostBytes = 128 * 1024 * 1024

/** What belongs to a model beside its tensors. Names are exact, so that no program gets in. */
const companionNames = new Set([
  "config.json",
  "generation_config.json",
  "adapter_config.json",
  "hf_quant_config.json",
  "tokenizer.json",
  "tokenizer_config.json",
  "tokenizer.model",
  "tekken.json",
  "special_tokens_map.json",
  "added_tokens.json",
  "vocab.json",
  "vocab.txt",
  "merges.txt",
  "spiece.model",
  "sentencepiece.bpe.model",
  "qwen.tiktoken",
  "tiktoken.model",
  "chat_template.json",
  "chat_template.jinja",
  "preprocessor_config.json",
  "processor_config.json",
  "video_preprocessor_config.json",
  "LICENSE",
  "NOTICE"
])

/** A file to write into the output. */
export interface Companion {
  readonly name: string
  readonly bytes: Uint8Array
}

type JsonRecord = Readonly<Record<string, unknown>>

/** What became of the tensors, as far as a configuration speaks of it. */
export interface ConfigChanges {
  /** The type that floats were converted to. */
  readonly dtype?: string
  /** How weights are quantized now. */
  readonly quantization?: JsonRecord
  /** No tensor is quantized any more. */
  readonly isDequantized?: boolean
}

const isRecord = (value: unknown): value is JsonRecord =>
  typeof value === "object" && value !== null && !Array.isArray(value)

const typeKeys = ["dtype", "torch_dtype"] as const

const changedRecord = (config: JsonRecord, { dtype, isDequantized, quantization }: ConfigChanges): JsonRecord =>
  Object.fromEntries(
    Object.entries(config).flatMap(([key, value]) => {
      if ((isDequantized === true || quantization !== undefined) && key === "quantization_config") return []
      if (dtype !== undefined && typeKeys.some((name) => name === key) && typeof value === "string")
        return [[key, dtype]]
      const isNested = (key === "text_config" || key === "vision_config") && isRecord(value)
      return [
        [
          key,
          isNested
            ? changedRecord(value, {
                ...(dtype === undefined ? {} : { dtype }),
                ...(isDequantized === undefined ? {} : { isDequantized })
              })
            : value
        ]
      ]
    })
  )

/** A config.json that says of the tensors what they are now; the same bytes where it speaks of nothing that changed. */
export const changedConfig = (bytes: Uint8Array, changes: ConfigChanges): Uint8Array => {
  const { quantization } = changes
  if (changes.dtype === undefined && changes.isDequantized !== true && quantization === undefined) return bytes
  const config = parsePythonJson(new TextDecoder().decode(bytes))
  if (!isRecord(config)) return bytes
  const changed = changedRecord(config, changes)
  const whole = quantization === undefined ? changed : { ...changed, quantization_config: quantization }
  return new TextEncoder().encode(formatPythonJson(whole))
}

const companionsIn = Effect.fnUntraced(function* (path: string) {
  const folder = folderOf(path)
  const names = yield* Effect.orElseSucceed(
    systemCall("Unreadable", folder, "list the folder", () => readdir(folder)),
    (): ReadonlyArray<string> => []
  )
  return names.filter((one) => companionNames.has(one)).map((name) => ({ name, file: join(folder, name) }))
})

/** What is carried along from beside a model; none where its tensors are made up. */
export const companionsOf = (
  model: Pick<Model, "path" | "configText" | "like">,
  changes: ConfigChanges
): Effect.Effect<ReadonlyArray<Companion>, CheckpointError> =>
  Effect.gen(function* () {
    const like = model.like === undefined ? [] : yield* companionsIn(model.like)
    // Its own takes precedence.
    const files = new Map([...like, ...(yield* companionsIn(model.path))].map(({ name, file }) => [name, file]))
    const found: Array<Companion> = []
    for (const name of [...files.keys()].sort())
      found.push({ name, bytes: yield* readSmallFile(files.get(name)!, mostBytes) })
    const isNamed = found.some(({ name }) => name === "config.json")
    const made =
      model.configText === undefined || isNamed
        ? []
        : [{ name: "config.json", bytes: new TextEncoder().encode(model.configText) }]
    return [...found, ...made].map(({ bytes, name }) => ({
      name,
      bytes: name === "config.json" ? changedConfig(bytes, changes) : bytes
    }))
  })
