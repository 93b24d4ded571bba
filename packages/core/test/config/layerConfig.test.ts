// SPDX-License-Identifier: Apache-2.0
/** Options of layers from configuration: values arrive, and a missing or invalid one is named. */
import { assert, describe, it } from "@effect/vitest"
import * as Config from "effect/Config"
import * as ConfigProvider from "effect/ConfigProvider"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { layerConfig } from "../../src/config/layerConfig.ts"
import * as ProcessGroupTcp from "../../src/group/ProcessGroupTcp.ts"
import { ProcessGroup } from "../../src/service/ProcessGroup.ts"

const grouped = layerConfig(ProcessGroupTcp.layer, {
  rank: Config.Int("RANK"),
  size: Config.Int("WORLD_SIZE"),
  host: Config.succeed("127.0.0.1"),
  port: Config.succeed(0)
})

const sizeWith = (env: Record<string, string>) =>
  ProcessGroup.use(({ rank, size }) => Effect.succeed({ rank, size })).pipe(
    Effect.provide(Layer.provide(grouped, ConfigProvider.layer(ConfigProvider.fromEnv({ env })))),
    Effect.scoped
  )

describe("layerConfig", () => {
  it.live("gives the layer the values that configuration holds", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* sizeWith({ RANK: "0", WORLD_SIZE: "1" }), { rank: 0, size: 1 })
    })
  )

  it.live("fails with the name of a variable that is missing or no number", () =>
    Effect.gen(function* () {
      const missing = yield* Effect.flip(sizeWith({ RANK: "0" }))
      assert.strictEqual(missing._tag, "ConfigError")
      assert.include(missing.message, "WORLD_SIZE")
      const invalid = yield* Effect.flip(sizeWith({ RANK: "first", WORLD_SIZE: "1" }))
      assert.include(invalid.message, "RANK")
    })
  )

  it.live("keeps the errors of the layer itself", () =>
    Effect.gen(function* () {
      const refused = yield* Effect.flip(sizeWith({ RANK: "3", WORLD_SIZE: "1" }))
      assert.strictEqual(refused._tag, "ProcessGroupError")
    })
  )
})
