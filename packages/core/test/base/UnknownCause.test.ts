// SPDX-License-Identifier: Apache-2.0
/** What is told of errors in code of others: from errors at hand, from what a process printed, from names that are near. */
import { spawnSync } from "node:child_process"
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { onTestFinished } from "vitest"
import { nearestName } from "../../src/base/SimilarName.ts"
import { describeCrash, describeThrown, placeInStack } from "../../src/base/UnknownCause.ts"

/** What Node prints as it ends with this program. */
const printed = (source: string, name = "driver.mjs"): string => {
  const folder = mkdtempSync(path.join(tmpdir(), "tensorferry-crash-"))
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
  const file = path.join(folder, name)
  mkdirSync(path.dirname(file), { recursive: true })
  writeFileSync(file, source)
  const ended = spawnSync(process.execPath, [file], { encoding: "utf8", timeout: 60_000 })
  assert.notStrictEqual(ended.status, 0)
  return ended.stderr
}

describe("a process that crashed is reported by its message and the place in its own code", () => {
  it.each([
    {
      what: "inside of Node",
      source: "\n  Buffer.alloc(-1)",
      says: /^RangeError \[ERR_OUT_OF_RANGE\]: The value of "size" .* \(at .*driver\.mjs:2:10\)$/
    },
    {
      what: "in a callback, after other output",
      source: 'console.error("ready")\nsetImmediate(function later() {\n  missing.call()\n})',
      says: /^ReferenceError: missing is not defined \(at .*driver\.mjs:3:3\)$/
    },
    {
      what: "with a message of several lines",
      source: 'throw new TypeError("no bytes\\nbut lines")',
      says: /^TypeError: no bytes \(at .*driver\.mjs:1:7\)$/
    },
    {
      what: "with an error that has more fields",
      source: 'throw Object.assign(new Error("boom"), { code: 3 })',
      says: /^Error: boom \(at .*driver\.mjs:1:21\)$/
    }
  ])("$what", ({ source, says }) => {
    assert.match(describeCrash(printed(source)) ?? "nothing", says)
  })

  it("by the code that called a library, and by the library where nothing else is in the stack", () => {
    const frames = ["/app/node_modules/effect/dist/Effect.js:9:1", "/app/spool.js:4:2"].map(
      (place) => `    at run (file://${place})`
    )
    assert.strictEqual(describeCrash(["Error: boom", ...frames].join("\n")), "Error: boom (at /app/spool.js:4:2)")
    assert.match(describeCrash(`Error: boom\n${frames[0]}`)!, /Effect\.js:9:1\)$/)
  })

  it("not where it printed no stack", () => {
    assert.isUndefined(describeCrash("terminate called after throwing an instance of 'std::bad_alloc'"))
    assert.isUndefined(describeCrash(""))
  })
})

describe("what was thrown", () => {
  it("is reported with its kind and place, and a value that is not an error by its text", () => {
    assert.match(describeThrown(new TypeError("no")), /^TypeError: no \(at .*UnknownCause\.test\.ts:\d+:\d+\)$/)
    assert.strictEqual(describeThrown("just a text"), "just a text")
    assert.strictEqual(describeThrown(undefined), "undefined")
  })

  it("has the place that Node puts above the source of what cannot be parsed", () => {
    assert.strictEqual(placeInStack("/app/a.ts:2\nlet x 3\n      ^\nSyntaxError: no"), "/app/a.ts:2")
    assert.strictEqual(placeInStack("file:///app/a.mjs:7\nimport x\n"), "/app/a.mjs:7")
  })
})

describe("an unknown name", () => {
  const known = ["moves one byte", "moves one tensor", "cancel"]
  it("is near to one that differs little, whatever the case", () => {
    assert.strictEqual(nearestName("moves one tnsor", known), "moves one tensor")
    assert.strictEqual(nearestName("CANCEL", known), "cancel")
    assert.isUndefined(nearestName("sings a song", known))
    assert.isUndefined(nearestName("anything", []))
  })
})
