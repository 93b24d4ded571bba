// SPDX-License-Identifier: Apache-2.0
/**
 * Holds an adapter's config and the names of its tensors against a base, before a byte is read.
 *
 * Invariant: of an adapter that is read, every tensor that the config means is there, with the shape that its rank and the
 * base give it, and every tensor that is there has a meaning.
 */
import { equalShapes, type Shape } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import { type MappingError, mappingError } from "../MappingError.ts"
import type { Adapter, AdapterBase, AdapterChange, LowRank, NamedShape, TiedPair, WholeTensor } from "./Adapter.ts"
import type { AdapterConfig } from "./AdapterConfig.ts"
import { parseAdapterName } from "./AdapterNames.ts"
import { adapterTargets, type BaseModules } from "./adapterTargets.ts"
import { lowRanks, shapeFault } from "./lowRank.ts"
import { mostWork, type Work } from "./ModulePattern.ts"
import { settleTies, type TiedChanges } from "./ties.ts"
import { type AllParts, addedBiases, savedTensors, trainedBiases, trainedRows } from "./wholeTensors.ts"

type Outcome<A> = Result.Result<A, MappingError>

/** What a user says about reading an adapter. */
export interface AdapterOptions {
  /** The adapter's name, where names are those of a model in memory with several. */
  readonly adapter?: string
  /** `refuse` by default. */
  readonly tied?: TiedChanges
}

const moduleOf = (tensor: string): string => tensor.slice(0, Math.max(0, tensor.lastIndexOf(".")))

const modulesOf = ({ tensors, aliases = new Map() }: AdapterBase): BaseModules => {
  const shapes = new Map<string, Shape>(tensors.map(({ name, shape }) => [name, shape]))
  const tied = new Map<string, ReadonlyArray<string>>()
  for (const [alias, source] of aliases) {
    const shape = shapes.get(source)
    if (shape !== undefined && !shapes.has(alias)) shapes.set(alias, shape)
    tied.set(moduleOf(source), [...(tied.get(moduleOf(source)) ?? []), moduleOf(alias)])
  }
  const paths = new Set<string>()
  for (const name of shapes.keys())
    for (let path = moduleOf(name); path !== "" && !paths.has(path); path = moduleOf(path)) paths.add(path)
  return { tensors: shapes, paths, tied }
}

interface Sorted {
  readonly parts: AllParts
  readonly taken: ReadonlySet<string>
  readonly spoken: ReadonlyArray<string>
  readonly wrapped: ReadonlyMap<string, NamedShape>
  /** Tensors that the file has twice. */
  readonly again: ReadonlyMap<string, NamedShape>
}

const unexpected = (name: string, detail: string) =>
  mappingError("unexpected_source", name, undefined, detail, "Check that the adapter and its config belong together.")

/** The adapter's tensors by what their names say. */
const sorted = (tensors: ReadonlyArray<NamedShape>, options: AdapterOptions): Outcome<Sorted> =>
  Result.gen(function* () {
    const parts = new Map<string, NamedShape>()
    const wholes = new Map<string, NamedShape>()
    const wrapped = new Map<string, NamedShape>()
    const again = new Map<string, NamedShape>()
    const modules = new Set<string>()
    const rowModules = new Set<string>()
    const taken = new Set<string>()
    let adapter = options.adapter
    for (const tensor of tensors) {
      const name = parseAdapterName(tensor.name)
      if (name === undefined) return yield* unexpected(tensor.name, "Its name is none of an adapter's tensor.")
      if (options.adapter !== undefined && name.adapter !== undefined && name.adapter !== options.adapter) {
        taken.add(tensor.name)
        continue
      }
      adapter ??= name.adapter
      if (name.adapter !== undefined && name.adapter !== adapter)
        return yield* unexpected(tensor.name, `It is one of adapter ${name.adapter}, others are of ${adapter}.`)
      const isAgain = name._tag === "Whole" && name.isAgain === true
      const table = isAgain ? again : name._tag === "Part" ? parts : name._tag === "Whole" ? wholes : wrapped
      const key = name._tag === "Part" ? `${name.module} ${name.depth} ${name.slot}` : name.tensor
      const other = table.get(key)
      if (other !== undefined) return yield* unexpected(tensor.name, `${other.name} says the same.`)
      table.set(key, tensor)
      if (name._tag !== "Part") continue
      if (name.slot === "token_adapter.trainable_tokens_delta") rowModules.add(name.module)
      else if (name.depth === 0) modules.add(name.module)
    }
    return {
      parts: {
        part: (module, depth, slot) => parts.get(`${module} ${depth} ${slot}`),
        take: ({ name }) => taken.add(name),
        whole: (tensor) => wholes.get(tensor),
        wrapped: (tensor) => wrapped.get(tensor),
        wholes: [...wholes.keys()],
        rowModules: [...rowModules]
      },
      taken,
      spoken: [...modules],
      wrapped,
      again
    }
  })

/** Whether a file of an adapter has copies of a wrapped module: of what a vocabulary goes through. */
const hasCopies = (change: LowRank | undefined): boolean =>
  change !== undefined &&
  (change.kind === "embedding" || /(^|\.)(lm_head|embed_out|output|output_layer|score)$/.test(change.module))

/** Copies of the base in the adapter; fails with the first tensor that nothing explains. */
const copiesOf = (
  tensors: ReadonlyArray<NamedShape>,
  { taken, wrapped }: Sorted,
  base: BaseModules,
  changes: ReadonlyArray<AdapterChange>
): Outcome<Adapter["copies"]> =>
  Result.gen(function* () {
    const names = new Map([...wrapped].map(([of, { name }]) => [name, of]))
    const byModule = new Map(changes.flatMap((one) => (one._tag === "LowRank" ? [[one.module, one] as const] : [])))
    const saved = new Set(changes.flatMap((one) => (one._tag === "Whole" ? [one.target] : [])))
    const copies: Array<{ readonly tensor: string; readonly of: string }> = []
    for (const tensor of tensors) {
      if (taken.has(tensor.name)) continue
      const of = names.get(tensor.name)
      const shape = of === undefined ? undefined : base.tensors.get(of)
      if (of === undefined || shape === undefined || !(saved.has(of) || hasCopies(byModule.get(moduleOf(of)))))
        return yield* unexpected(tensor.name, "Neither the config nor the base has anything that it belongs to.")
      if (!equalShapes(shape, tensor.shape)) return yield* shapeFault(tensor, shape, "it must be a copy of the base's.")
      copies.push({ tensor: tensor.name, of })
    }
    return copies
  })

/** Pairs of tensors in full that a file has under two names each; they must be equal. */
const twins = ({ again, parts }: Sorted, saved: ReadonlyArray<WholeTensor>): Outcome<ReadonlyArray<TiedPair>> =>
  Result.gen(function* () {
    const pairs: Array<TiedPair> = []
    for (const { target, tensor } of saved) {
      const [own, other] = [parts.whole(target), again.get(target)]
      if (own === undefined || other === undefined) continue
      parts.take(other)
      if (!equalShapes(own.shape, other.shape)) return yield* shapeFault(other, own.shape, `it is ${tensor} again.`)
      pairs.push({ tensor: other.name, transposed: tensor, rows: 1 })
    }
    return pairs
  })

/** Reads what an adapter does to a base. */
export const readAdapter = (
  config: AdapterConfig,
  tensors: ReadonlyArray<NamedShape>,
  source: AdapterBase,
  options: AdapterOptions = {}
): Outcome<Adapter> =>
  Result.gen(function* () {
    const base = modulesOf(source)
    const found = yield* sorted(tensors, options)
    const { parts } = found
    const work: Work = { steps: mostWork }
    const targets = yield* adapterTargets(config, base, found.spoken, work)
    const products = yield* lowRanks(targets, config, source, base, parts)
    const saved = yield* savedTensors(config, base, parts)
    const same = yield* twins(found, saved)
    const whole = new Set(saved.map(({ target }) => target))
    const adapted = new Set(products.map(({ module }) => module))
    const biases = yield* trainedBiases(config, base, adapted, whole, parts)
    const added = yield* addedBiases(config, base, products, parts)
    const rows = yield* trainedRows(config, base, parts)
    const doubled = rows.find(({ target }) => products.some((product) => product.target === target))
    if (doubled !== undefined)
      return yield* mappingError(
        "unsupported",
        doubled.target,
        undefined,
        "The adapter has both a product and rows for it.",
        "Merge the adapter with the tool that made it."
      )
    const all: ReadonlyArray<AdapterChange> = [...saved, ...biases, ...products, ...added, ...rows]
    const copies = yield* copiesOf(tensors, found, base, all)
    const settled = yield* settleTies(all, source.aliases ?? new Map(), config.ensureTying, options.tied ?? "refuse")
    const changes = new Map<string, Array<AdapterChange>>()
    for (const change of settled.changes) changes.set(change.target, [...(changes.get(change.target) ?? []), change])
    return { changes, copies, tied: [...settled.tied, ...same], untied: settled.untied }
  })
