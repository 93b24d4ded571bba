// SPDX-License-Identifier: Apache-2.0
/**
 * A package that was written for another core, or is broken: refused by its manifest, by its imports, by its descriptor, in
 * clear words.
 */
import { mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { fileURLToPath, pathToFileURL } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { loadBackendPackage } from "../../src/backend/BackendLoader.ts"
import { probeBackend } from "../../src/backend/Probe.ts"

const core = fileURLToPath(new URL("../..", import.meta.url))
const effect = path.dirname(path.dirname(fileURLToPath(import.meta.resolve("effect/Effect"))))

/** One package of an application that has this core installed. */
const load = (tensorferry: object | string, source: string, name = "spool") =>
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
      const text = typeof tensorferry === "string" ? tensorferry : JSON.stringify(manifest)
      await writeFile(path.join(folder, "package.json"), text)
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
        assert.include(reason.remedy, "(contract version 1) lacks: upgrade @tensorferry/core")
      })
    )
  }

  it.live("this core, with a wrong field: the error names its place", () =>
    Effect.gen(function* () {
      const reason = yield* refusal({ descriptors }, source(1, "copyDriver: 3"))
      assert.strictEqual(reason._tag, "InvalidDescriptor")
      assert.include(reason.detail, "In descriptors[0] of spool: copyDriver must be a function, but is 3.")
    })
  )
})

describe("a package that is broken", () => {
  const refused = (tensorferry: object | string, code: string, name = "spool") =>
    Effect.map(Effect.flip(load(tensorferry, code, name)), ({ reason }) => {
      assert.strictEqual(reason._tag, "LoadFailed")
      return reason
    })

  it.live("has no file that its manifest names: that file is named", () =>
    Effect.gen(function* () {
      const { detail, remedy, file } = yield* refused({ descriptors: "./dist/gone.js" }, source(1))
      assert.include(detail, "names ./dist/gone.js as its descriptors, and the package has no such file")
      assert.match(file ?? "", /spool\/dist\/gone\.js$/)
      assert.notInclude(remedy, "@tensorferry/core")
    })
  )

  it.live("has a manifest that is not JSON: the error names the place", () =>
    Effect.gen(function* () {
      for (const name of ["spool", "./node_modules/spool"]) {
        const { detail, file } = yield* refused('{\n "name": "spool",\n "tensorferry": {,}\n}', source(1), name)
        assert.match(detail, /^Its package\.json is not JSON: .*line 3 column 18/)
        assert.match(file ?? "", /spool\/package\.json$/)
      }
    })
  )

  it.live("has code that cannot be parsed: the error names the file", () =>
    Effect.gen(function* () {
      const plain = yield* refused({ descriptors }, "export const descriptors = = []")
      assert.match(plain.detail, /Unexpected token '='.* \(in .*spool\/index\.js or a file that it imports\)\.$/)
      assert.match(plain.remedy, /node --check .*spool\/index\.js shows the line/)
    })
  )

  it.live("throws while it is imported: the message and the line", () =>
    Effect.gen(function* () {
      const { detail } = yield* refused({ descriptors }, "export const descriptors = []\nmissing.call()")
      assert.match(detail, /: ReferenceError: missing is not defined \(at .*spool\/index\.js:2:1\)\.$/)
    })
  )

  it.live("imports a name that another package does not export: the error does not blame its code", () =>
    Effect.gen(function* () {
      const { detail, remedy } = yield* refused({ descriptors }, 'import { nobody } from "effect/Effect"')
      assert.match(detail, /nobody/)
      assert.strictEqual(remedy, "See the package's own requirements.")
    })
  )

  it.live("imports a file of its own that is missing: the error does not ask to upgrade core", () =>
    Effect.gen(function* () {
      const { detail, remedy } = yield* refused({ descriptors }, 'import "./gone.js"')
      assert.match(detail, /gone\.js/)
      assert.notInclude(remedy, "upgrade")
    })
  )
})

describe("a probe", () => {
  const probed = (probe: string) =>
    Effect.gen(function* () {
      const [descriptor] = yield* load(
        { descriptors },
        source(1).replace(/probe: .*?\)\) *,|probe: .*/, `probe: ${probe},`)
      )
      return yield* probeBackend(descriptor!)
    })

  for (const [what, probe, cause] of [
    [
      "throws",
      'Effect.sync(() => { throw new Error("bad probe") })',
      /^Its probe failed: bad probe \(at .*index\.js:\d+:\d+\)$/
    ],
    ["fails", 'Effect.fail("no library")', /^Its probe failed: no library$/],
    ["answers with nothing", "Effect.void", /^Its probe returned no probe result\.$/]
  ] as const) {
    it.live(`that ${what} makes its backend unavailable, and says whose it is`, () =>
      Effect.gen(function* () {
        const found = yield* probed(probe)
        assert.strictEqual(found._tag, "Unavailable")
        if (found._tag !== "Unavailable") return
        assert.match(found.cause, cause)
        assert.include(found.remedy, "package spool")
      })
    )
  }

  it.live("that waits can be interrupted", () =>
    Effect.gen(function* () {
      const ended = yield* Effect.timeoutOption(probed("Effect.never"), "50 millis")
      assert.strictEqual(ended._tag, "None")
    })
  )
})
