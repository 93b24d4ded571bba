// SPDX-License-Identifier: Apache-2.0
/**
 * Ranks that fail before the ranks have met: the command ends the others soon, and a rank that is told nonsense says so.
 */
import { fork } from "node:child_process"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Logger from "effect/Logger"
import * as Schema from "effect/Schema"
import { runProcesses } from "../../src/job/Coordinator.ts"
import { FromRank, type JobSpec } from "../../src/job/JobSpec.ts"

const spec: JobSpec = {
  checkpoint: "none",
  backend: "auto",
  backendPackages: [],
  packagesFrom: import.meta.url,
  verify: true,
  deadlineMillis: 600_000,
  from: { tp: 1, pp: 1, dp: 1 },
  to: { tp: 3, pp: 1, dp: 1 },
  ranks: "collocated",
  rules: { rules: [] },
  out: null
}

const fileOf = (name: string): string => fileURLToPath(new URL(name, import.meta.url))

const silent = () => Effect.void

describe("a rank that fails before the ranks have met", () => {
  it.live("ends the job long before the deadline", () =>
    Effect.gen(function* () {
      const run = runProcesses(spec, 3, silent, fileOf("../fixtures/unjoined-rank.ts"))
      const outcomes = yield* Effect.timeout(Effect.scoped(run), "40 seconds")
      assert.deepStrictEqual(
        outcomes.map(({ _tag }) => _tag),
        ["Stopped", "Failed", "Stopped"]
      )
      const [, failed] = outcomes
      assert.isTrue(failed?._tag === "Failed" && failed.failure.message === "rank 1 was refused")
    })
  )
})

describe("a rank 0 that starts and opens no port", () => {
  it.live("is waited for in words, until when", () =>
    Effect.gen(function* () {
      const said = yield* Deferred.make<string>()
      const logger = Logger.make(({ message }) => void Deferred.doneUnsafe(said, Effect.succeed(String(message))))
      const run = Effect.scoped(runProcesses(spec, 2, silent, fileOf("../fixtures/portless-rank.ts")))
      const running = yield* Effect.forkChild(Effect.provide(run, Logger.layer([logger])))
      const text = yield* Effect.timeout(Deferred.await(said), "40 seconds")
      assert.match(text, /^Waited \d+ s for rank 0 to open a port; this fails in \d+ s\.$/)
      yield* Fiber.interrupt(running)
    })
  )
})

describe("a rank that gets a job description that it cannot read", () => {
  const decode = Schema.decodeUnknownSync(FromRank)

  it("says so and ends", { timeout: 60_000 }, async () => {
    const child = fork(fileOf("../../src/job/rankMain.ts"), ["rank", "1"], { stdio: "pipe", execArgv: [] })
    const said: Array<FromRank> = []
    child.on("message", (message) => {
      const told = decode(message)
      said.push(told)
      if (told._tag === "Started") child.send({ _tag: "Job", rank: "one" })
    })
    const code = await new Promise((resolve) => child.once("exit", resolve))
    assert.strictEqual(code, 1)
    const last = said.at(-1)
    assert.strictEqual(last?._tag, "Failed")
    if (last?._tag !== "Failed") return
    assert.strictEqual(last.failure.tag, "ModelError")
    assert.strictEqual(last.failure.reason, "InvalidJob")
    assert.include(last.failure.message, "cannot be read")
    assert.include(last.failure.message, "one release")
  })

  it("of a piece of work on a backend says so too", { timeout: 60_000 }, async () => {
    const child = fork(fileOf("../../src/backends/conformanceMain.ts"), ["rank", "1"], { stdio: "pipe", execArgv: [] })
    const said: Array<unknown> = []
    child.on("message", (message) => said.push(message))
    child.send({ rank: 0 })
    assert.strictEqual(await new Promise((resolve) => child.once("exit", resolve)), 1)
    assert.lengthOf(said, 1)
    assert.include(JSON.stringify(said), "cannot be read")
  })
})
