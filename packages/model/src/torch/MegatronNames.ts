// SPDX-License-Identifier: Apache-2.0
/**
 * What Megatron-Core's distributed checkpoints call the tensors of a model, and what the model calls them: layers and experts
 * lie along leading dimensions of one tensor, and parts of fused tensors are tensors of their own. Pure.
 */
import type { Shape } from "@tensorferry/core/base/Region"

/** A tensor of the checkpoint, or what of it lies at places of its first dimensions, which are then left out. */
export interface Piece {
  readonly tensor: string
  readonly leading: ReadonlyArray<number>
}

/** A tensor of the model: pieces behind each other along their first dimension. Mostly one. */
export interface NamedPieces {
  readonly name: string
  readonly pieces: ReadonlyArray<Piece>
}

const stackedLayer = /\.layers\.(?!\d+\.)/
const stackedExperts = /\.experts\.experts\.(linear_fc[12])\.(weight|bias)$/

/** What frameworks put before all names of a model. */
const wrapper = /^(?:module\.)+/

/** Parts that are stored apart, in the order in which the model joins them. */
const splits: ReadonlyArray<readonly [fused: RegExp, parts: ReadonlyArray<string>]> = [
  [/\.in_proj\.(?:weight|bias)$/, [".z", ".x", ".B", ".C", ".dt"]],
  [/\.conv1d[._](?:weight|bias)$/, [".x", ".B", ".C"]],
  [/\.in_proj\.weight$/, [".query", ".key", ".value", ".z", ".beta", ".alpha"]],
  [/\.conv1d[._](?:weight|bias)$/, [".query", ".key", ".value"]],
  [/\.linear_fc1\.(?:weight|bias)\d*$/, ["_w", "_v"]]
]

const range = (count: number): ReadonlyArray<number> => Array.from({ length: count }, (_, at) => at)

/** One tensor as those that its leading dimensions stack. */
const unstacked = (tensor: string, shape: Shape): ReadonlyArray<NamedPieces> => {
  const plain = tensor.replace(wrapper, "")
  const isStacked = stackedLayer.test(plain) && shape.length > 1
  const layers = isStacked ? range(shape[0]!).map((layer) => [layer]) : [[]]
  const left = isStacked ? shape.slice(1) : shape
  const isExperts = stackedExperts.test(plain) && left.length > 1
  return layers.flatMap((layer) => {
    const name = layer.length === 0 ? plain : plain.replace(stackedLayer, `.layers.${layer[0]}.`)
    return isExperts
      ? range(left[0]!).map((expert) => ({
          name: name.replace(stackedExperts, `.experts.$1.$2${expert}`),
          pieces: [{ tensor, leading: [...layer, expert] }]
        }))
      : [{ name, pieces: [{ tensor, leading: layer }] }]
  })
}

/** Joins what was stored apart; parts of which one is missing stay as they are. */
const joined = (found: ReadonlyArray<NamedPieces>): ReadonlyArray<NamedPieces> => {
  const byName = new Map(found.map((one) => [one.name, one]))
  for (const { name } of found) {
    for (const [fused, parts] of splits) {
      const [first] = parts
      const base = name.slice(0, -first!.length)
      if (!name.endsWith(first!) || !fused.test(base)) continue
      const own = parts.map((part) => byName.get(`${base}${part}`))
      if (own.some((part) => part === undefined) || byName.has(base)) continue
      for (const part of parts) byName.delete(`${base}${part}`)
      byName.set(base, { name: base, pieces: own.flatMap((part) => part!.pieces) })
    }
  }
  return [...byName.values()]
}

/** Mixers had a module for their convolution once, which their parameters are named after. */
const renewed = ({ name, pieces }: NamedPieces): NamedPieces => ({
  name: name.replace(/\.mixer\.conv1d\.(weight|bias)$/, ".mixer.conv1d_$1"),
  pieces
})

/** The model's tensors in those of a checkpoint. Names may come twice, which is the caller's to refuse. */
export const megatronTensors = (shapes: ReadonlyMap<string, Shape>): ReadonlyArray<NamedPieces> => {
  const found = [...shapes].flatMap(([tensor, shape]) => unstacked(tensor, shape))
  // Names that come twice are told apart only by who gets them.
  return new Set(found.map(({ name }) => name)).size < found.length ? found : joined(found).map(renewed)
}
