// SPDX-License-Identifier: Apache-2.0
/** Patterns fit what Python's `re` says that they fit, hostile ones end soon, and what is not read is refused. */
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import {
  type MatchStart,
  matchesModule,
  modulePattern,
  mostWork,
  type Work
} from "../../../src/names/adapters/ModulePattern.ts"
import { mostCharacters } from "../../../src/names/adapters/PatternProgram.ts"

const fits = (pattern: string, path: string, from: MatchStart = "start", work: Work = { steps: mostWork }): boolean =>
  matchesModule(Result.getOrThrow(modulePattern(pattern)), path, from, work)

const q = "model.layers.1.self_attn.q_proj"

describe("a pattern for whole paths", () => {
  const unsloth =
    "(?:.*?(?:language|text).*?(?:self_attn|attn|mlp).*?(?:q_proj|up_proj).*?)|(?:\\bmodel\\.layers\\.[\\d]{1,}\\.(?:self_attn|mlp)\\.(?:(?:q_proj|up_proj)))"
  it.each([
    [".*q_proj", q, true],
    [".*layers\\.1\\..*(gate|up)_proj", "model.layers.1.mlp.up_proj", true],
    [".*layers\\.1\\..*(gate|up)_proj", "model.layers.11.mlp.up_proj", false],
    ["q_proj", q, false],
    [".*\\.[qkv]_proj", q, true],
    [".*\\.[^qkv]_proj", q, false],
    [".*\\.(?P<which>q|k)_proj", q, true],
    ["model\\.layers\\.(?:[0-9]|1[0-5])\\..*", "model.layers.12.mlp", true],
    ["model\\.layers\\.(?:[0-9]|1[0-5])\\..*", "model.layers.16.mlp", false],
    ["^(?!.*vision).*q_proj$", q, true],
    ["^(?!.*vision).*q_proj$", "vision.layers.0.q_proj", false],
    ["(?=.*layers\\.1\\.).*proj", q, true],
    ["(?=.*layers\\.2\\.).*proj", q, false],
    ["model\\.layers\\.\\d{2,3}\\.x", "model.layers.7.x", false],
    ["model\\.layers\\.\\d{2,3}\\.x", "model.layers.123.x", true],
    ["model\\.layers\\.\\d{2}\\.x", "model.layers.123.x", false],
    ["a{2,}", "aaaa", true],
    ["a{,2}", "aaa", false],
    ["a{x}", "a{x}", true],
    ["[]a]+", "]a", true],
    ["[a\\-z]+", "-", true],
    ["[a-]+", "a-", true],
    [".*\\bmlp\\b.*", "layers.mlp.up", true],
    [".*\\bmlp\\b.*", "layers.shared_mlp.up", false],
    ["", "", true],
    ["|a", "a", true],
    [unsloth, q, true],
    [unsloth, "model.language_model.layers.0.mlp.up_proj", true],
    [unsloth, "vision.blocks.0.fc1", false]
  ])("%s on %s: %s", (pattern, path, expected) => assert.strictEqual(fits(pattern, path), expected))
})

describe("a pattern for the end of a path", () => {
  it.each([
    ["q_proj", q, true],
    ["proj", q, false],
    ["layers\\.1\\.self_attn\\.q_proj", q, true],
    ["layers.1.self_attn.q_proj", q, true],
    ["self_attn", q, false],
    ["^q_proj", q, false],
    ["^q_proj", "q_proj", true],
    ["k_proj|q_proj", q, true],
    [".*layers\\.1\\..*", q, true]
  ])("%s on %s: %s", (pattern, path, expected) => assert.strictEqual(fits(pattern, path, "component"), expected))

  it("begins behind a dot only, where that is asked for", () => {
    assert.isFalse(fits("q_proj", "q_proj", "dot"))
    assert.isTrue(fits("q_proj", "a.q_proj", "dot"))
    assert.isTrue(fits("q.proj", "a.q_proj", "dot"))
  })
})

describe("a pattern that keeps other engines busy", () => {
  it.each(["(a+)+b", "(a|a)*b", "(a*)*b", "a*a*a*a*a*a*a*a*a*a*a*a*b", "((?=(a*)*b)a)*"])(
    "%s ends within its work",
    (pattern) => {
      const work = { steps: 1_000_000 }
      assert.isFalse(fits(pattern, "a".repeat(120), "component", work))
      assert.isAbove(work.steps, 0)
    }
  )

  it("stops when its work is used up, and says so", () => {
    const work = { steps: 1000 }
    assert.isFalse(fits("(?=.*(?=.*(?=.*b)))a*", "a".repeat(200), "start", work))
    assert.isBelow(work.steps, 0)
  })
})

describe("a pattern that is not read", () => {
  it.each([
    ["(a)\\1", /\\1/],
    ["(?P=name)", /is not read/],
    ["(?<=a)b", /is not read/],
    ["(?i)a", /is not read/],
    ["(?>a)", /is not read/],
    ["a*+", /possessive/],
    ["(a", /stays open/],
    ["a)", /not open/],
    ["[a", /stays open/],
    ["[z-a]", /no range/],
    ["*a", /counts nothing/],
    ["a{3,2}", /ends before/],
    ["a\\", /backslash/],
    ["(a{999}){999}", /steps/],
    ["((((){9999}){9999}){9999})a{9999}", /steps/],
    ["(".repeat(100), /deep/],
    ["a".repeat(mostCharacters + 1), /characters/]
  ])("%s says why", (pattern, why) => {
    const read = modulePattern(pattern)
    assert.match(Result.isFailure(read) ? read.failure : "", why)
  })
})
