// SPDX-License-Identifier: Apache-2.0
/**
 * Makes a stranger's folder once for all tests of examples: every package packed, the tarballs installed outside the
 * workspace without running any install script, the examples copied beside them.
 */
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import type { TestProject } from "vitest/node"
import { packAll, pnpm } from "../../scripts/pack.ts"

const examples = path.resolve(import.meta.dirname, "..")

/** What is copied. The tensor bus has tests of its own. */
const copied = [
  "ring.ts",
  "mnist",
  "third-party-backend",
  "planner-properties",
  "training-loop",
  "device-family",
  "tsconfig.json"
]

/** Versions of the workspace's own tools, so that what is installed is in its store already. */
const toolVersions = (): { readonly [name: string]: string } => {
  const { devDependencies } = JSON.parse(readFileSync(path.join(examples, "../package.json"), "utf8")) as {
    readonly devDependencies: { readonly [name: string]: string }
  }
  const vitest = JSON.parse(readFileSync(path.join(examples, "../node_modules/vitest/package.json"), "utf8")) as {
    readonly version: string
  }
  return {
    "@types/node": devDependencies["@types/node"]!,
    typescript: devDependencies.typescript!,
    vitest: vitest.version
  }
}

export default (project: TestProject) => {
  const folder = mkdtempSync(path.join(tmpdir(), "tensorferry-examples-"))
  const remove = () => rmSync(folder, { recursive: true, force: true })
  try {
    const packed = packAll(path.join(folder, "tarballs"))
    for (const name of copied) {
      const left = (file: string) => !/\/(node_modules|dist)(\/|$)/.test(file.slice(examples.length))
      cpSync(path.join(examples, name), path.join(folder, name), { recursive: true, filter: left })
    }
    const tarballs = Object.fromEntries(packed.map(({ name, filename }) => [name, `file:${filename}`]))
    const manifest = {
      private: true,
      type: "module",
      dependencies: {
        ...tarballs,
        "@effect/platform-node": "^4.1.0",
        effect: "^4.1.0",
        "tensorferry-spool": "link:third-party-backend",
        ...toolVersions()
      }
    }
    writeFileSync(path.join(folder, "package.json"), JSON.stringify(manifest, null, 2))
    // Nothing of tensorferry is in a registry here: what the packages ask of each other are the tarballs too.
    const workspace = { packages: ["."], pmOnFail: "ignore", overrides: tarballs }
    writeFileSync(path.join(folder, "pnpm-workspace.yaml"), JSON.stringify(workspace, null, 2))
    mkdirSync(path.join(folder, "node_modules"))
    pnpm(["install", "--prefer-offline", "--ignore-scripts", "--no-frozen-lockfile"], folder)
    project.provide("stranger", { folder, packed })
  } catch (cause) {
    remove()
    throw cause
  }
  return remove
}
