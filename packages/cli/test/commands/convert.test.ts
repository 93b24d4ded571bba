// SPDX-License-Identifier: Apache-2.0
/** `tensorferry convert`: to the files of another system's ranks and back, and what it refuses. */
import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { openModel } from "@tensorferry/model/openModel"
import * as Effect from "effect/Effect"
import { failuresOf, scratch, temporaryNames } from "../support/command.ts"
import { runHere } from "../support/here.ts"
import { pattern } from "../support/models.ts"
import { readSafetensors, safetensorsBytes } from "../support/safetensorsFile.ts"
import { smallModel, writeSmallModel } from "../support/smallModels.ts"

const convert = async (...args: ReadonlyArray<string>) => {
  const ended = await runHere(["convert", ...args, "--json"])
  assert.strictEqual(ended.code, 0, ended.stdout + ended.stderr)
  return JSON.parse(ended.stdout) as {
    readonly files: ReadonlyArray<{ readonly file: string; readonly rank: number; readonly bytes: number }>
    readonly copied: ReadonlyArray<string>
  }
}

const refusalOf = async (...args: ReadonlyArray<string>) => {
  const ended = await runHere(["convert", ...args, "--json"])
  assert.notStrictEqual(ended.code, 0)
  return { code: ended.code, ...failuresOf(ended)[0]! }
}

const read = (path: string) =>
  Effect.runPromise(
    Effect.scoped(
      Effect.gen(function* () {
        const model = yield* openModel(path)
        const found = new Map<string, { readonly shape: ReadonlyArray<number>; readonly bytes: Uint8Array }>()
        for (const { name, shape } of model.tensors) {
          const bytes = new Uint8Array(shape.reduce((product, length) => product * length, 2))
          yield* model.readRegion(
            name,
            shape.map((length) => [0, length] as const),
            bytes
          )
          found.set(name, { shape, bytes })
        }
        return found
      })
    )
  )

const fileOf = (folder: string): Buffer => readFileSync(join(folder, "model.safetensors"))

const sides: ReadonlyArray<readonly [type: string, side: string, ranks: number]> = [
  ["llama", "vllm:tp=4", 4],
  ["llama", "megatron:tp=2,pp=2", 4],
  ["qwen3_moe", "vllm:tp=2,dp=2,ep=4", 4],
  ["qwen3_moe", "megatron-local:tp=2,ep=2", 2],
  ["gpt_oss", "vllm:tp=2", 2],
  ["gpt_oss", "megatron:tp=2,ep=2", 2],
  ["llama", "fsdp2:tp=3", 3],
  // More stages than layers: ranks that hold nothing have files all the same.
  ["llama", "vllm:pp=4", 4]
]

describe("convert", () => {
  for (const [type, side, ranks] of sides) {
    it(`${type} to ${side} and back is the same file, byte by byte`, async () => {
      using folder = scratch()
      const model = await writeSmallModel(join(folder.path, "hf"), type)
      const [out, back] = [join(folder.path, "out"), join(folder.path, "back")]
      const { files, copied } = await convert(model, "--to", side, "--out", out)
      assert.deepStrictEqual(
        files.map(({ file }) => file),
        Array.from({ length: ranks }, (_, rank) => `model-rank-${rank}-part-0.safetensors`)
      )
      assert.deepStrictEqual(copied, ["config.json"])
      assert.deepStrictEqual(readdirSync(out).sort(), [
        "config.json",
        ...files.map(({ file }) => file),
        "tensorferry-names.json"
      ])
      // The names are said by a prefix, or by --from alone.
      await convert(out, "--from", side, "--like", model, "--to", "hf:", "--out", back)
      assert.isTrue(fileOf(back).equals(fileOf(model)))
      assert.isTrue(readFileSync(join(back, "config.json")).equals(readFileSync(join(model, "config.json"))))
      assert.deepStrictEqual(temporaryNames(folder.path), [])
    })
  }

  it("files of ranks say themselves what they are, by whatever rules they were written", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "qwen3_moe")
    const map = join(folder.path, "map.json")
    const rule = {
      name: "{owner...}.kv.weight",
      from: { concat: ["{owner...}.v_proj.weight", "{owner...}.k_proj.weight"] }
    }
    writeFileSync(map, JSON.stringify({ rules: [rule], others: "keep" }))
    const sides = [
      ["vllm:tp=2", []],
      ["megatron:tp=2,ep=2,pp=2", []],
      ["hf:tp=2,pp=2", ["--map", map]]
    ] as const
    for (const [at, [side, more]] of sides.entries()) {
      const [out, back] = [join(folder.path, `out${at}`), join(folder.path, `back${at}`)]
      await convert(model, "--to", side, ...more, "--out", out)
      assert.strictEqual((await runHere(["verify", out, model])).code, 0, side)
      await convert(at === 0 ? `vllm:${out}` : out, "--to", "hf:", "--out", back)
      assert.isTrue(fileOf(back).equals(fileOf(model)), side)
      const plan = await runHere(["plan", out, "--to", "megatron:tp=2"])
      assert.strictEqual(plan.code, 0, plan.stderr)
    }
  })

  for (const type of ["llama", "qwen2", "qwen3", "qwen3_moe"]) {
    it(`${type}: files of a trainer or an engine, with the config beside them, need nothing else`, async () => {
      using folder = scratch()
      const model = await writeSmallModel(join(folder.path, "hf"), type)
      const at = (name: string) => join(folder.path, name)
      await convert(model, "--to", "vllm:tp=2", "--out", at("engine"))
      await convert(model, "--to", "megatron:", "--out", at("ranks"))
      rmSync(join(at("engine"), "tensorferry-names.json"))
      mkdirSync(at("trainer"))
      copyFileSync(join(at("ranks"), "model-rank-0-part-0.safetensors"), join(at("trainer"), "trained.safetensors"))
      copyFileSync(join(model, "config.json"), join(at("trainer"), "config.json"))
      for (const [convention, name] of [
        ["vllm", "engine"],
        ["megatron", "trainer"]
      ] as const) {
        await convert(`${convention}:${at(name)}`, "--to", "hf:", "--out", at(`from ${name}`))
        assert.isTrue(fileOf(at(`from ${name}`)).equals(fileOf(model)), name)
        assert.deepStrictEqual(readdirSync(at(`from ${name}`)).sort(), ["config.json", "model.safetensors"])
      }
    })
  }

  it("a note that is none is refused by its name", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "llama")
    const out = join(folder.path, "out")
    await convert(model, "--to", "vllm:tp=2", "--out", out)
    writeFileSync(join(out, "tensorferry-names.json"), `{"format": "tensorferry.names", "version": 2}`)
    const { message } = await refusalOf(out, "--to", "hf:", "--out", join(folder.path, "back"))
    assert.match(message, /tensorferry-names\.json.*no note of names of this version/)
  })

  it("a rank of an engine has its heads of query, key and value behind each other", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "llama")
    const out = join(folder.path, "out")
    await convert(model, "--to", "vllm:tp=2", "--out", out)
    const names = Object.keys(smallModel("llama").tensors)
    const rows = (name: string, rank: number): Uint8Array => {
      const [height, width] = smallModel("llama").tensors[name]!
      const bytes = pattern(height! * width! * 2, names.indexOf(name))
      return bytes.subarray((rank * bytes.length) / 2, ((rank + 1) * bytes.length) / 2)
    }
    for (const rank of [0, 1]) {
      const found = await read(join(out, `model-rank-${rank}-part-0.safetensors`))
      const owner = "model.layers.1.self_attn"
      const expected = ["q_proj", "k_proj", "v_proj"].map((part) => rows(`${owner}.${part}.weight`, rank))
      assert.isTrue(Buffer.concat(expected).equals(found.get(`${owner}.qkv_proj.weight`)!.bytes), `rank ${rank}`)
    }
  })

  it("names of one whole rank go into files of a stated size, with an index", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "llama")
    const out = join(folder.path, "out")
    const { files } = await convert(model, "--to", "hf:", "--max-file-size", "40KB", "--no-copy-metadata", "--out", out)
    assert.isAbove(files.length, 2)
    assert.deepStrictEqual(
      readdirSync(out).sort(),
      [...files.map(({ file }) => file), "model.safetensors.index.json"].sort()
    )
    assert.strictEqual((await runHere(["verify", out, model])).code, 0)
  })

  it("a trainer's whole tensors become a published checkpoint, with the small files of --like", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "llama")
    const [out, whole, back] = ["out", "whole", "back"].map((name) => join(folder.path, name)) as [
      string,
      string,
      string
    ]
    await convert(model, "--to", "megatron:", "--out", out)
    mkdirSync(whole)
    copyFileSync(join(out, "model-rank-0-part-0.safetensors"), join(whole, "trained.safetensors"))
    const { copied } = await convert(`megatron:${whole}`, "--like", model, "--to", "hf:", "--out", back)
    assert.deepStrictEqual(copied, ["config.json"])
    assert.isTrue(fileOf(back).equals(fileOf(model)))
  })

  it("a trainer's padding of the vocabulary is left out, however long it is", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "llama")
    const at = (name: string) => join(folder.path, name)
    await convert(model, "--to", "megatron:", "--out", at("ranks"))
    const padded = [...readSafetensors(join(at("ranks"), "model-rank-0-part-0.safetensors")).values()].map((tensor) => {
      if (!["embedding.word_embeddings.weight", "output_layer.weight"].includes(tensor.name)) return tensor
      const [rows, width] = tensor.shape as [number, number]
      const bytes = Buffer.alloc((rows + 13) * width * 2, 0xa5)
      bytes.set(tensor.bytes)
      return { ...tensor, shape: [rows + 13, width], bytes }
    })
    mkdirSync(at("trainer"))
    writeFileSync(join(at("trainer"), "model.safetensors"), safetensorsBytes(padded))
    copyFileSync(join(model, "config.json"), join(at("trainer"), "config.json"))
    await convert(`megatron:${at("trainer")}`, "--like", model, "--to", "hf:", "--out", at("back"))
    assert.isTrue(fileOf(at("back")).equals(fileOf(model)))
    await convert(`megatron:${at("trainer")}`, "--to", "hf:", "--out", at("by config"))
    assert.isTrue(fileOf(at("by config")).equals(fileOf(model)))
  })

  it("a head that is stored although it is tied is held once, and comes back", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "llama")
    const file = join(model, "model.safetensors")
    const tensors = readSafetensors(file)
    const { bytes } = tensors.get("model.embed_tokens.weight")!
    const tied = [...tensors.values()].map((one) => (one.name === "lm_head.weight" ? { ...one, bytes } : one))
    writeFileSync(file, safetensorsBytes(tied))
    const config = JSON.parse(readFileSync(join(model, "config.json"), "utf8"))
    writeFileSync(join(model, "config.json"), JSON.stringify({ ...config, tie_word_embeddings: true }))
    for (const [at, side] of ["vllm:pp=2", "megatron:pp=2", "transformers:pp=2"].entries()) {
      const [out, back] = [join(folder.path, `out${at}`), join(folder.path, `back${at}`)]
      await convert(model, "--to", side, "--out", out)
      const held = [0, 1].flatMap((rank) => [
        ...readSafetensors(join(out, `model-rank-${rank}-part-0.safetensors`)).keys()
      ])
      assert.notInclude(held, "lm_head.weight")
      await convert(out, "--to", "hf:", "--out", back)
      assert.strictEqual((await runHere(["verify", back, model])).code, 0, side)
    }
  })

  it("rules of a file join tensors as they say", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "llama")
    const [map, out] = [join(folder.path, "map.yaml"), join(folder.path, "out")]
    writeFileSync(
      map,
      `rules:
  - name: "{owner...}.kv.weight"
    from: { concat: ["{owner...}.k_proj.weight", "{owner...}.v_proj.weight"] }
  - ignore: lm_head.weight
others: keep
`
    )
    await convert(model, "--to", "tp=1", "--map", map, "--out", out)
    const [found, given] = [await read(out), await read(model)]
    const owner = "model.layers.0.self_attn"
    assert.isTrue(
      Buffer.concat(["k_proj", "v_proj"].map((part) => given.get(`${owner}.${part}.weight`)!.bytes)).equals(
        found.get(`${owner}.kv.weight`)!.bytes
      )
    )
    assert.isFalse(found.has("lm_head.weight"))
    assert.isTrue(found.has(`${owner}.q_proj.weight`))
  })

  it("prints what was written, and where", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "llama")
    const { code, stdout } = await runHere(["convert", model, "--to", "vllm:tp=2", "--out", join(folder.path, "out")])
    assert.strictEqual(code, 0)
    assert.match(stdout, /^hf:tp=1 → vllm:tp=2, \d+ tensors of /)
    assert.match(stdout, /model-rank-1-part-0\.safetensors +\d+ +[\d.]+ KiB/)
    assert.include(stdout, `written: ${join(folder.path, "out")}`)
  })
})

describe("convert refuses", () => {
  it("a convention that nobody knows, with those that there are", async () => {
    const { code, stderr } = await runHere(["convert", "model", "--to", "vlm:tp=2", "--out", "out"])
    assert.strictEqual(code, 2)
    assert.match(stderr, /fsdp2, fsdp2-hf, hf, megatron, megatron-local, sglang, transformers, vllm/)
  })

  it("degrees without a name, two names for one side, and an output that holds something", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "llama")
    const out = ["--out", join(folder.path, "out")]
    const plain = await refusalOf(model, "--to", "tp=2", ...out)
    assert.include(plain.message, "--to vllm:tp=8")
    const twice = await refusalOf(`megatron:${model}`, "--from", "vllm:tp=2", "--to", "hf:", ...out)
    assert.include(twice.message, "CHECKPOINT has the names of megatron, --from those of vllm.")
    assert.deepStrictEqual([plain.code, twice.code], [2, 2])
    const taken = await refusalOf(model, "--to", "hf:", "--out", model)
    assert.deepStrictEqual([taken.code, taken.reason], [1, "OutputExists"])
  })

  it("another system's files without --like, with other ranks, or of another model", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "llama")
    const other = await writeSmallModel(join(folder.path, "other"), "qwen3")
    const ranks = join(folder.path, "ranks")
    await convert(model, "--to", "vllm:tp=2", "--out", ranks)
    const noted = await refusalOf(
      `vllm:${ranks}`,
      "--from",
      "vllm:tp=4",
      "--to",
      "hf:",
      "--out",
      join(folder.path, "o")
    )
    assert.include(noted.message, "The folder holds vllm:tp=2")
    const foreign = await refusalOf(`sglang:${ranks}`, "--to", "hf:", "--out", join(folder.path, "o"))
    assert.include(foreign.message, "The folder holds vllm:tp=2")
    for (const name of ["tensorferry-names.json", "config.json"]) rmSync(join(ranks, name))
    const out = ["--to", "hf:", "--out", join(folder.path, "out")]
    const alone = await refusalOf(`vllm:${ranks}`, "--from", "vllm:tp=2", ...out)
    assert.deepStrictEqual([alone.code, alone.reason], [2, "InvalidUsage"])
    assert.include(alone.message, "--like")
    const count = await refusalOf(`vllm:${ranks}`, "--from", "tp=4", "--like", model, ...out)
    assert.include(count.message, "It holds files of 2 ranks, 4 are stated.")
    const degrees = await refusalOf(`vllm:${ranks}`, "--from", "vllm:pp=2", "--like", model, ...out)
    assert.deepStrictEqual([degrees.tag, degrees.reason], ["MappingError", "shape_mismatch"])
    const family = await refusalOf(`vllm:${ranks}`, "--from", "vllm:tp=2", "--like", other, ...out)
    assert.deepStrictEqual([family.tag, family.reason], ["MappingError", "missing_source"])
    assert.match(family.message, /--like names the same model/)
    assert.deepStrictEqual(readdirSync(folder.path).sort(), ["hf", "other", "ranks"])
  })

  it("a family that a convention was not held against, with --map as the remedy", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "jamba")
    const refused = await refusalOf(model, "--to", "vllm:tp=2", "--out", join(folder.path, "out"))
    assert.deepStrictEqual([refused.tag, refused.reason], ["MappingError", "unsupported"])
    assert.match(refused.message, /jamba.*--map FILE/)
  })

  it("a model for images: systems put its language model below a name of its own", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "qwen2_5_vl")
    const refused = await refusalOf(model, "--to", "vllm:tp=2", "--out", join(folder.path, "out"))
    assert.deepStrictEqual([refused.tag, refused.reason], ["MappingError", "unsupported"])
    assert.include(refused.message, "How vllm names what is more than a language model is not known here.")
  })

  it("a stored head that is not the embedding to which the config ties it", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "llama", { tie_word_embeddings: true })
    const refused = await refusalOf(model, "--to", "vllm:tp=2", "--out", join(folder.path, "out"))
    assert.deepStrictEqual([refused.tag, refused.reason], ["MappingError", "conflicting_alias"])
    assert.include(refused.message, "lm_head.weight")
    assert.deepStrictEqual(readdirSync(folder.path), ["hf"])
    // The checkpoint's own names keep both.
    await convert(model, "--to", "hf:", "--out", join(folder.path, "out"))
  })

  it("expert degrees where every rank has its rows of every tensor", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "qwen3_moe")
    const refused = await refusalOf(model, "--to", "fsdp2-hf:tp=2,dp=2,ep=4", "--out", join(folder.path, "out"))
    assert.deepStrictEqual([refused.tag, refused.reason], ["MappingError", "unsupported"])
    assert.include(refused.message, "Leave ep and etp out.")
  })

  const rules: ReadonlyArray<readonly [what: string, text: string, said: RegExp]> = [
    ["that is no mapping", "rules: [{ name: a, form: b }]\nothers: keep\n", /InvalidRules.*map\.yaml/],
    ["whose tensor is not there", 'rules: [{ name: a, from: "b.weight" }]\nothers: refuse\n', /unexpected_source/],
    [
      "that takes half of what it joins",
      'rules: [{ name: "{o...}.kv", from: { concat: ["{o...}.k_proj.weight", "{o...}.k_proj.bias"] } }]\nothers: keep\n',
      /missing_source .*by rule \{o\.\.\.\}\.kv/
    ],
    [
      "whose lengths do not divide",
      'rules: [{ name: "{o...}.q", from: { split: "{o...}.q_proj.weight", dim: 0, inner: 7 } }]\nothers: keep\n',
      /not_divisible .*by rule \{o\.\.\.\}\.q.*64 does not divide by 7/
    ],
    [
      "of which two make one tensor",
      'rules: [{ name: "{o...}.a", from: "{o...}.q_proj.weight", also: true }, { name: "{o...}.a", from: "{o...}.k_proj.weight" }]\nothers: keep\n',
      /written_twice .*layers\.0\.self_attn\.a by rule \{o\.\.\.\}\.a.*makes it too/
    ],
    [
      "that takes a part that is not there",
      'rules: [{ name: "{o...}.a", from: { part: "{o...}.q_proj.weight", index: 2, lengths: [1, 1] } }]\nothers: keep\n',
      /invalid_rule .*2 parts, numbered from 0, and no part 2/
    ]
  ]
  for (const [what, text, said] of rules) {
    it(`a file of rules ${what}, by the rule`, async () => {
      using folder = scratch()
      const model = await writeSmallModel(join(folder.path, "hf"), "llama")
      const map = join(folder.path, "map.yaml")
      writeFileSync(map, text)
      const refused = await refusalOf(model, "--to", "tp=1", "--map", map, "--out", join(folder.path, "out"))
      assert.match(refused.message, said)
      assert.deepStrictEqual(readdirSync(folder.path).sort(), ["hf", "map.yaml"])
    })
  }
})
