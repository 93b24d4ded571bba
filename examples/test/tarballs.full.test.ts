// SPDX-License-Identifier: Apache-2.0
/** The tarballs themselves: what is in them, what their manifests promise, and what a stranger's tools say of them. */
import { readdirSync, readFileSync, realpathSync, writeFileSync } from "node:fs"
import * as path from "node:path"
import { checkPackage, createPackageFromTarballData } from "@arethetypeswrong/core"
import { publint } from "publint"
import { formatMessage } from "publint/utils"
import { assert, describe, it } from "vitest"
import { mergedFiles } from "../../scripts/merge-core.ts"
import { blocksOf } from "../../scripts/pages/blocks.ts"
import { exampleFolder, run, shown, stranger } from "./stranger.ts"

const installed = (name: string): string => realpathSync(exampleFolder("node_modules", name))

const manifestOf = (name: string) =>
  JSON.parse(readFileSync(path.join(installed(name), "package.json"), "utf8")) as {
    readonly version: string
    readonly exports: { readonly [subpath: string]: unknown }
    readonly scripts?: { readonly [name: string]: string }
    readonly dependencies?: { readonly [name: string]: string }
    readonly peerDependencies?: { readonly [name: string]: string }
  }

const tarball = (filename: string): ArrayBuffer => {
  const bytes = readFileSync(filename)
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength) as ArrayBuffer
}

/** Packages with an addon, and its name. */
const addons: { readonly [name: string]: string } = {
  "@tensorferry/backend-torch-copy": "torch_copy",
  "@tensorferry/gpu": "gpu",
  "@tensorferry/backend-nvshmem": "nvshmem",
  "@tensorferry/backend-tcp": "tcp",
  "@tensorferry/backend-ucx": "ucx",
  "@tensorferry/backend-xpu": "xpu",
  "@tensorferry/bus": "bus"
}

describe.each(stranger.packed)("$name", ({ name, filename, version, files }) => {
  const paths = files.map((file) => file.path)

  it("holds what runs, its sources and the licence, and no tests", () => {
    assert.include(paths, "LICENSE")
    assert.include(paths, "README.md")
    assert.deepStrictEqual(
      paths.filter((file) => /(^|\/)(test|simulator|build)\/|\.test\.|tsbuildinfo/.test(file)),
      []
    )
    const addon = addons[name]
    if (addon === undefined) return
    assert.include(paths, `prebuilds/${process.platform}-${process.arch}/${addon}.napi.glibc.node`)
    assert.include(paths, "CMakeLists.txt")
    assert.isTrue(paths.some((file) => /^native\/.*\.cc$/.test(file)))
  })

  it("compiled files and their types are those of the sources", () => {
    const of = (folder: string, end: RegExp) =>
      paths
        .filter((file) => file.startsWith(`${folder}/`) && end.test(file))
        .map((file) => file.slice(folder.length + 1).replace(end, ""))
        .sort()
    const sources = of("src", /\.ts$/)
    // Core's public modules hand on what is in a merged file for each folder.
    const compiled = name === "@tensorferry/core" ? "dist/merged/modules" : "dist"
    const published = JSON.stringify(manifestOf(name).exports)
    const isLoaded = (source: string) => compiled === "dist" || published.includes(`"./dist/${source}.d.ts"`)
    assert.deepStrictEqual(of(compiled, /\.js$/), sources.filter(isLoaded))
    assert.deepStrictEqual(of("dist", /\.d\.ts$/), sources)
    if (compiled === "dist") return
    assert.includeMembers(of("dist/merged", /\.js$/), Object.keys(mergedFiles))
    // What is merged is there once.
    assert.deepStrictEqual(
      of("dist", /\.js$/).filter((file) => !file.startsWith("merged/")),
      []
    )
  })

  it("asks for versions, for its own kind exactly, and runs nothing at installation", () => {
    const { scripts, dependencies, peerDependencies } = manifestOf(name)
    const wanted = Object.entries({ ...dependencies, ...peerDependencies })
    for (const [other, range] of wanted) {
      assert.notMatch(range, /^(workspace|catalog|link|file):/, other)
      if (other.startsWith("@tensorferry/")) assert.strictEqual(range, version, other)
    }
    for (const script of ["preinstall", "install", "postinstall", "prepare"]) assert.notProperty(scripts ?? {}, script)
  })

  it("publint finds nothing", async () => {
    const { messages, pkg } = await publint({ pack: { tarball: tarball(filename) }, strict: true })
    assert.deepStrictEqual(
      messages.map((message) => formatMessage(message, pkg)),
      []
    )
  })

  it("its types are right for importers", async () => {
    const subpaths = Object.keys(manifestOf(name).exports).filter((subpath) => !subpath.includes("*"))
    const entrypoints = subpaths.filter((subpath) => subpath !== "./package.json")
    if (entrypoints.length === 0) return
    const result = await checkPackage(createPackageFromTarballData(new Uint8Array(readFileSync(filename))), {
      entrypoints
    })
    assert.notStrictEqual(result.types, false)
    if (result.types === false) return
    // Modules only: nobody requires these packages from a resolver that knows no exports.
    const problems = result.problems.filter(
      (problem) => !("resolutionKind" in problem) || !["node10", "node16-cjs"].includes(problem.resolutionKind)
    )
    assert.deepStrictEqual(problems, [])
  })
})

describe("installed without scripts", () => {
  it("every module that can be imported by a subpath is there, and internal ones are closed", async () => {
    const script = `
      await import("@tensorferry/core/planner/RosterPlanner")
      await import("@tensorferry/testing/vitest").catch((error) => { if (!/vitest/i.test(String(error))) throw error })
      const closed = await import("@tensorferry/core/copy/internal/check").catch((error) => error.code)
      console.log(closed)`
    const ended = await run(process.execPath, ["--input-type=module", "-e", script])
    assert.strictEqual(ended.stdout.trim(), "ERR_PACKAGE_PATH_NOT_EXPORTED", shown(ended))
  })

  it("every prebuilt addon loads", async () => {
    const script = `
      import * as Effect from "effect/Effect"
      for (const name of ${JSON.stringify(Object.keys(addons))}) {
        const addon = new URL("./node_modules/" + name + "/dist/Addon.js", "file://" + process.cwd() + "/")
        const { loadAddon } = await import(addon.href)
        console.log(name, (await Effect.runPromise(loadAddon)).abiVersion)
      }`
    const ended = await run(process.execPath, ["--input-type=module", "-e", script])
    assert.strictEqual(ended.stdout.trim().split("\n").length, Object.keys(addons).length, shown(ended))
    assert.strictEqual(ended.code, 0, shown(ended))
  })

  it("the command works, and says what a machine without a prebuilt addon can do", async () => {
    const good = await run("tensorferry", ["backends", "--json"])
    const state = (text: string) =>
      (JSON.parse(text) as { backends: ReadonlyArray<{ name: string; probe: { _tag: string; remedy?: string } }> })
        .backends[0]!
    assert.deepInclude(state(good.stdout), { name: "torch-copy" }, shown(good))
    assert.strictEqual(state(good.stdout).probe._tag, "Available", shown(good))
    // node-gyp-build takes the machine's kind from this variable.
    const other = await run("tensorferry", ["backends", "--json"], { env: { npm_config_arch: "riscv64" } })
    const { probe } = state(other.stdout)
    assert.strictEqual(probe._tag, "Unavailable", shown(other))
    assert.include(probe.remedy, "npm run build:native")
    assert.include(probe.remedy, "backend-torch-copy")
  })

  it("the command answers help from packed pages, as it makes them itself", { timeout: 300_000 }, async () => {
    const dist = path.join(installed("@tensorferry/cli"), "dist")
    const pages: Readonly<Record<string, object>> = JSON.parse(readFileSync(path.join(dist, "helpPages.json"), "utf8"))
    // Of every level; the packed command shows all pages by the same few functions.
    const rendered = ["", "plan", "plan check", "backends conformance", "agent"]
    assert.includeMembers(Object.keys(pages), rendered)
    const env = { FORCE_COLOR: "1", TERM: "xterm" }
    // Stands in for what carries commands out: help that needs it fails.
    const closed = `data:text/javascript,${encodeURIComponent(`
      import { registerHooks } from "node:module"
      registerHooks({ load: (url, context, next) => {
        if (url.endsWith("/command.js")) throw new Error("loads the command")
        return next(url, context)
      } })`)}`
    for (const names of Object.keys(pages)) {
      const args = [...names.split(" ").filter((name) => name !== ""), "--help"]
      const quick = await run(process.execPath, ["--import", closed, path.join(dist, "main.js"), ...args], { env })
      assert.include(quick.stdout, "USAGE", shown(quick))
      if (!rendered.includes(names)) continue
      const slow = await run(process.execPath, [path.join(dist, "command.js"), ...args], { env })
      assert.strictEqual(slow.stdout, quick.stdout, names)
    }
  })

  it("prebuilt addons ask for no newer system than is said", async () => {
    for (const [name, addon] of Object.entries(addons)) {
      const folder = path.join(installed(name), "prebuilds", `${process.platform}-${process.arch}`)
      const file = path.join(folder, `${addon}.napi.glibc.node`)
      assert.deepStrictEqual(readdirSync(folder), [path.basename(file)])
      const ended = await run("objdump", ["-T", file])
      const versions = [...ended.stdout.matchAll(/GLIBC_2\.(\d+)/g)].map(([, minor]) => Number(minor))
      assert.isAbove(versions.length, 0, shown(ended))
      assert.isAtMost(Math.max(...versions), 36, name)
    }
  })

  it("every addon builds from the sources in its package", { timeout: 900_000 }, async () => {
    // Whether all sources are there shows without optimization too, in half the time.
    const compiler = exampleFolder("quick-compiler")
    writeFileSync(compiler, '#!/bin/sh\nexec c++ "$@" -O0\n', { mode: 0o755 })
    const env = { CXX: compiler }
    for (const [name, addon] of Object.entries(addons)) {
      const built = await run("npm", ["run", "build:native"], { cwd: installed(name), env, deadline: 600_000 })
      assert.strictEqual(built.code, 0, shown(built))
      assert.deepStrictEqual(readdirSync(path.join(installed(name), "build/Release")), [`${addon}.node`])
    }
  })

  it("npm installs the tarballs by the README's commands", { timeout: 300_000 }, async () => {
    const folder = exampleFolder("with-npm")
    const page = readFileSync(path.resolve(import.meta.dirname, "../../README.md"), "utf8")
    const block = blocksOf(page).find(({ text }) => text.includes("npm install /path/to/tensorferry/release/"))
    assert.isDefined(block)
    const commands = block!.text
      .replaceAll("/path/to/project", folder)
      .replaceAll("/path/to/tensorferry/release", path.dirname(stranger.packed[0]!.filename))
    const quiet = { npm_config_prefer_offline: "true", npm_config_audit: "false", npm_config_fund: "false" }
    const ended = await run("bash", ["-euc", `${commands}\ncommand -v tensorferry`], { env: quiet, deadline: 240_000 })
    assert.strictEqual(ended.code, 0, shown(ended))
    assert.include(ended.stdout, "torch-copy  available", shown(ended))
    assert.include(ended.stdout, path.join(folder, "node_modules/.bin/tensorferry"), shown(ended))
    // The project can import what it installed, and effect is one for all.
    const script = `
      import { CopyService } from "@tensorferry/core"
      import * as Effect from "effect/Effect"
      console.log(Effect.isEffect(CopyService))`
    const imported = await run(process.execPath, ["--input-type=module", "-e", script], { cwd: folder })
    assert.strictEqual(imported.stdout.trim(), "true", shown(imported))
  })
})
