// SPDX-License-Identifier: Apache-2.0
/**
 * Random mappings of names: a small checkpoint of a mixture of experts, degrees of parallelism, and rules that fuse, cut and
 * turn its tensors. Plain data in the language of mappings. Every rule fits the shapes, so no mapping is refused.
 *
 * Invariant: every element of the checkpoint that is not ignored is on some rank.
 */
import type { ModelTensor } from "@tensorferry/model/layout/ModelLayout"
import * as Arbitrary from "effect/Arbitrary"
import { between } from "../planning/arbitraries.ts"
import { type Draw, drawFrom, turnedAtRandom } from "./randomRecipe.ts"
import type { RandomRecipe } from "./recipe.ts"

/** Degrees of parallelism, all stated. */
export interface RandomDegrees {
  readonly tp: number
  readonly pp: number
  readonly dp: number
  readonly ep: number
  readonly etp: number
}

/** How ranks share a tensor out. */
export interface Sharing {
  /** Cut along this dimension; nothing where it is whole. */
  readonly dim?: number
  /** Parts that are packed along it, each cut by itself: how many units each has. */
  readonly units?: ReadonlyArray<number>
  /** Zeros make the dimension this long before it is cut. */
  readonly padded?: number
  readonly isExpert?: true
  /** Experts are along the first dimension. */
  readonly isStack?: true
  readonly end?: "first" | "last"
  /** Only in the layer of this number: the first has an MLP, the second experts. */
  readonly layer?: number
}

/** A tensor of the checkpoint; names have `{layer}` and `{expert}` still in them. */
interface Kind {
  readonly name: string
  readonly shape: ReadonlyArray<number>
  readonly sharing: Sharing
}

/** A rule that makes tensors. */
export interface RandomRule {
  readonly name: string
  readonly from: RandomRecipe
  readonly also?: true
  readonly stages?: "ends" | "all" | "last"
}

/** A checkpoint, degrees, and what a mapping makes of it. */
export interface RandomMapping {
  /** Fields of a config.json of `qwen3_moe`. */
  readonly config: { readonly [field: string]: number | boolean | string | ReadonlyArray<number> }
  readonly layers: number
  readonly experts: number
  readonly degrees: RandomDegrees
  readonly vocabularyMultiple: number
  readonly tensors: ReadonlyArray<ModelTensor>
  /** By name of a tensor. */
  readonly sharing: ReadonlyMap<string, Sharing>
  readonly rules: ReadonlyArray<RandomRule | { readonly ignore: string }>
  /** Lengths that recipes name. */
  readonly counts: {
    readonly heads: number
    readonly kvHeads: number
    readonly headDim: number
    readonly hidden: number
  }
}

const layer = "model.layers.{layer}."

interface Sizes {
  readonly hidden: number
  readonly heads: number
  readonly kvHeads: number
  readonly headDim: number
  readonly inner: number
  readonly vocabulary: number
  readonly experts: number
}

const kindsOf = (sizes: Sizes, isStacked: boolean, padded: number): ReadonlyArray<Kind> => {
  const { hidden, heads, kvHeads, headDim, inner, vocabulary, experts } = sizes
  const kind = (name: string, shape: ReadonlyArray<number>, sharing: Sharing = {}): Kind => ({ name, shape, sharing })
  const mlp = (owner: string, more: Sharing): ReadonlyArray<Kind> => [
    kind(`${owner}.gate_proj.weight`, [inner, hidden], { dim: 0, units: [inner], ...more }),
    kind(`${owner}.up_proj.weight`, [inner, hidden], { dim: 0, units: [inner], ...more }),
    kind(`${owner}.down_proj.weight`, [hidden, inner], { dim: 1, units: [inner], ...more })
  ]
  const attention = `${layer}self_attn`
  const isExpert = true
  return [
    kind("model.embed_tokens.weight", [vocabulary, hidden], { dim: 0, padded, end: "first" }),
    kind("model.norm.weight", [hidden], { end: "last" }),
    kind("lm_head.weight", [vocabulary, hidden], { dim: 0, padded, end: "last" }),
    kind(`${layer}input_layernorm.weight`, [hidden]),
    kind(`${layer}post_attention_layernorm.weight`, [hidden]),
    kind(`${attention}.q_proj.weight`, [heads * headDim, hidden], { dim: 0, units: [heads] }),
    kind(`${attention}.k_proj.weight`, [kvHeads * headDim, hidden], { dim: 0, units: [kvHeads] }),
    kind(`${attention}.v_proj.weight`, [kvHeads * headDim, hidden], { dim: 0, units: [kvHeads] }),
    kind(`${attention}.o_proj.weight`, [hidden, heads * headDim], { dim: 1, units: [heads] }),
    kind(`${attention}.q_norm.weight`, [headDim]),
    kind(`${attention}.k_norm.weight`, [headDim]),
    ...mlp(`${layer}mlp`, { layer: 0 }),
    kind(`${layer}mlp.gate.weight`, [experts, hidden], { layer: 1 }),
    ...(isStacked
      ? [
          kind(`${layer}mlp.experts.gate_up_proj`, [experts, 2 * inner, hidden], {
            dim: 1,
            units: [inner, inner],
            isExpert,
            isStack: true,
            layer: 1
          }),
          kind(`${layer}mlp.experts.down_proj`, [experts, hidden, inner], {
            dim: 2,
            units: [inner],
            isExpert,
            isStack: true,
            layer: 1
          })
        ]
      : mlp(`${layer}mlp.experts.{expert}`, { isExpert, layer: 1 }))
  ]
}

/** Lengths of what one rank holds; the same on every rank. */
const ownShape = ({ shape, sharing }: Kind, { tp, ep, etp }: RandomDegrees): ReadonlyArray<number> =>
  shape.map((length, dim) => {
    const degree = sharing.isExpert ? etp : tp
    if (sharing.isStack && dim === 0) return length / ep
    if (dim !== sharing.dim) return length
    if (sharing.padded !== undefined) return sharing.padded / degree
    // Fewer heads than ranks: one whole head on each.
    return length / Math.min(degree, sharing.units![0]!)
  })

/** Something that becomes a tensor of the other side: what it is made of, whole and as a rank holds it. */
interface Base {
  readonly from: RandomRecipe
  readonly whole: ReadonlyArray<number>
  readonly own: ReadonlyArray<number>
  readonly isExpert: boolean
  /** Its name needs the expert's number. */
  readonly perExpert: boolean
  readonly isLayered: boolean
  readonly isWhole: boolean
  readonly end: "first" | "last" | undefined
}

const baseOf = (kind: Kind, degrees: RandomDegrees): Base => ({
  from: kind.name,
  whole: kind.shape,
  own: ownShape(kind, degrees),
  isExpert: kind.sharing.isExpert === true,
  perExpert: kind.name.includes("{expert}"),
  isLayered: kind.name.includes("{layer}"),
  isWhole: kind.sharing.dim === undefined,
  end: kind.sharing.end
})

const rowsOf = (bases: ReadonlyArray<Base>, side: "whole" | "own"): ReadonlyArray<number> => [
  bases.reduce((sum, base) => sum + base[side][0]!, 0),
  ...bases[0]![side].slice(1)
]

/** Bases of equal other lengths in one, behind each other or group by group. */
const together = (bases: ReadonlyArray<Base>, groups: number | "kvHeads" | undefined): Base => {
  const parts = bases.map(({ from }) => from)
  return {
    ...bases[0]!,
    isWhole: false,
    from: groups === undefined ? { concat: parts } : { interleave: parts, groups },
    whole: rowsOf(bases, "whole"),
    own: rowsOf(bases, "own")
  }
}

const stacked = (base: Base, experts: number, { ep }: RandomDegrees): Base => ({
  ...base,
  from: { stack: base.from, over: "expert" },
  whole: [experts, ...base.whole],
  own: [experts / ep, ...base.own],
  perExpert: false
})

const unstacked = (base: Base): Base => ({
  ...base,
  from: { unstack: base.from, at: "expert" },
  whole: base.whole.slice(1),
  own: base.own.slice(1),
  perExpert: true
})

/** Which tensors are joined. */
const basesOf = (
  kinds: ReadonlyArray<Kind>,
  degrees: RandomDegrees,
  experts: number,
  draw: Draw
): ReadonlyArray<Base> => {
  const all = kinds.map((kind) => baseOf(kind, degrees))
  const find = (tail: string): Base => all.find(({ from }) => typeof from === "string" && from.endsWith(tail))!
  const taken = new Set<Base>()
  const take = (...tails: ReadonlyArray<string>): ReadonlyArray<Base> =>
    tails.map((tail) => {
      const base = find(tail)
      taken.add(base)
      return base
    })
  const made: Array<Base> = []
  const join = draw(4)
  if (join === 1) made.push(together(take("q_proj.weight", "k_proj.weight", "v_proj.weight"), undefined))
  if (join === 2) made.push(together(take("k_proj.weight", "v_proj.weight"), "kvHeads"))
  if (join === 3) made.push(together(take("v_proj.weight", "k_proj.weight"), undefined))
  const mlp = ["{layer}.mlp.gate_proj.weight", "{layer}.mlp.up_proj.weight"]
  const joinMlp = draw(3)
  if (joinMlp === 1) made.push(together(take(...mlp), undefined))
  if (joinMlp === 2) made.push(together(take(...mlp), 2 * degrees.tp))
  const isStacked = all.some(({ from }) => typeof from === "string" && from.endsWith("experts.gate_up_proj"))
  const joinExperts = draw(3)
  const ofExperts = isStacked
    ? take("experts.gate_up_proj", "experts.down_proj")
    : joinExperts === 0
      ? take("{expert}.gate_proj.weight", "{expert}.up_proj.weight", "{expert}.down_proj.weight")
      : [
          together(take("{expert}.gate_proj.weight", "{expert}.up_proj.weight"), undefined),
          ...take("{expert}.down_proj.weight")
        ]
  const change = draw(2) === 1
  for (const base of ofExperts)
    made.push(!change ? base : isStacked ? unstacked(base) : stacked(base, experts, degrees))
  return [...all.filter((base) => !taken.has(base)), ...made]
}

/** The name of the tensors that a rule makes, by numbers of the model or of the rank. */
const targetOf = (base: Base, at: number, draw: Draw): string => {
  const local = draw(2) === 1 ? ".local" : ""
  return `t${at}${base.isLayered ? `.{layer${local}}` : ""}${base.perExpert ? `.{expert${local}}` : ""}.weight`
}

const rulesOf = (base: Base, at: number, degrees: RandomDegrees, draw: Draw): ReadonlyArray<RandomRule> => {
  const { tp, ep } = degrees
  const name = targetOf(base, at, draw)
  // Joined in full and cut afterwards; experts are cut so only where every rank has them all.
  if (draw(5) === 1 && (!base.isExpert || ep === 1)) {
    const { recipe, shape } = turnedAtRandom(base.from, base.whole, draw)
    const dim = draw(shape.length)
    const uneven = shape[dim]! % tp !== 0 || draw(2) === 1 ? { uneven: true as const } : {}
    return [{ name, from: { cut: recipe, dim, ...uneven } }]
  }
  if (draw(6) === 1 && base.own[0]! > 1) {
    const first = 1 + draw(base.own[0]! - 1)
    const lengths = [first, base.own[0]! - first]
    const part = (index: number): RandomRecipe =>
      turnedAtRandom({ part: base.from, index, lengths }, [lengths[index]!, ...base.own.slice(1)], draw).recipe
    return [
      { name: `a${name}`, from: part(0), also: true },
      { name: `b${name}`, from: part(1) }
    ]
  }
  const from: RandomRecipe =
    base.isWhole && !base.isExpert && draw(4) === 1
      ? { onFirst: base.from }
      : draw(6) === 1
        ? { either: [withoutNumbers(base.from), base.from] }
        : base.from
  const stages = base.end === "first" && draw(3) === 1 ? { stages: (["ends", "all"] as const)[draw(2)]! } : {}
  const rule: RandomRule = { name, from: turnedAtRandom(from, base.own, draw).recipe, ...stages }
  return draw(6) === 1
    ? [{ name: `copy.${name}`, from: turnedAtRandom(base.from, base.own, draw).recipe, also: true }, rule]
    : [rule]
}

/** A recipe whose tensors no checkpoint has. */
const withoutNumbers = (recipe: RandomRecipe): RandomRecipe =>
  JSON.parse(JSON.stringify(recipe).replaceAll("weight", "absent").replaceAll('_proj"', '_absent"'))

const namesOf = ({ name, sharing }: Kind, layers: number, experts: number): ReadonlyArray<string> => {
  const range = (count: number): ReadonlyArray<number> => Array.from({ length: count }, (_, at) => at)
  const own = sharing.layer === undefined ? range(layers) : [sharing.layer]
  const byLayer = name.includes("{layer}") ? own.map((at) => name.replace("{layer}", String(at))) : [name]
  return byLayer.flatMap((one) =>
    one.includes("{expert}") ? range(experts).map((at) => one.replace("{expert}", String(at))) : [one]
  )
}

const mappingFrom = (numbers: ReadonlyArray<number>): RandomMapping => {
  const draw = drawFrom(numbers)
  const tp = [1, 2, 4][draw(3)]!
  const ep = 1 + draw(2)
  const degrees: RandomDegrees = { tp, pp: 1 + draw(2), dp: ep, ep, etp: draw(2) === 1 ? 1 : tp }
  const kvHeads = [1, 2, 4][draw(3)]!
  const sizes: Sizes = {
    hidden: [4, 6, 8][draw(3)]!,
    heads: 4 * (1 + draw(2)),
    kvHeads,
    headDim: 2 * (1 + draw(2)),
    inner: 8 * (1 + draw(2)),
    vocabulary: 5 + draw(12),
    experts: 2 * (1 + draw(2))
  }
  const layers = 2
  const vocabularyMultiple = 2 * tp
  const padded = Math.ceil(sizes.vocabulary / vocabularyMultiple) * vocabularyMultiple
  const kinds = kindsOf(sizes, draw(2) === 1, padded)
  const bases = basesOf(kinds, degrees, sizes.experts, draw)
  const ignored = draw(4) === 1
  const rules = bases.flatMap((base, at): RandomMapping["rules"] =>
    ignored && base.from === "model.norm.weight" ? [{ ignore: "model.norm.weight" }] : rulesOf(base, at, degrees, draw)
  )
  const tensors: Array<ModelTensor> = []
  const sharing = new Map<string, Sharing>()
  for (const kind of kinds) {
    for (const name of namesOf(kind, layers, sizes.experts)) {
      tensors.push({ name, dtype: "float32", shape: kind.shape })
      sharing.set(name, kind.sharing)
    }
  }
  const { heads, headDim, hidden, experts } = sizes
  return {
    config: {
      model_type: "qwen3_moe",
      hidden_size: hidden,
      num_attention_heads: heads,
      num_key_value_heads: kvHeads,
      head_dim: headDim,
      num_hidden_layers: layers,
      intermediate_size: sizes.inner,
      moe_intermediate_size: sizes.inner,
      num_experts: experts,
      mlp_only_layers: [0],
      vocab_size: sizes.vocabulary,
      tie_word_embeddings: false
    },
    layers,
    experts,
    degrees,
    vocabularyMultiple,
    tensors,
    sharing,
    rules,
    counts: { heads, kvHeads, headDim, hidden }
  }
}

/** Mappings of every operation of the language, over checkpoints of some hundreds of elements per tensor at most. */
export const randomMapping: Arbitrary.Arbitrary<RandomMapping> = Arbitrary.map(
  Arbitrary.array(between(0, 719), { minLength: 160, maxLength: 160 }),
  mappingFrom
)
