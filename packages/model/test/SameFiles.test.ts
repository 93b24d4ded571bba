// SPDX-License-Identifier: Apache-2.0
/** Ranks that opened different files under one path hear of it before they load anything. */
import { mkdtemp, rename, rm } from "node:fs/promises"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { writeSafetensors } from "../src/checkpoint/SafetensorsWriter.ts"
import { openModel } from "../src/openModel.ts"
import { agreeOnFiles, checkFilesUnchanged } from "../src/SameFiles.ts"

const scratchFolder = Effect.acquireRelease(
  Effect.promise(() => mkdtemp(join(tmpdir(), "same-files-"))),
  (folder) => Effect.promise(() => rm(folder, { recursive: true, force: true }))
)

const write = (file: string, value: number, length = 4) =>
  writeSafetensors(file, [{ name: "w", dtype: "uint8", shape: [length], data: new Uint8Array(length).fill(value) }])

/** What three ranks agree on, where `between` happens after the first two opened the model. */
const agreement = (folder: string, between: Effect.Effect<unknown, unknown>, hosts = ["a", "a", "a"]) =>
  Effect.gen(function* () {
    const file = join(folder, "model.safetensors")
    const models = [yield* openModel(file), yield* openModel(file)]
    yield* Effect.orDie(between)
    models.push(yield* openModel(file))
    const groups = yield* makeInProcessGroups(3, { deadline: Duration.seconds(10) })
    const agreeing = groups.map((group, rank) => Effect.result(agreeOnFiles(group, models[rank]!, hosts[rank]!)))
    return { models, results: yield* Effect.all(agreeing, { concurrency: "unbounded" }) }
  })

describe("ranks that open a checkpoint", () => {
  it.live("agree where it stays as it is, and where equal copies lie on other hosts", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      const [file, copy] = [join(folder, "model.safetensors"), join(folder, "copy")]
      yield* write(file, 1)
      const same = yield* agreement(folder, Effect.void)
      assert.isTrue(same.results.every(Result.isSuccess))
      yield* write(copy, 1)
      const copied = yield* agreement(
        folder,
        Effect.promise(() => rename(copy, file)),
        ["a", "a", "b"]
      )
      assert.isTrue(copied.results.every(Result.isSuccess))
    })
  )

  for (const [what, length] of [
    ["of the same shapes", 4],
    ["of other shapes", 8]
  ] as const) {
    it.live(`all fail where one opened a file ${what} that took the place of another`, () =>
      Effect.gen(function* () {
        const folder = yield* scratchFolder
        const [file, next] = [join(folder, "model.safetensors"), join(folder, "next")]
        yield* write(file, 1)
        yield* write(next, 2, length)
        const { models, results } = yield* agreement(
          folder,
          Effect.promise(() => rename(next, file))
        )
        for (const result of results) {
          assert.isTrue(Result.isFailure(result))
          if (Result.isFailure(result)) {
            assert.strictEqual(result.failure.reason._tag, "Different")
            assert.include(result.failure.message, "Ranks 0 and 2 opened different files")
          }
        }
        // The rank that read the old file knows that it is gone, too.
        assert.strictEqual((yield* Effect.flip(checkFilesUnchanged(models[0]!))).reason._tag, "Different")
        yield* checkFilesUnchanged(models[2]!)
      })
    )
  }
})
