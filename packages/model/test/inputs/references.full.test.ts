// SPDX-License-Identifier: Apache-2.0
/** What PyTorch, transformers and peft write here and now opens as the tensors that they had. */
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { pythonWith, runScript, withPython } from "@tensorferry/testing/machine/python"
import * as Effect from "effect/Effect"
import { openModel } from "../../src/openModel.ts"
import { scratchFolder } from "../checkpoint/checkpointSupport.ts"
import { assertSameAs } from "../support/sameModel.ts"

const torch = pythonWith("torch")
const transformers = pythonWith("torch", "transformers", "safetensors")
const peft = pythonWith("torch", "transformers", "peft")

const written = (python: string, script: string, ...args: ReadonlyArray<string>) =>
  Effect.tap(scratchFolder, (folder) =>
    Effect.promise(() =>
      runScript(python, new URL(`../${script}`, import.meta.url), ...args.map((arg) => (arg === "OUT" ? folder : arg)))
    )
  )

const limit = 300_000

describe("formats of the reference implementations", () => {
  it.live.skipIf(torch === undefined)(
    withPython(torch, "distributed checkpoints and files of torch.save, by PyTorch", "torch"),
    () =>
      Effect.gen(function* () {
        const folder = yield* written(torch!, "data/distributed/make.py", "OUT", "fsdp", "state", "bin")
        for (const kind of ["fsdp", "state", "bin"])
          yield* assertSameAs(join(folder, kind), join(folder, `${kind}.safetensors`))
      }),
    limit
  )

  it.live.skipIf(transformers === undefined)(
    withPython(transformers, "Mistral's own format is the model under published names", "transformers"),
    () =>
      Effect.gen(function* () {
        const folder = yield* written(transformers!, "fixtures/transformers_models.py", "mistral", "OUT")
        const model = yield* assertSameAs(join(folder, "native"), join(folder, "hf"))
        assert.strictEqual(model.config?.model_type, "mistral")
        assert.strictEqual(model.config?.num_key_value_heads, 2)
      }),
    limit
  )

  it.live.skipIf(peft === undefined)(
    withPython(peft, "adapters, by peft", "peft"),
    () =>
      Effect.gen(function* () {
        const folder = yield* written(peft!, "fixtures/transformers_models.py", "adapter", "OUT")
        for (const [kind, count] of [
          ["lora", 8],
          ["dora", 12]
        ] as const) {
          const model = yield* assertSameAs(join(folder, kind), join(folder, kind, "adapter_model.safetensors"))
          assert.strictEqual(model.tensors.length, count)
        }
        yield* Effect.scoped(openModel(join(folder, "lora")))
      }),
    limit
  )
})
