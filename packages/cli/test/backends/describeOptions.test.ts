// SPDX-License-Identifier: Apache-2.0
/** What `tensorferry backends options` says: of every shipped backend, of one without annotations, and of none. */
import { assert, describe, it } from "@effect/vitest"
import type { BackendDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import * as Schema from "effect/Schema"
import { describeOptions, optionsText } from "../../src/backends/describeOptions.ts"
import { shippedDescriptors } from "../../src/job/backends.ts"
import { run } from "../support/command.ts"

const withOptions = (options: Schema.Codec<{ readonly [name: string]: unknown }, unknown>): BackendDescriptor => ({
  ...shippedDescriptors[0]!,
  name: "other",
  options
})

describe("options of backends", () => {
  it.each(shippedDescriptors.map((descriptor) => ({ name: descriptor.name, descriptor })))(
    "$name describes every option, in 80 columns",
    ({ descriptor }) => {
      const options = describeOptions(descriptor)
      assert.isNotEmpty(options)
      for (const { name, description } of options) assert.isNotEmpty(description ?? "", `${descriptor.name} ${name}`)
      for (const line of optionsText(descriptor.name, options).split("\n")) assert.isAtMost(line.length, 80, line)
    }
  )

  it("of a schema without annotations are names and types, and long names stay within 80 columns", () => {
    const long = "x".repeat(70)
    const options = describeOptions(withOptions(Schema.Struct({ plain: Schema.Int, [long]: Schema.String })))
    assert.deepStrictEqual(options, [
      { name: "plain", type: "whole number" },
      { name: long, type: "text" }
    ])
    for (const line of optionsText("other", options).split("\n")) assert.isAtMost(line.length, 80)
  })

  it("of a schema that names none are none", () => {
    const none = describeOptions(withOptions(Schema.Record(Schema.String, Schema.Unknown)))
    assert.deepStrictEqual(none, [])
    assert.strictEqual(optionsText("other", none), "other names no options.")
  })

  it("carry choices, ranges and defaults", () => {
    const xpu = describeOptions(shippedDescriptors.find(({ name }) => name === "xpu")!)
    const driver = xpu.find(({ name }) => name === "driver")
    assert.deepInclude(driver, { choices: ["auto", "level-zero", "opencl"], default: "auto" })
    assert.deepInclude(
      xpu.find(({ name }) => name === "device"),
      { minimum: 0, maximum: 65_535 }
    )
    assert.include(
      xpu.map(({ name }) => name),
      "libraries.levelZero"
    )
  })

  it("are printed by the command, and an unknown backend gets the names that there are", async () => {
    const [said, unknown] = await Promise.all([
      run(["backends", "options", "torch-copy", "--json"]),
      run(["backends", "options", "torch-cop"])
    ])
    assert.strictEqual(said.code, 0, said.stderr)
    const { backend, options } = JSON.parse(said.stdout)
    assert.strictEqual(backend, "torch-copy")
    assert.deepInclude(options[0], { name: "threads", minimum: 1, maximum: 64 })
    assert.strictEqual(unknown.code, 1)
    assert.match(unknown.stderr, /torch-copy, .*cuda/)
  })
})
