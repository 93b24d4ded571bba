// SPDX-License-Identifier: Apache-2.0
/** Layers whose options come from configuration. Apart, because loading effect's Config costs what is noticed at start. */
import * as Config from "effect/Config"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"

/**
 * The layer of any factory of ours, with options read by `config` when the layer is built:
 * `layerConfig(ProcessGroupTcp.layer, { rank: Config.Int("RANK"), size: Config.Int("WORLD_SIZE") })`. A variable that is
 * missing or invalid fails the layer with ConfigError, which names it.
 */
export const layerConfig = <Options, A, E, R>(
  make: (options: Options) => Layer.Layer<A, E, R>,
  config: Config.Wrap<Options>
): Layer.Layer<A, E | Config.ConfigError, R> => Layer.unwrap(Effect.map(Config.unwrap(config), make))
