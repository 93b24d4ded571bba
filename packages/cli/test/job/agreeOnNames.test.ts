// SPDX-License-Identifier: Apache-2.0
/** Ranks that a launcher started with other names, rules or files: all of them fail, and say who has what. */
import { assert, describe, it } from "@effect/vitest"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import type { NamedChoice } from "@tensorferry/model/names/NamedSide"
import * as Effect from "effect/Effect"
import { agreeOnJob } from "../../src/job/agreeOnJob.ts"
import type { JobSpec } from "../../src/job/JobSpec.ts"
import { config } from "../support/inProcess.ts"

const names = (convention: string, mapping?: NamedChoice["to"]["mapping"]): NamedChoice => ({
  from: { convention: "megatron", config: config("tp=2") },
  to: { convention, config: config("tp=2"), ...(mapping === undefined ? {} : { mapping }) },
  ranks: "collocated",
  family: { preset: "llama", placement: {} }
})

const spec: JobSpec = {
  checkpoint: "model",
  backend: "torch-copy",
  backendPackages: [],
  packagesFrom: import.meta.url,
  verify: true,
  deadlineMillis: 20_000,
  from: config("tp=2"),
  to: config("tp=2"),
  ranks: "collocated",
  rules: { rules: [] },
  out: null
}

const messagesOf = (first: Partial<JobSpec>, second: Partial<JobSpec>) =>
  Effect.scoped(
    Effect.gen(function* () {
      const groups = yield* makeInProcessGroups(2)
      return yield* Effect.forEach(
        groups,
        (group) =>
          Effect.map(
            Effect.flip(agreeOnJob(group, { ...spec, ...(group.rank === 0 ? first : second) })),
            ({ message }) => message
          ),
        { concurrency: "unbounded" }
      )
    })
  )

describe("ranks that a launcher started", () => {
  it.live("agree on the names of the destination", () =>
    Effect.map(messagesOf({ names: names("vllm") }, { names: names("sglang") }), (messages) => {
      for (const message of messages) assert.include(message, "--to: rank 0 has vllm:tp=2, rank 1 has sglang:tp=2")
    })
  )

  it.live("agree on the rules of --map", () =>
    Effect.map(
      messagesOf(
        { names: names("hf", { rules: [], others: "keep" }) },
        { names: names("hf", { rules: [], others: "refuse" }) }
      ),
      (messages) => {
        for (const message of messages) assert.match(message, /--map: rank 0 has digest \w+, rank 1 has digest \w+/)
      }
    )
  )

  it.live("agree on the names of the checkpoint", () =>
    Effect.map(
      messagesOf(
        {
          stored: { convention: "vllm", config: config("tp=2"), like: "a", family: { preset: "llama", placement: {} } }
        },
        {}
      ),
      (messages) => {
        for (const message of messages)
          assert.include(message, "names of CHECKPOINT: rank 0 has vllm:tp=2, rank 1 has its own")
      }
    )
  )
})
