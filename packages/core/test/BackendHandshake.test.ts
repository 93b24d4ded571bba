/** A package that was written for another core: refused by its manifest, by its imports, by its descriptor, in clear words. */
import { mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { fileURLToPath, pathToFileURL } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { loadBackendPackage } from "../src/backend/BackendLoader.ts"

const core = fileURLToPath(new URL("..", import.meta.url))
const effect = path.dirname(path.dirname(fileURLToPath(import.meta.resolve("effect/Effect"))))

/** One package of an application that has this core installed. */
const load = (tensorferry: object, source: string, name = "spool") =>
  Effect.gen(function* () {
    const root = yield* Effect.acquireRelease(
      Effect.promise(() => mkdtemp(path.join(tmpdir(), "tensorferry-handshake-"))),
      (folder) => Effect.promise(() => rm(folder, { recursive: true, force: true }))
    )
    yield* Effect.promise(async () => {
      const modules = path.join(root, "node_modules")
      const folder = path.join(modules, "spool")
      await mkdir(folder, { recursive: true })
      await mkdir(path.join(modules, "@tensorferry"))
      await symlink(core, path.join(modules, "@tensorferry/core"))
      await symlink(effect, path.join(modules, "effect"))
      const manifest = { name: "spool", version: "1.0.0", type: "module", tensorferry }
      await writeFile(path.join(folder, "package.json"), JSON.stringify(manifest))
      await writeFile(path.join(folder, "index.js"), source)
    })
    return yield* loadBackendPackage(name, pathToFileURL(path.join(root, "main.js")).href)
  }).pipe(Effect.scoped)

const refusal = (tensorferry: object, source: string) =>
  Effect.map(Effect.flip(load(tensorferry, source)), ({ reason }) => reason)

const descriptors = "./index.js"
const source = (apiVersion: number, more = "") => `
  import * as Effect from "effect/Effect"
  import * as Schema from "effect/Schema"
  export const descriptors = [{
    name: "spool", apiVersion: ${apiVersion}, deviceFamilies: [], capabilities: {}, options: Schema.Struct({}),
    probe: Effect.succeed({ _tag: "Available", detail: "", versions: {} }), ${more}
  }]`

describe("a package for", () => {
  it.live("this core is loaded, whether its manifest states the version or not", () =>
    Effect.gen(function* () {
      for (const manifest of [{ descriptors }, { descriptors, apiVersion: 1 }]) {
        assert.deepStrictEqual(
          (yield* load(manifest, source(1))).map(({ name }) => name),
          ["spool"]
        )
      }
    })
  )

  it.live("this core is loaded by the folder that it lies in", () =>
    Effect.gen(function* () {
      for (const folder of ["./node_modules/spool", "./node_modules/spool/", "./node_modules/../node_modules/spool"]) {
        assert.strictEqual((yield* load({ descriptors }, source(1), folder)).length, 1)
      }
      const { _tag } = (yield* Effect.flip(load({ descriptors }, source(1), "./nowhere"))).reason
      assert.strictEqual(_tag, "LoadFailed")
    })
  )

  it.live("a newer core, by its manifest: none of its code runs", () =>
    Effect.gen(function* () {
      const reason = yield* refusal({ descriptors, apiVersion: 2 }, "globalThis.spoolRan = true")
      assert.strictEqual(reason._tag, "IncompatibleApiVersion")
      assert.strictEqual(reason.detail, "It was written for contract version 2; this core has version 1.")
      assert.strictEqual(reason.remedy, "Upgrade @tensorferry/core to a version of contract 2.")
      assert.isFalse("spoolRan" in globalThis)
    })
  )

  it.live("an older core, by its manifest", () =>
    Effect.gen(function* () {
      const reason = yield* refusal({ descriptors, apiVersion: 0 }, source(1))
      assert.strictEqual(reason._tag, "IncompatibleApiVersion")
      assert.strictEqual(reason.remedy, "Upgrade the backend package to a version for contract 1.")
    })
  )

  it.live("a newer core, by its descriptor", () =>
    Effect.gen(function* () {
      assert.strictEqual((yield* refusal({ descriptors }, source(2)))._tag, "IncompatibleApiVersion")
    })
  )

  for (const [what, line] of [
    ["a name", 'import { tomorrow } from "@tensorferry/core/backend/BackendDescriptor"'],
    ["a file", 'import "@tensorferry/core/backend/Tomorrow"']
  ] as const) {
    it.live(`a newer core, by ${what} that this one does not have`, () =>
      Effect.gen(function* () {
        const reason = yield* refusal({ descriptors }, line)
        assert.strictEqual(reason._tag, "LoadFailed")
        assert.match(reason.detail, /[tT]omorrow/)
        assert.include(reason.remedy, "(contract version 1) does not have: upgrade @tensorferry/core")
      })
    )
  }

  it.live("this core, with a field that is wrong: told with its place", () =>
    Effect.gen(function* () {
      const reason = yield* refusal({ descriptors }, source(1, "copyDriver: 3"))
      assert.strictEqual(reason._tag, "InvalidDescriptor")
      assert.include(reason.detail, "In descriptors[0] of spool: copyDriver must be a function, but is 3.")
    })
  )
})
