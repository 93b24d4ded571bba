// SPDX-License-Identifier: Apache-2.0
/** Two agents of one process with a client each, and the pairs between them: for tests of what one side learns of the other. */
import { shard } from "@tensorferry/core/layout/Placement"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import type { TensorBusClientShape } from "../../src/client/TensorBusClient.ts"
import { makeCluster } from "../cluster.ts"
import { makeTensor } from "../tensors.ts"

export const all = <A, E, R>(effects: ReadonlyArray<Effect.Effect<A, E, R>>) =>
  Effect.all(effects, { concurrency: "unbounded" })

/** One rank on each side. */
export const sideOf = (pair: string, local: string, remote: string) => ({
  pair,
  local,
  remote,
  mesh: [1],
  placements: [shard(0)]
})

export const register = (
  client: Pick<TensorBusClientShape, "registerTensors">,
  batch: string,
  tensor: Tensor,
  pair = "p"
) => client.registerTensors({ batch, tensors: [[pair, tensor]] })

/** Agents 0 and 1 with the clients `a` and `b`, and these pairs between them. */
export const twoAgents = Effect.fnUntraced(function* (
  options: Parameters<typeof makeCluster>[0] & { readonly pairs?: ReadonlyArray<string> } = {}
) {
  const { pairs = ["p"], ...rest } = options
  const cluster = yield* makeCluster(rest)
  const [a, b] = [yield* cluster.start(0), yield* cluster.start(1)]
  const meet = (pair: string) =>
    all([a.client.initPair(sideOf(pair, "a", "b")), b.client.initPair(sideOf(pair, "b", "a"))])
  for (const pair of pairs) yield* meet(pair)
  const tensor = (length = 4) => makeTensor(cluster.memory, "float32", [length])
  return { ...cluster, a, b, meet, tensor }
})
