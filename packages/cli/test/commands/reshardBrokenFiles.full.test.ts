// SPDX-License-Identifier: Apache-2.0
/**
 * Checkpoints that are damaged, incomplete or untrue: an error that names the file or the tensor, before any process
 * starts where possible.
 */
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import { fullRegion } from "@tensorferry/core/base/Region"
import { openModel } from "@tensorferry/model/openModel"
import * as Effect from "effect/Effect"
import {
  assertNothingRuns,
  endAll,
  failuresOf,
  rankProcess,
  run,
  scratch,
  start,
  temporaryNames
} from "../support/command.ts"
import { mnist, mnistRules } from "../support/models.ts"
import { cut, type ManifestJson, writeSharded } from "../support/sharded.ts"

afterEach(endAll)

const tensors = [
  { name: "cut", dtype: "float32", shape: [4, 3] },
  { name: "whole", dtype: "uint8", shape: [5] }
] as const

const replica = { name: "whole", dtype: "uint8", region: fullRegion([5]), data: Uint8Array.of(9, 8, 7, 6, 5) } as const

const files = cut("cut", "float32", [4, 3], 2).map((part) => [part, replica])

/** The reason for which a model does not open. */
const refusal = async (path: string) => {
  const error = await Effect.runPromise(Effect.flip(Effect.scoped(openModel(path))))
  assert.isNotEmpty(error.reason.remedy)
  return error.reason
}

const first = "rank-00000.safetensors"
const second = "rank-00001.safetensors"

interface Damage {
  readonly what: string
  readonly manifest?: (manifest: ManifestJson) => void
  readonly files?: (folder: string) => void
  readonly reason: string
  readonly file: string
  readonly paramName?: string
  readonly detail: RegExp
}

const manifestFile = "tensorferry.json"
const byManifest = (
  what: string,
  manifest: (manifest: ManifestJson) => void,
  detail: RegExp,
  paramName?: string,
  file = manifestFile
): Damage => ({
  what,
  manifest,
  reason: "InvalidManifest",
  file,
  detail,
  ...(paramName === undefined ? {} : { paramName })
})

const damages: ReadonlyArray<Damage> = [
  byManifest(
    "another format",
    (m) => {
      m.format = "x"
    },
    /format/
  ),
  byManifest(
    "a later version",
    (m) => {
      m.version = 3
    },
    /version/
  ),
  byManifest(
    "an unknown key",
    (m) => {
      m.layout.cp = 2
    },
    /cp/
  ),
  byManifest(
    "a layout of degree 0",
    (m) => {
      m.layout.tp = 0
    },
    /tp/
  ),
  byManifest(
    "a path out of the folder",
    (m) => {
      m.shards[0]!.file = "../x.safetensors"
    },
    /plain file name/
  ),
  byManifest(
    "an absolute path",
    (m) => {
      m.shards[0]!.file = "/etc/passwd"
    },
    /plain file name/
  ),
  byManifest(
    "one file twice",
    (m) => {
      m.shards[1]!.file = first
    },
    /Two shards name one file/
  ),
  byManifest("one tensor twice", (m) => void m.tensors.push({ ...m.tensors[0]! }), /Two tensors have one name/),
  byManifest(
    "a digest that is none",
    (m) => {
      m.shards[0]!.tensors[0]!.digest = "abc"
    },
    /digest/
  ),
  byManifest("a missing shard", (m) => void m.shards.pop(), /written|covered|element/i, "cut"),
  byManifest(
    "overlapping shards",
    (m) => {
      m.shards[1]!.tensors[0]!.pieces[0]!.global = [
        [1, 3],
        [0, 3]
      ]
    },
    /twice|once|element/i,
    "cut"
  ),
  byManifest(
    "a gap between shards",
    (m) => {
      const last = [
        [3, 4],
        [0, 3]
      ]
      const held = [
        [0, 1],
        [0, 3]
      ]
      m.shards[1]!.tensors[0]!.pieces = [{ local: held, global: last }]
    },
    /element/i,
    "cut"
  ),
  byManifest(
    "a region outside",
    (m) => {
      m.shards[1]!.tensors[0]!.pieces[0]!.global = [
        [2, 5],
        [0, 3]
      ]
    },
    /outside/,
    "cut"
  ),
  byManifest(
    "a reversed region",
    (m) => {
      m.shards[1]!.tensors[0]!.pieces[0]!.global = [
        [4, 2],
        [0, 3]
      ]
    },
    /start must not exceed stop/
  ),
  byManifest(
    "a region of too few dimensions",
    (m) => {
      m.shards[1]!.tensors[0]!.pieces[0]!.global = [[2, 4]]
    },
    /outside/,
    "cut"
  ),
  byManifest(
    "a piece outside what the file holds",
    (m) => {
      m.shards[1]!.tensors[0]!.pieces[0]!.local = [
        [1, 3],
        [0, 3]
      ]
    },
    /outside/,
    "cut"
  ),
  byManifest(
    "a piece of another shape in the file",
    (m) => {
      m.shards[1]!.tensors[0]!.pieces[0]!.local = [
        [0, 1],
        [0, 3]
      ]
    },
    /another shape/,
    "cut"
  ),
  byManifest(
    "two pieces in one place of a file",
    (m) => void m.shards[1]!.tensors[0]!.pieces.push({ ...m.shards[1]!.tensors[0]!.pieces[0]! }),
    /overlap/,
    "cut"
  ),
  byManifest(
    "an empty piece",
    (m) => {
      const nothing = [
        [0, 0],
        [0, 3]
      ]
      m.shards[1]!.tensors[0]!.pieces.push({ local: nothing, global: nothing })
    },
    /empty/,
    "cut"
  ),
  byManifest(
    "more rows in a file than it holds",
    (m) => {
      m.shards[1]!.tensors[0]!.shape = [7, 3]
    },
    /7,3/,
    "cut",
    second
  ),
  byManifest(
    "a local shape beyond 2^53",
    (m) => {
      m.shards[1]!.tensors[0]!.shape = [2 ** 52, 2 ** 52]
    },
    /exceeds/,
    "cut"
  ),
  byManifest(
    "the version before",
    (m) => {
      m.version = 1
    },
    /version/
  ),
  byManifest(
    "a larger shape",
    (m) => {
      m.tensors[0]!.shape = [5, 3]
    },
    /element/i,
    "cut"
  ),
  byManifest(
    "a shape beyond 2^53",
    (m) => {
      m.tensors[0]!.shape = [2 ** 52, 2 ** 52]
    },
    /exceeds/,
    "cut"
  ),
  byManifest("a tensor that is not listed", (m) => void m.tensors.pop(), /does not list/, "whole"),
  byManifest(
    "a tensor that no file holds",
    (m) => void m.tensors.push({ name: "more", dtype: "int8", shape: [1] }),
    /element/i,
    "more"
  ),
  byManifest(
    "a type that is none",
    (m) => {
      m.tensors[0]!.dtype = "float31"
    },
    /dtype/
  ),
  byManifest(
    "another type",
    (m) => {
      m.tensors[0]!.dtype = "int32"
    },
    /float32.*int32/,
    "cut",
    first
  ),
  byManifest(
    "one file holding both halves",
    (m) => {
      m.shards[0]!.tensors.push({ ...m.shards[1]!.tensors[0]! })
      m.shards.pop()
    },
    /twice/,
    "cut"
  ),
  byManifest(
    "replicas of different digests",
    (m) => {
      m.shards[1]!.tensors[1]!.digest = "0".repeat(64)
    },
    /digest/,
    "whole"
  ),
  {
    what: "text that is no JSON",
    files: (folder) => writeFileSync(join(folder, manifestFile), "{"),
    reason: "InvalidManifest",
    file: manifestFile,
    detail: /JSON/
  },
  {
    what: "a shard file that is missing",
    files: (folder) => rmSync(join(folder, second)),
    reason: "NotFound",
    file: second,
    detail: /ENOENT/
  },
  {
    what: "a shard file that is a folder",
    files: (folder) => {
      rmSync(join(folder, second))
      mkdirSync(join(folder, second))
    },
    reason: "Unreadable",
    file: second,
    detail: /regular file/
  },
  {
    what: "a shard file that ends early",
    files: (folder) => truncateSync(join(folder, second), readFileSync(join(folder, second)).length - 1),
    reason: "Truncated",
    file: second,
    detail: /bytes/
  },
  {
    what: "an empty shard file",
    files: (folder) => truncateSync(join(folder, second), 0),
    reason: "Truncated",
    file: second,
    detail: /0 bytes/
  },
  {
    what: "a header of nonsense",
    files: (folder) => writeFileSync(join(folder, second), Buffer.alloc(200, 0xfb)),
    reason: "InvalidHeader",
    file: second,
    detail: /./
  },
  {
    what: "a shard of another shape",
    files: (folder) => cpSync(join(folder, "third"), join(folder, second)),
    reason: "InvalidManifest",
    file: second,
    paramName: "cut",
    detail: /float32\[1,3\].*float32\[2,3\]/
  }
]

describe("a folder of shards", () => {
  it("as it was written opens", async () => {
    using folder = scratch()
    await writeSharded(folder.path, tensors, files)
    const read = await Effect.runPromise(
      Effect.scoped(
        Effect.gen(function* () {
          const model = yield* openModel(folder.path)
          yield* model.checkFiles
          const bytes = new Uint8Array(48)
          yield* model.readRegion("cut", fullRegion([4, 3]), bytes)
          return bytes
        })
      )
    )
    assert.deepStrictEqual([...read], [...Array(24).fill(1), ...Array(24).fill(2)])
  })

  for (const damage of damages) {
    it(damage.what, async () => {
      using folder = scratch()
      await writeSharded(folder.path, tensors, files, damage.manifest)
      // A file of one row, for the damage that needs one.
      using other = scratch()
      await writeSharded(
        other.path,
        [tensors[0]],
        cut("cut", "float32", [4, 3], 4).map((part) => [part, replica])
      )
      cpSync(join(other.path, first), join(folder.path, "third"))
      damage.files?.(folder.path)
      const reason = await refusal(folder.path)
      assert.strictEqual(reason._tag, damage.reason, reason.detail)
      assert.strictEqual(reason.file, join(folder.path, damage.file), reason.detail)
      assert.strictEqual(reason.paramName, damage.paramName, reason.detail)
      assert.match(reason.detail, damage.detail)
    })
  }

  it("refuses damage before any process starts", async () => {
    using folder = scratch()
    await writeSharded(folder.path, tensors, files, (m) => void m.shards.pop())
    const ended = await run(["reshard", folder.path, "--to", "tp=1", "--json"])
    assert.strictEqual(ended.code, 1)
    const failures = failuresOf(ended)
    assert.lengthOf(failures, 1)
    assert.isUndefined(failures[0]!.rank)
    assert.strictEqual(failures[0]!.fields?.paramName, "cut")
  })
})

describe("shards that were changed after they were written", () => {
  const flip = (file: string, at: number): void => {
    const bytes = readFileSync(file)
    bytes[bytes.length - at]! ^= 0x10
    writeFileSync(file, bytes)
  }
  // Bytes at the end of a file belong to its last tensor.
  const damage: ReadonlyArray<readonly [what: string, change: (folder: string) => void, name: string, ranks: number]> =
    [
      ["one byte", (folder) => flip(join(folder, second), 6), "cut", 1],
      [
        "two files that changed places",
        (folder) => {
          const [a, b] = [readFileSync(join(folder, first)), readFileSync(join(folder, second))]
          writeFileSync(join(folder, first), b)
          writeFileSync(join(folder, second), a)
        },
        "cut",
        2
      ]
    ]
  for (const [what, change, name, ranks] of damage) {
    it(`${what}: the ranks that read them refuse them, and verify says so`, async () => {
      using folder = scratch()
      const [shards, original, out] = ["shards", "original", "out"].map((part) => join(folder.path, part)) as [
        string,
        string,
        string
      ]
      mkdirSync(shards)
      mkdirSync(original)
      const parts = cut("cut", "float32", [4, 3], 2).map((part) => [part])
      await writeSharded(shards, [tensors[0]], parts)
      await writeSharded(original, [tensors[0]], parts)
      change(shards)
      const command = start(["reshard", shards, "--to", "tp=1", "--out", out, "--json"])
      const ended = await command.ended
      assert.strictEqual(ended.code, 1)
      const untrue = failuresOf(ended).filter((failure) => failure.reason === "InvalidManifest")
      assert.isNotEmpty(untrue)
      assert.isAtMost(untrue.length, ranks)
      for (const failure of untrue) {
        assert.strictEqual(failure.fields?.paramName, name)
        assert.include(failure.message, "digest")
      }
      await assertNothingRuns(command)
      assert.deepStrictEqual(readdirSync(folder.path).sort(), ["original", "shards"])

      const verified = await run(["verify", shards, original, "--json"])
      assert.strictEqual(verified.code, 1)
      const verdict = JSON.parse(verified.stdout) as { ok: boolean; tensors: Array<{ name: string; equal: boolean }> }
      assert.isFalse(verdict.ok)
    })
  }

  it("a replica that no other rank reads: verify finds it", async () => {
    using folder = scratch()
    const [shards, original] = [join(folder.path, "shards"), join(folder.path, "original")]
    mkdirSync(shards)
    mkdirSync(original)
    const replicas = [[replica], [replica]]
    await writeSharded(shards, [tensors[1]], replicas)
    await writeSharded(original, [tensors[1]], replicas)
    flip(join(shards, second), 1)
    const verified = await run(["verify", shards, original, "--json"])
    assert.strictEqual(verified.code, 1)
    const [failure] = failuresOf(verified)
    assert.strictEqual(failure!.fields?.file, join(shards, second))
    assert.include(failure!.fields?.paramName, "whole")
  })

  it("a digest edited by hand", async () => {
    using folder = scratch()
    await writeSharded(folder.path, tensors, files, (m) => {
      m.shards[0]!.tensors[0]!.digest = "0".repeat(64)
    })
    const ended = await run(["reshard", folder.path, "--to", "tp=1", "--json"])
    assert.strictEqual(ended.code, 1)
    const [failure] = failuresOf(ended)
    assert.strictEqual(failure!.reason, "InvalidManifest")
    assert.strictEqual(failure!.fields?.paramName, "cut")
  })
})

describe("a plain checkpoint", () => {
  const header = (text: string, data = 0) => {
    const bytes = Buffer.alloc(8 + text.length + data)
    bytes.writeBigUInt64LE(BigInt(text.length))
    bytes.write(text, 8)
    return bytes
  }
  const cases: ReadonlyArray<readonly [what: string, bytes: Uint8Array, reason: string, paramName?: string]> = [
    ["a length near 2^64", Buffer.concat([Buffer.from("fbffffffffffffff", "hex"), Buffer.from("{}")]), "InvalidHeader"],
    [
      "data shorter than its shape",
      header('{"t":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}}', 4),
      "TensorInvalid",
      "t"
    ],
    ["a header that is a list", header("[]"), "InvalidHeader"],
    ["padding with NUL", header('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}\0\0\0', 1), "InvalidHeader"]
  ]
  for (const [what, bytes, reason, paramName] of cases) {
    it(what, async () => {
      using folder = scratch()
      const file = join(folder.path, "model.safetensors")
      writeFileSync(file, bytes)
      const found = await refusal(file)
      assert.strictEqual(found._tag, reason, found.detail)
      assert.strictEqual(found.file, file)
      assert.strictEqual(found.paramName, paramName)
    })
  }

  it("an index that leads out of the folder, or to a file that is missing", async () => {
    using folder = scratch()
    const index = (target: string) =>
      writeFileSync(
        join(folder.path, "model.safetensors.index.json"),
        JSON.stringify({ metadata: {}, weight_map: { t: target } })
      )
    index("../secret.safetensors")
    const escape = await refusal(folder.path)
    assert.strictEqual(escape._tag, "UnsafePath")
    assert.strictEqual(escape.paramName, "t")
    index("model-00001-of-00002.safetensors")
    const missing = await refusal(folder.path)
    assert.strictEqual(missing._tag, "NotFound")
    assert.strictEqual(missing.file, join(folder.path, "model-00001-of-00002.safetensors"))
  })

  it("that vanishes after the ranks were started: every rank names it", async () => {
    using folder = scratch()
    const file = join(folder.path, "model.safetensors")
    cpSync(mnist, file)
    const out = join(folder.path, "out")
    const command = start(["reshard", file, "--to", "tp=2", "--rules", mnistRules, "--out", out, "--json"])
    await rankProcess(command, 0)
    rmSync(file)
    const ended = await command.ended
    assert.strictEqual(ended.code, 1)
    const failures = failuresOf(ended).filter((failure) => failure.reason === "NotFound")
    assert.isNotEmpty(failures)
    for (const failure of failures) assert.strictEqual(failure.fields?.file, file)
    await assertNothingRuns(command)
    assert.deepStrictEqual(temporaryNames(folder.path), [])
    assert.deepStrictEqual(readdirSync(folder.path), [])
  })
})
