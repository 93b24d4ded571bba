// SPDX-License-Identifier: Apache-2.0
/**
 * Models of transformers through other layouts and back: from_pretrained opens what is written, and its logits are those of
 * the original, bit by bit.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync } from "node:fs"
import { join } from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import { pythonWith, runScript, withPython } from "@tensorferry/testing/machine/python"
import { endAll, run, scratch } from "../support/command.ts"

afterEach(endAll)

const python = pythonWith("torch", "transformers", "safetensors", "tokenizers")
const script = new URL("../../../model/test/fixtures/transformers_models.py", import.meta.url)

const succeed = async (...args: ReadonlyArray<string>) => {
  const ended = await run(args, { limit: 120_000 })
  assert.strictEqual(ended.code, 0, `${args.join(" ")}\n${ended.stdout}\n${ended.stderr}`)
}

describe("models of transformers", () => {
  it.skipIf(python === undefined)(
    withPython(python, "open with equal logits after tp=2,pp=2 and back", "transformers"),
    { timeout: 600_000 },
    async () => {
      using folder = scratch()
      const at = (...parts: ReadonlyArray<string>) => join(folder.path, ...parts)
      await runScript(python!, script, "families", at("from"))
      const names = readdirSync(at("from")).filter((name) => existsSync(at("from", name, "config.json")))
      assert.includeMembers(names, ["llama", "mixtral", "qwen3"])
      mkdirSync(at("cut"))
      mkdirSync(at("to"))
      for (const name of names) {
        await succeed("reshard", at("from", name), "--to", "tp=2,pp=2", "--out", at("cut", name))
        await succeed("reshard", at("cut", name), "--to", "tp=1", "--out", at("to", name), "--max-file-size", "100kB")
        const written = readdirSync(at("to", name)).sort()
        assert.includeMembers(written, ["config.json", "generation_config.json", "tokenizer.json"])
        assert.includeMembers(written, ["model.safetensors.index.json", "tensorferry.json"])
        assert.notInclude(written, "modeling_own.py")
        assert.notInclude(written, "training_args.bin")
        const files = written.filter((file) => file.endsWith(".safetensors"))
        assert.isAbove(files.length, 1, name)
        for (const file of files) {
          assert.match(file, /^model-\d{5}-of-\d{5}\.safetensors$/)
          assert.isBelow(statSync(at("to", name, file)).size, 110_000)
        }
      }
      await runScript(python!, script, "logits", at("to"))
      for (const name of names) {
        const [one, two] = [readFileSync(at("from", `${name}.logits`)), readFileSync(at("to", `${name}.logits`))]
        assert.isAbove(one.length, 1000)
        assert.strictEqual(Buffer.compare(one, two), 0, name)
      }
    }
  )
})
