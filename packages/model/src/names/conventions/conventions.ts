// SPDX-License-Identifier: Apache-2.0
/** All conventions that are known, by name. Adding one is a file beside this and a line here. */
import type { Convention } from "./Convention.ts"
import { fsdp2, fsdp2Hf } from "./fsdp2.ts"
import { hf } from "./hf.ts"
import { megatron, megatronLocal } from "./megatron.ts"
import { sglang } from "./sglang.ts"
import { transformers } from "./transformers.ts"
import { vllm } from "./vllm.ts"

/** All systems whose names are known. */
export const conventions: ReadonlyArray<Convention> = [
  hf,
  transformers,
  megatron,
  megatronLocal,
  vllm,
  sglang,
  fsdp2,
  fsdp2Hf
]

const byName: ReadonlyMap<string, Convention> = new Map(conventions.map((convention) => [convention.name, convention]))

/** Names of all conventions, in alphabetical order. */
export const conventionNames: ReadonlyArray<string> = [...byName.keys()].sort()

/** The convention of a name; undefined where there is none. */
export const findConvention = (name: string): Convention | undefined => byName.get(name)
