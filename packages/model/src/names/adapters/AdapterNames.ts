// SPDX-License-Identifier: Apache-2.0
/**
 * Names of an adapter's tensors against those of its base: `base_model.model.`, the path of a module, and what the tensor is
 * to it. In memory the name of the adapter stands in between; in a file it does not.
 *
 * `base_layer` in a path is a module that an adapter wraps. A module with two adapted parameters is wrapped twice, so at the
 * end of a path each `base_layer` leads one adapter further in.
 */
import { adapterPrefix } from "../../forms/adapters.ts"

/** What a tensor is to a module. */
export type AdapterSlot =
  | "lora_A.weight"
  | "lora_B.weight"
  | "lora_B.bias"
  | "lora_embedding_A"
  | "lora_embedding_B"
  | "lora_magnitude_vector"
  | "token_adapter.trainable_tokens_delta"

/** A name, taken apart. Paths and names are those of the base. */
export type AdapterName = (
  | { readonly _tag: "Part"; readonly module: string; readonly depth: number; readonly slot: AdapterSlot }
  /** A tensor of the base in full, as the adapter wants it. */
  | {
      readonly _tag: "Whole"
      readonly tensor: string
      /** Under a name that some files have besides the plain one. */
      readonly isAgain?: true
    }
  /** The base's own tensor of a module that is wrapped. */
  | { readonly _tag: "Wrapped"; readonly tensor: string }
) & {
  /** The adapter's name, where it stands in the name. */
  readonly adapter?: string
}

const wrapper = "base_layer"
const original = "original_module"
const saved = "modules_to_save"

const pathOf = (components: ReadonlyArray<string>): string =>
  components.filter((one) => one !== wrapper && one !== original && one !== "token_adapter").join(".")

/** What stands behind the part's word, and in which slot that makes it. */
const slots: ReadonlyMap<string, ReadonlyArray<readonly [rest: string, slot: AdapterSlot]>> = new Map([
  ["lora_A", [["weight", "lora_A.weight"]]],
  [
    "lora_B",
    [
      ["weight", "lora_B.weight"],
      ["bias", "lora_B.bias"]
    ]
  ],
  ["lora_embedding_A", [["", "lora_embedding_A"]]],
  ["lora_embedding_B", [["", "lora_embedding_B"]]],
  // Older files have the weight of a module here.
  [
    "lora_magnitude_vector",
    [
      ["weight", "lora_magnitude_vector"],
      ["", "lora_magnitude_vector"]
    ]
  ],
  ["trainable_tokens_delta", [["", "token_adapter.trainable_tokens_delta"]]]
])

const partOf = (components: ReadonlyArray<string>): AdapterName | undefined => {
  const at = components.findIndex((one) => slots.has(one))
  if (at <= 0) return undefined
  const rest = components.slice(at + 1)
  for (const [ending, slot] of slots.get(components[at]!)!) {
    const length = ending === "" ? 0 : 1
    if (rest.length < length || rest.length > length + 1) continue
    if (length === 1 && rest.at(-1) !== ending) continue
    let depth = 0
    while (components[at - 1 - depth] === wrapper) depth++
    const name: AdapterName = { _tag: "Part", module: pathOf(components.slice(0, at)), depth, slot }
    return rest.length > length ? { ...name, adapter: rest[0]! } : name
  }
  return undefined
}

/** Takes a name apart; undefined for names that are no adapter's. */
export const parseAdapterName = (name: string): AdapterName | undefined => {
  if (!name.startsWith(adapterPrefix)) return undefined
  const components = name.slice(adapterPrefix.length).split(".")
  const part = partOf(components)
  if (part !== undefined) return part
  const at = components.indexOf(saved)
  if (at > 0 && at + 2 === components.length) {
    const tensor = pathOf([...components.slice(0, at), components[at + 1]!])
    return { _tag: "Whole", tensor, isAgain: true }
  }
  if (at > 0 && at + 2 < components.length) {
    const tensor = pathOf([...components.slice(0, at), ...components.slice(at + 2)])
    return { _tag: "Whole", tensor, adapter: components[at + 1]! }
  }
  const isWrapped = components.includes(wrapper) || components.includes(original)
  return { _tag: isWrapped ? "Wrapped" : "Whole", tensor: pathOf(components) }
}

/** The name in a file of what an adapter has for a module. */
export const adapterName = (module: string, slot: AdapterSlot, depth = 0): string =>
  `${adapterPrefix}${module}${`.${wrapper}`.repeat(depth)}.${slot}`

/** The name in a file of a tensor of the base that the adapter holds in full; `isWrapped` where its module is adapted. */
export const wholeName = (tensor: string, isWrapped: boolean): string => {
  const dot = tensor.lastIndexOf(".")
  return isWrapped
    ? `${adapterPrefix}${tensor.slice(0, dot)}.${wrapper}${tensor.slice(dot)}`
    : `${adapterPrefix}${tensor}`
}
