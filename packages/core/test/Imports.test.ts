// SPDX-License-Identifier: Apache-2.0
/**
 * What an import of core loads, in the sources and as published: nothing of effect that only a few calls need, few files
 * of its own, one effect, and the same values by every name.
 */
import { spawnSync } from "node:child_process"
import { readFileSync, rmSync } from "node:fs"
import * as path from "node:path"
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"

const sources = path.resolve(import.meta.dirname, "../src")
const mergeScript = path.resolve(import.meta.dirname, "../../../scripts/merge-core.ts")
/** Where core's own `effect` is found. */
const merged = path.resolve(import.meta.dirname, "../node_modules/.cache/merged-for-tests")

const inProcess = <A>(script: string, ...args: ReadonlyArray<string>): A => {
  const { NODE_OPTIONS: _, ...environment } = process.env
  const ended = spawnSync(process.execPath, ["--input-type=module", "-e", script, ...args], {
    cwd: import.meta.dirname,
    env: environment,
    encoding: "utf8",
    timeout: 60_000,
    maxBuffer: 2 ** 26
  })
  assert.strictEqual(ended.status, 0, ended.stderr)
  return JSON.parse(ended.stdout) as A
}

const loadedBy = (module: string): ReadonlyArray<string> =>
  inProcess(
    `import { registerHooks } from "node:module"
    const loaded = []
    registerHooks({ load: (url, context, next) => { loaded.push(url); return next(url, context) } })
    await import(process.argv[1])
    console.log(JSON.stringify(loaded))`,
    module
  )

/** Modules of effect by name, and the folders that they come from. */
const effectIn = (loaded: ReadonlyArray<string>) => {
  const found = loaded.flatMap((url) => [...url.matchAll(/^(.*\/effect\/dist)\/(.*)\.js$/g)])
  return { folders: new Set(found.map(([, folder]) => folder)), names: new Set(found.map(([, , name]) => name)) }
}

/** Streams, files and configuration: a fifth of what effect has to load, for a few calls that import them themselves. */
const heavy = ["Channel", "Config", "ConfigProvider", "FileSystem", "Sink", "Stream"]

const assertLight = (loaded: ReadonlyArray<string>): void => {
  const { folders, names } = effectIn(loaded)
  assert.isTrue(names.has("Effect") && names.has("Schema"), [...names].join(" "))
  assert.strictEqual(folders.size, 1)
  assert.deepStrictEqual(
    heavy.filter((name) => names.has(name)),
    []
  )
}

describe("import of core", () => {
  it("loads no module of effect that only a few calls need", () => {
    assertLight(loadedBy(path.join(sources, "index.ts")))
  })

  it("planning by itself loads no service, no socket and no file access", () => {
    const loaded = loadedBy(path.join(sources, "planner/RosterPlanner.ts"))
    assert.deepStrictEqual(
      loaded.filter((url) =>
        /^node:(net|fs)|\/core\/src\/(service|copy|group|reshard|replay|refit|trace|backend|checkpoint)\//.test(url)
      ),
      []
    )
  })
})

describe("core as published", () => {
  beforeAll(() => {
    const ended = spawnSync(process.execPath, [mergeScript, merged], { encoding: "utf8", timeout: 60_000 })
    assert.strictEqual(ended.status, 0, ended.stderr)
  })
  afterAll(() => rmSync(merged, { recursive: true, force: true }))
  const module = (name: string): string => path.join(merged, "modules", `${name}.js`)

  it("is one file for each folder, beside the one effect", () => {
    const loaded = loadedBy(module("index"))
    assertLight(loaded)
    const own = loaded.filter((url) => url.includes("/merged-for-tests/"))
    assert.isAtMost(own.length, 12, own.join("\n"))
    assert.isTrue(own.some((url) => url.endsWith("/merged-for-tests/reshard.js")))
  })

  it("planning by itself loads no service", () => {
    const loaded = loadedBy(module("planner/RosterPlanner"))
    assert.deepStrictEqual(
      loaded.filter((url) =>
        /^node:(net|fs)|\/merged-for-tests\/(copy|reshard|replay|backend|checkpoint)\.js/.test(url)
      ),
      []
    )
  })

  it("every public module exports what its source does", () => {
    const { exports } = JSON.parse(readFileSync(path.resolve(sources, "../package.json"), "utf8")) as {
      readonly exports: Readonly<Record<string, string>>
    }
    const names = Object.values(exports)
      .filter((file) => file.endsWith(".ts"))
      .map((file) => file.slice("./src/".length, -".ts".length))
    const different = inProcess<ReadonlyArray<readonly [string, ...Array<string>]>>(
      `const [sources, merged, ...names] = process.argv.slice(1)
      const different = []
      for (const name of names) {
        const written = Object.keys(await import(sources + "/" + name + ".ts"))
        const published = Object.keys(await import(merged + "/modules/" + name + ".js"))
        const missing = written.filter((key) => !published.includes(key))
        const added = published.filter((key) => !written.includes(key))
        if (missing.length + added.length > 0) different.push([name, ...missing, ...added])
      }
      console.log(JSON.stringify(different))`,
      sources,
      merged,
      ...names
    )
    assert.isAbove(names.length, 100)
    assert.deepStrictEqual(different, [])
  })

  it("a value is the same by every name", () => {
    const same = inProcess<ReadonlyArray<boolean>>(
      `const core = await import(process.argv[1] + "/index.js")
      const of = (name) => import(process.argv[1] + "/" + name + ".js")
      console.log(JSON.stringify([
        core.CopyDriver === (await of("service/CopyDriver")).CopyDriver,
        core.CopyError === (await of("service/CopyService")).CopyError,
        core.ReshardPlan === (await of("ir/ReshardPlan")).ReshardPlan,
        core.RosterPlanner.planRank === (await of("planner/RosterPlanner")).planRank,
        core.DType.DType === (await of("base/DType")).DType,
        core.BackendRegistry === (await of("backend/BackendRegistry")).BackendRegistry
      ]))`,
      path.join(merged, "modules")
    )
    assert.deepStrictEqual(same, [true, true, true, true, true, true])
  })
})
