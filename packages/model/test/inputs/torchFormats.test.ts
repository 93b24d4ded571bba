// SPDX-License-Identifier: Apache-2.0
/** Checkpoints that PyTorch wrote (data/distributed/make.py) open as the tensors that it wrote, bit by bit. */
import { cp, readFile, rm, truncate, writeFile } from "node:fs/promises"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { CheckpointError } from "../../src/checkpoint/CheckpointError.ts"
import { openInput } from "../../src/inputs/openInput.ts"
import { openModel } from "../../src/openModel.ts"
import { parseDistributedMetadata } from "../../src/torch/DistributedMetadata.ts"
import { expectReason, scratchFolder } from "../checkpoint/checkpointSupport.ts"
import { assertSameAs, recorded } from "../support/sameModel.ts"

/** A copy of a recorded folder that a test may damage. */
const copyOf = (name: string) =>
  Effect.tap(scratchFolder, (folder) => Effect.promise(() => cp(recorded(name), folder, { recursive: true })))

const refused = (path: string, tag: CheckpointError["reason"]["_tag"], parameter?: string) =>
  Effect.gen(function* () {
    const error = yield* Effect.flip(Effect.scoped(openInput(path)))
    expectReason(error, tag, parameter)
    return error
  })

/** Another text of the same length in place of each occurrence. */
const replaceIn = (file: string, from: string, to: string) =>
  Effect.promise(async () => {
    assert.strictEqual(from.length, to.length)
    const text = (await readFile(file)).toString("latin1")
    assert.include(text, from)
    await writeFile(file, Buffer.from(text.replaceAll(from, to), "latin1"))
  })

describe("distributed checkpoints of PyTorch", () => {
  it.effect("of fully_shard over two processes open as the model's tensors, and those of its part alone", () =>
    Effect.gen(function* () {
      yield* assertSameAs(recorded("fsdp"), recorded("fsdp.safetensors"))
      const model = yield* Effect.scoped(openModel(recorded("fsdp"), { part: "model." }))
      assert.deepStrictEqual(model.tensors.map(({ name }) => name).sort(), [
        "down.weight",
        "embed.weight",
        "steps",
        "up.bias",
        "up.weight"
      ])
    })
  )

  it.effect("of DTensors cut along two dimensions of a mesh open as whole tensors", () =>
    assertSameAs(recorded("mesh"), recorded("mesh.safetensors"))
  )

  it.effect("with views, strides, scalars, empty tensors and every element type open as they were", () =>
    assertSameAs(recorded("state"), recorded("state.safetensors"))
  )

  it.effect("of Megatron-Core open with one tensor for each layer of a stack", () =>
    assertSameAs(recorded("megatron"), recorded("megatron.safetensors"))
  )

  it.effect("open by the path of their metadata too", () =>
    assertSameAs(recorded("mesh/.metadata"), recorded("mesh.safetensors"))
  )

  it.effect("are refused where the metadata names a file outside of the folder", () =>
    Effect.gen(function* () {
      for (const path of ["../__0.distc", "/etc/x.distc", "a/__0.distcp", ".._0_.distcp"]) {
        const folder = yield* copyOf("mesh")
        yield* replaceIn(join(folder, ".metadata"), "__0_0.distcp", path)
        yield* refused(folder, "UnsafePath", "model.embed_tokens.weight")
      }
    })
  )

  it.effect("are refused where a file is gone or cut short", () =>
    Effect.gen(function* () {
      const folder = yield* copyOf("mesh")
      yield* Effect.promise(() => truncate(join(folder, "__3_0.distcp"), 9000))
      yield* refused(folder, "Truncated", "model.norm.weight")
      yield* Effect.promise(() => rm(join(folder, "__3_0.distcp")))
      yield* refused(folder, "NotFound")
    })
  )

  it.effect("are refused where the metadata names what has no place in it, and nothing is called", () =>
    Effect.gen(function* () {
      const folder = yield* copyOf("mesh")
      yield* replaceIn(join(folder, ".metadata"), "_get_layout", "_get_lay0ut")
      const error = yield* refused(folder, "InvalidHeader")
      assert.include(error.message, "torch.serialization._get_lay0ut")
    })
  )

  it.effect("are refused when a chunk is not what the metadata says", () =>
    Effect.gen(function* () {
      const folder = yield* copyOf("mesh")
      yield* replaceIn(join(folder, "__0_0.distcp"), "BFloat16Storage", "ComplexFloatSto".slice(0, 15))
      const model = yield* openModel(folder)
      const name = "model.embed_tokens.weight"
      const error = yield* Effect.flip(
        model.readRegion(
          name,
          [
            [0, 11],
            [0, 8]
          ],
          new Uint8Array(176)
        )
      )
      assert.strictEqual(error.reason._tag, "InvalidHeader", error.message)
    }).pipe(Effect.scoped)
  )

  it("are refused where the metadata uses a name of it otherwise spelled", async () => {
    const bytes = await readFile(recorded("mesh/.metadata"))
    assert.isTrue(Result.isSuccess(parseDistributedMetadata(bytes)))
    const renamed = Buffer.from(
      bytes.toString("latin1").replace("TensorStorageMetadata", "BytesStorageMetadata_"),
      "latin1"
    )
    const parsed = parseDistributedMetadata(renamed)
    assert.isTrue(Result.isFailure(parsed) && parsed.failure.reason._tag === "InvalidHeader")
  })
})

describe("files of torch.save", () => {
  it.effect("with an index open as the tensors of their state dicts, parameters too", () =>
    assertSameAs(recorded("bin"), recorded("bin.safetensors"))
  )

  it.effect("open one by one, by their path", () =>
    Effect.gen(function* () {
      const model = yield* Effect.scoped(openModel(recorded("bin/pytorch_model-00002-of-00002.bin")))
      assert.strictEqual(model.tensors.length, 3)
    })
  )

  it.effect("that hold more than tensors are refused by the name of it", () =>
    Effect.gen(function* () {
      const folder = yield* copyOf("bin")
      const file = join(folder, "pytorch_model-00001-of-00002.bin")
      yield* replaceIn(file, "_rebuild_tensor_v2", "_rebuild_anything_")
      const error = yield* refused(folder, "Unsupported")
      assert.include(error.message, "torch._utils._rebuild_anything_")
    })
  )

  it.effect("are found cut short, and of another kind", () =>
    Effect.gen(function* () {
      const folder = yield* copyOf("bin")
      const file = join(folder, "pytorch_model-00001-of-00002.bin")
      yield* Effect.promise(() => truncate(file, 2000))
      yield* refused(file, "InvalidHeader")
      yield* Effect.promise(() => writeFile(file, Buffer.from([0x80, 2, 0x8a, 10, 0x6c, 0xfc])))
      yield* refused(file, "InvalidHeader")
    })
  )
})
