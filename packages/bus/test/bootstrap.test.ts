// SPDX-License-Identifier: Apache-2.0
/** Which agent serves a process: what the environment says, what wins, and what is refused. */
import { assert, it } from "@effect/vitest"
import * as ConfigProvider from "effect/ConfigProvider"
import * as Effect from "effect/Effect"
import { bootstrap } from "../src/bootstrap.ts"

const within = (env: Record<string, string>, given?: Parameters<typeof bootstrap>[0]) =>
  Effect.provide(bootstrap(given), ConfigProvider.layer(ConfigProvider.fromEnvRecord(env)))

it.effect("ranks, folders and paths", () =>
  Effect.gen(function* () {
    assert.deepStrictEqual(yield* within({ AGENT_RANK: "3", RANK: "1" }), {
      rank: 3,
      commandPath: "/tmp/agent_rank3_command.lmdb",
      statePath: "/tmp/agent_rank3_state.lmdb"
    })
    assert.strictEqual((yield* within({ RANK: "1", AGENT_RANK_OFFSET: "4" })).rank, 5)
    assert.strictEqual((yield* within({ RANK: "1", AGENT_RANK: "" })).rank, 1)
    assert.strictEqual((yield* within({ AGENT_RANK: "3" }, { rank: 7 })).rank, 7)
    const placed = yield* within({ AGENT_RANK: "0", TENSOR_BUS_DIRECTORY: "/run/job", TENSOR_BUS_STATE_PATH: "/x" })
    assert.deepStrictEqual(placed, { rank: 0, commandPath: "/run/job/agent_rank0_command.lmdb", statePath: "/x" })
    for (const env of [{}, { AGENT_RANK: "-1" }, { RANK: "x" }, { RANK: "0", AGENT_RANK_OFFSET: "1.5" }]) {
      const error = yield* Effect.flip(within(env as Record<string, string>))
      assert.match(error.message, /AGENT_RANK|RANK/)
    }
  })
)
