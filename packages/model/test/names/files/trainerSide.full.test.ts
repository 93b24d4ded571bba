// SPDX-License-Identifier: Apache-2.0
/** What torch.save writes of a run's arguments here and now is read as they were, and nothing in it is executed. */
import { copyFileSync, existsSync, mkdirSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { pythonWith, runScript, withPython } from "@tensorferry/testing/machine/python"
import * as Effect from "effect/Effect"
import { readTrainerArgs } from "../../../src/torch/MegatronArgs.ts"
import { scratchFolder } from "../../checkpoint/checkpointSupport.ts"

const python = pythonWith("torch")

describe("arguments of a run, by PyTorch", () => {
  it.live.skipIf(python === undefined)(
    withPython(python, "are the same out of a Namespace, a dict, and a file that would open another", "torch"),
    () =>
      Effect.gen(function* () {
        const folder = yield* scratchFolder
        yield* Effect.promise(() =>
          runScript(python!, new URL("../../fixtures/trainer_notes.py", import.meta.url), folder)
        )
        const read = Effect.fnUntraced(function* (name: string) {
          const own = join(folder, name)
          mkdirSync(own)
          copyFileSync(join(folder, `${name}.pt`), join(own, "common.pt"))
          return yield* readTrainerArgs(own)
        })
        const args = yield* read("args")
        assert.strictEqual(args!.get("tensor_model_parallel_size"), 4)
        assert.strictEqual(args!.get("big"), 2 ** 40)
        for (const name of ["dict", "calls"]) assert.deepStrictEqual(yield* read(name), args, name)
        assert.isUndefined(yield* read("none"))
        assert.isFalse(existsSync(join(folder, "executed")))
      }),
    300_000
  )
})
