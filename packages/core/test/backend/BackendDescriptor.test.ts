// SPDX-License-Identifier: Apache-2.0
/** What is said of a descriptor or of options that are wrong: the path of the field, what it should be, what it is. */
import { assert, describe, it } from "@effect/vitest"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import {
  type BackendDescriptor,
  type BackendError,
  backendApiVersion,
  checkDescriptor,
  requireApiVersion
} from "../../src/backend/BackendDescriptor.ts"
import { tensorEngine } from "../../src/backend/BackendLayer.ts"
import { registryLayer } from "../../src/backend/BackendRegistry.ts"
import { optionsLayer } from "../../src/backend/OptionsLayer.ts"
import { TensorEngine } from "../../src/service/TensorEngine.ts"

const right = {
  name: "spool",
  apiVersion: 1,
  deviceFamilies: ["cpu"],
  capabilities: {
    tensorEngine: { cast: true, reduce: true, quantize: [], changes: false, products: false, hostVisible: true },
    copyDriver: {
      gather: false,
      requiresProcessGroupBarrier: false,
      requiresTaskId: false,
      deviceFamilies: ["cpu"],
      maxMessageBytes: 1024
    },
    replayTransfer: true
  },
  options: Schema.Struct({}),
  probe: Effect.succeed({ _tag: "Available" as const, detail: "", versions: {} }),
  quirks: { "moves one byte": "it moves words" },
  tensorEngine: () => ReferenceEngine.layer(),
  copyDriver: () => Layer.empty,
  replayTransfer: () => Layer.empty
}

const messageOf = <A>(effect: Effect.Effect<A, BackendError>) =>
  Effect.map(Effect.flip(effect), (error) => {
    assert.isAbove(error.reason.remedy.length, 0)
    return { tag: error.reason._tag, detail: error.reason.detail, remedy: error.reason.remedy }
  })

describe("a descriptor", () => {
  it.effect("that is right is returned unchanged", () =>
    Effect.gen(function* () {
      assert.strictEqual(yield* checkDescriptor(right, "it"), right as unknown as BackendDescriptor)
    })
  )

  const without = (name: keyof typeof right): object =>
    Object.fromEntries(Object.entries(right).filter(([key]) => key !== name))
  const driver = right.capabilities.copyDriver
  const wrong: ReadonlyArray<readonly [value: unknown, message: string]> = [
    [null, "the descriptor must be object, but is null"],
    ["spool", 'the descriptor must be object, but is "spool"'],
    [without("name"), "name is missing"],
    [{ ...right, name: 7 }, "name must be string, but is 7"],
    [{ ...right, name: "Spool" }, 'name must be a lower-case name such as my-backend, but is "Spool"'],
    [without("apiVersion"), "apiVersion is missing"],
    [{ ...right, apiVersion: "1" }, 'apiVersion must be number, but is "1"'],
    [{ ...right, deviceFamilies: "cpu" }, 'deviceFamilies must be array, but is "cpu"'],
    [{ ...right, deviceFamilies: ["cpu", 3] }, "deviceFamilies[1] must be string, but is 3"],
    [without("capabilities"), "capabilities is missing"],
    [{ ...right, capabilities: null }, "capabilities must be object, but is null"],
    [
      { ...right, capabilities: { ...right.capabilities, copyDriver: { ...driver, gather: "yes" } } },
      'capabilities.copyDriver.gather must be boolean, but is "yes"'
    ],
    [
      { ...right, capabilities: { ...right.capabilities, copyDriver: { ...driver, maxMessageBytes: 0 } } },
      "capabilities.copyDriver.maxMessageBytes must be a value greater than 0, but is 0"
    ],
    [
      { ...right, capabilities: { ...right.capabilities, copyDriver: { ...driver, zeroCopy: true } } },
      "capabilities.copyDriver.zeroCopy is not known"
    ],
    [{ ...right, options: {} }, "options must be a schema of effect/Schema, but is an object"],
    [{ ...right, probe: () => undefined }, "probe must be an Effect, but is a function"],
    [{ ...right, copyDriver: Layer.empty }, "copyDriver must be a function, but is an object"],
    [{ ...right, copyDrivr: right.copyDriver }, "copyDrivr is not known"],
    [{ ...right, quirks: { "moves one byte": "" } }, "quirks.moves one byte must be"],
    [without("copyDriver"), "capabilities.copyDriver is stated, but copyDriver is missing"],
    [
      { ...right, capabilities: { ...right.capabilities, replayTransfer: false } },
      "replayTransfer is a function, but capabilities.replayTransfer is not stated"
    ]
  ]
  for (const [value, message] of wrong) {
    it.effect(message, () =>
      Effect.gen(function* () {
        const { tag, detail } = yield* messageOf(checkDescriptor(value, "descriptors[0] of spool-package"))
        assert.strictEqual(tag, "InvalidDescriptor")
        assert.include(detail, `In descriptors[0] of spool-package: ${message}`)
      })
    )
  }

  it.effect("with several faults names them all", () =>
    Effect.gen(function* () {
      const { detail } = yield* messageOf(checkDescriptor({ ...right, probe: 1, options: 2 }, "it"))
      assert.include(detail, "options must be")
      assert.include(detail, "probe must be")
    })
  )
})

describe("versions of the contracts", () => {
  const newer = "Upgrade @tensorferry/core to a version of contract"
  const older = "Upgrade the backend package to a version for contract"
  /** What the package was written for, what the core has, who must be upgraded. */
  const pairs: ReadonlyArray<readonly [number, number, string]> = [
    [1, 2, `${older} 2.`],
    [2, 1, `${newer} 2.`],
    [3, 1, `${newer} 3.`]
  ]
  for (const [writtenFor, core, remedy] of pairs) {
    it.effect(`a package for ${writtenFor} with a core of ${core}: both sides say the same`, () =>
      Effect.gen(function* () {
        const byCore = yield* messageOf(checkDescriptor({ ...right, apiVersion: writtenFor }, "it", core))
        const byPackage = yield* messageOf(requireApiVersion("spool", writtenFor, core))
        assert.deepStrictEqual(byCore, byPackage)
        assert.deepStrictEqual(byCore, {
          tag: "IncompatibleApiVersion",
          detail: `It was written for contract version ${writtenFor}; this core has version ${core}.`,
          remedy
        })
      })
    )
  }

  it.effect("come before the shape, which another version may have changed", () =>
    Effect.gen(function* () {
      const next = { name: "spool", apiVersion: backendApiVersion + 1, services: {} }
      assert.strictEqual((yield* messageOf(checkDescriptor(next, "it"))).tag, "IncompatibleApiVersion")
    })
  )

  it.effect("are checked by layers that no registry has seen", () =>
    Effect.gen(function* () {
      const withOptions = optionsLayer(Schema.Struct({}), "spool", "There are none.", backendApiVersion + 1)
      const layer = withOptions({}, () => ReferenceEngine.layer())
      const { tag } = yield* messageOf(Effect.provide(TensorEngine, layer))
      assert.strictEqual(tag, "IncompatibleApiVersion")
    })
  )
})

describe("options", () => {
  const Options = Schema.Struct({
    threads: Schema.optionalKey(Schema.Int),
    libraries: Schema.optionalKey(
      Schema.Struct({
        runtime: Schema.optionalKey(Schema.String),
        search: Schema.optionalKey(Schema.Array(Schema.String))
      })
    )
  })
  const { capabilities, replayTransfer: _, copyDriver: __, ...rest } = right
  const spool = {
    ...rest,
    capabilities: { tensorEngine: capabilities.tensorEngine },
    options: Options
  } as unknown as BackendDescriptor
  const build = (options: unknown) =>
    Effect.provide(
      TensorEngine,
      tensorEngine({ deviceFamily: "cpu", options }).pipe(Layer.provide(registryLayer([spool])))
    )

  const wrong: ReadonlyArray<readonly [options: unknown, message: string]> = [
    [7, "The value of the options must be object, but is 7."],
    [{ threads: "4" }, 'threads must be number, but is "4".'],
    [{ treads: 4 }, "treads is not known."],
    [{ libraries: { runtime: 4 } }, "libraries.runtime must be string, but is 4."],
    [{ libraries: { runtim: "x" } }, "libraries.runtim is not known."],
    [{ libraries: { search: ["x", true] } }, "libraries.search[1] must be string, but is true."]
  ]
  for (const [options, message] of wrong) {
    it.effect(message, () =>
      Effect.gen(function* () {
        const { tag, detail } = yield* messageOf(build(options))
        assert.strictEqual(tag, "InvalidOptions")
        assert.strictEqual(detail, message)
      })
    )
  }

  it.effect("that are right build", () =>
    Effect.asVoid(build({ threads: 2, libraries: { runtime: "x", search: ["y"] } }))
  )
})
