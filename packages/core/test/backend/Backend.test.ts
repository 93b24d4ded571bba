// SPDX-License-Identifier: Apache-2.0
/** Registry, options, choice and loading of backends: what is refused, and what the refusal says. */
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { pathToFileURL } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { makeDelayedReplayDevice } from "@tensorferry/testing/DelayedReplayDevice"
import { loopbackLayer, makeLoopbackNetwork } from "@tensorferry/testing/Loopback"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import * as Config from "effect/Config"
import * as ConfigProvider from "effect/ConfigProvider"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as TestClock from "effect/testing/TestClock"
import {
  type BackendDescriptor,
  type BackendReason,
  backendApiVersion,
  backendError,
  type ProbeResult,
  validateDescriptor
} from "../../src/backend/BackendDescriptor.ts"
import {
  buildReplayTransferBackend,
  type CopyServiceChoice,
  chooseCopyBackend,
  copyService,
  hostMemory,
  replayTransfer,
  tensorEngine
} from "../../src/backend/BackendLayer.ts"
import { loadBackendPackage, loaderLayer } from "../../src/backend/BackendLoader.ts"
import { BackendRegistry, makeRegistry, registryLayer } from "../../src/backend/BackendRegistry.ts"
import * as ProcessGroupInProcess from "../../src/group/ProcessGroupInProcess.ts"
import {
  ReplayTransferBusyPoll,
  ReplayTransferTiming,
  replayTransferLayer
} from "../../src/replay/ReplayTransferLayer.ts"
import { CopyService } from "../../src/service/CopyService.ts"
import { ProcessGroup } from "../../src/service/ProcessGroup.ts"
import { ReplayTransferBackend } from "../../src/service/ReplayTransferBackend.ts"
import { TensorEngine } from "../../src/service/TensorEngine.ts"
import { type Device, formatDevice } from "../../src/tensor/Device.ts"

const available: ProbeResult = { _tag: "Available", detail: "", versions: {} }
const unavailable: ProbeResult = {
  _tag: "Unavailable",
  tried: ["/opt/one", "/opt/two"],
  cause: "There is no device.",
  remedy: "Put one in."
}

const Options = Schema.Struct({
  threads: Schema.optionalKey(Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 8 })))
})

const backend = (
  name: string,
  deviceFamilies: ReadonlyArray<string>,
  changes: Partial<BackendDescriptor> = {}
): BackendDescriptor => ({
  name,
  apiVersion: backendApiVersion,
  deviceFamilies,
  capabilities: {
    tensorEngine: { cast: true, reduce: true, quantize: [], changes: false, products: false, hostVisible: true },
    copyDriver: {
      gather: true,
      requiresProcessGroupBarrier: false,
      requiresTaskId: false,
      deviceFamilies: ["*"],
      maxMessageBytes: 2 ** 40
    }
  },
  options: Options as BackendDescriptor["options"],
  probe: Effect.succeed(available),
  tensorEngine: () => ReferenceEngine.layer({ deviceFamily: deviceFamilies[0] === "*" ? "cpu" : deviceFamilies[0]! }),
  copyDriver: () => loopbackLayer(makeLoopbackNetwork()),
  ...changes
})

/** Runs what must fail with this reason, and gives the message. */
const refused = <A, E extends { readonly reason: BackendReason; readonly message: string }>(
  reason: BackendReason["_tag"],
  effect: Effect.Effect<A, E>
) =>
  Effect.map(Effect.flip(effect), (error) => {
    assert.strictEqual(error.reason._tag, reason, error.message)
    assert.isAbove(error.reason.remedy.length, 0)
    return error.message
  })

describe("registry", () => {
  it.effect("finds by name and by device family; `*` comes last", () =>
    Effect.gen(function* () {
      const registry = yield* makeRegistry([backend("everything", ["*"]), backend("alpha", ["alpha", "alpha2"])])
      assert.strictEqual((yield* registry.byName("alpha")).name, "alpha")
      assert.strictEqual((yield* registry.forFamily("alpha2", "copyDriver")).name, "alpha")
      assert.strictEqual((yield* registry.forFamily("cpu", "tensorEngine")).name, "everything")
      assert.strictEqual((yield* registry.forFamily("alpha", "copyDriver", "everything")).name, "everything")
    })
  )

  it.effect("refuses two backends of one name, and unknown names with those it knows", () =>
    Effect.gen(function* () {
      assert.include(yield* refused("AmbiguousBackend", makeRegistry([backend("a", ["x"]), backend("a", ["y"])])), "a")
      const registry = yield* makeRegistry([backend("alpha", ["alpha"]), backend("beta", ["beta"])])
      assert.include(yield* refused("UnknownBackend", registry.byName("gamma")), "alpha, beta")
      assert.include(yield* refused("UnknownBackend", registry.forFamily("gamma", "copyDriver")), "gamma")
    })
  )

  it.effect("asks for a name where two claim a family", () =>
    Effect.gen(function* () {
      const registry = yield* makeRegistry([backend("one", ["alpha"]), backend("two", ["alpha"])])
      const message = yield* refused("AmbiguousBackend", registry.forFamily("alpha", "copyDriver"))
      assert.include(message, "one, two")
      assert.strictEqual((yield* registry.forFamily("alpha", "copyDriver", "two")).name, "two")
      const stars = yield* makeRegistry([backend("one", ["*"]), backend("two", ["*"])])
      yield* refused("AmbiguousBackend", stars.forFamily("alpha", "tensorEngine"))
    })
  )

  it.effect("says which backends offer what the named one does not", () =>
    Effect.gen(function* () {
      const { tensorEngine: _, ...rest } = backend("driver-only", ["alpha"])
      const driverOnly = { ...rest, capabilities: { copyDriver: rest.capabilities.copyDriver! } }
      const registry = yield* makeRegistry([driverOnly, backend("full", ["*"])])
      const message = yield* refused("NotOffered", registry.forFamily("alpha", "tensorEngine", "driver-only"))
      assert.include(message, "full")
      assert.strictEqual((yield* registry.forFamily("alpha", "tensorEngine")).name, "full")
    })
  )
})

describe("descriptors", () => {
  it.effect("of an older or newer contract are refused with what to upgrade", () =>
    Effect.gen(function* () {
      const older = yield* refused("IncompatibleApiVersion", validateDescriptor(backend("a", [], { apiVersion: 0 })))
      assert.include(older, "Upgrade the backend package")
      const newer = yield* refused("IncompatibleApiVersion", validateDescriptor(backend("a", [], { apiVersion: 2 })))
      assert.include(newer, "Upgrade @tensorferry/core")
      yield* refused("IncompatibleApiVersion", makeRegistry([backend("a", [], { apiVersion: 2 })]))
    })
  )

  it.effect("must state services and capabilities together, under a plain name", () =>
    Effect.gen(function* () {
      yield* refused("InvalidDescriptor", validateDescriptor(backend("Upper", [])))
      yield* refused("InvalidDescriptor", validateDescriptor(backend("../a", [])))
      yield* refused("InvalidDescriptor", validateDescriptor(backend("a", [], { capabilities: {} })))
      const { copyDriver: _, ...rest } = backend("a", [])
      assert.include(yield* refused("InvalidDescriptor", validateDescriptor(rest)), "copyDriver")
    })
  )
})

/** One rank's copy service of a choice, among these backends. */
const built = (choice: CopyServiceChoice, descriptors: ReadonlyArray<BackendDescriptor>) =>
  Effect.gen(function* () {
    const service = yield* CopyService
    const engine = yield* TensorEngine
    const tensor = yield* engine.allocate("uint8", [3])
    yield* service.submitSend(tensor, 0, 1)
    yield* service.submitRecv(yield* engine.allocate("uint8", [3]), 0, 1)
    yield* service.run()
    return { backend: service.backend, family: tensor.device.family }
  }).pipe(
    Effect.orDie,
    Effect.scoped,
    Effect.provide(
      copyService(choice).pipe(Layer.provide([registryLayer(descriptors), ProcessGroupInProcess.layerSingle()]))
    )
  )

describe("copyService", () => {
  it.effect("is built by name, from a value or from configuration", () =>
    Effect.gen(function* () {
      const descriptors = [backend("alpha", ["alpha"]), backend("beta", ["beta"])]
      const family = (yield* built({ backend: "beta", deviceFamily: "beta" }, descriptors)).family
      assert.strictEqual(family, "beta")
      const config = ConfigProvider.layer(ConfigProvider.fromEnvRecord({ WHICH: "alpha" }))
      const chosen = built({ backend: Config.String("WHICH"), deviceFamily: "alpha" }, descriptors)
      assert.strictEqual((yield* Effect.provide(chosen, config)).family, "alpha")
      const missing = built({ backend: Config.String("NOTHING"), deviceFamily: "alpha" }, descriptors)
      assert.include(yield* refused("InvalidOptions", Effect.provide(missing, config)), "NOTHING")
    })
  )

  it.effect("has the engine of the family asked for where the driver brings none", () =>
    Effect.gen(function* () {
      const { tensorEngine: _, ...rest } = backend("wire", ["*"])
      const wire = { ...rest, capabilities: { copyDriver: rest.capabilities.copyDriver! } }
      const descriptors = [wire, backend("alpha", ["alpha"]), backend("cpu", ["cpu"])]
      for (const family of ["alpha", "cpu"]) {
        const chosen = built({ backend: "wire", deviceFamily: family }, descriptors)
        assert.strictEqual((yield* chosen).family, family)
      }
    })
  )

  it.effect("refuses options that the backend does not know, with their path", () =>
    Effect.gen(function* () {
      const descriptors = [backend("alpha", ["alpha"])]
      const choice = { backend: "alpha", deviceFamily: "alpha" }
      yield* built({ ...choice, options: { threads: 4 } }, descriptors)
      const unknown = yield* refused("InvalidOptions", built({ ...choice, options: { treads: 4 } }, descriptors))
      assert.include(unknown, "treads")
      const wrong = yield* refused("InvalidOptions", built({ ...choice, options: { threads: "4" } }, descriptors))
      assert.include(wrong, "threads")
      yield* refused("InvalidOptions", built({ ...choice, options: { threads: 9 } }, descriptors))
    })
  )

  it.effect("fails with what was tried and the remedy where the named backend is unavailable", () =>
    Effect.gen(function* () {
      const descriptors = [
        backend("absent", ["alpha"], { probe: Effect.succeed(unavailable) }),
        backend("fallback", ["*"])
      ]
      const message = yield* refused("Unavailable", built({ backend: "absent", deviceFamily: "alpha" }, descriptors))
      for (const part of ["There is no device.", "/opt/one", "/opt/two", "Put one in."]) assert.include(message, part)
    })
  )

  it.effect("a backend that joins others gets the wires of a family in their order, and the options as they are", () =>
    Effect.gen(function* () {
      const seen: Array<unknown> = []
      const wire = (name: string, wireOrder: number, changes: Partial<BackendDescriptor> = {}) =>
        backend(name, [], { wireOrder, ...changes })
      const joins = backend("joins", ["alpha"], {
        join: (options, wires) => {
          seen.push(options, ...wires.map(({ name, order }) => [name, order]))
          return Effect.fail(backendError("Unavailable", { detail: "Enough was seen.", remedy: "Stop." }))
        }
      })
      const elsewhere = wire("elsewhere", 1)
      const other = { ...elsewhere.capabilities.copyDriver!, deviceFamilies: ["beta"] }
      const registry = registryLayer([
        joins,
        wire("slow", 20),
        wire("fast", 10),
        { ...elsewhere, capabilities: { ...elsewhere.capabilities, copyDriver: other } }
      ])
      const [group] = yield* ProcessGroupInProcess.makeInProcessGroups(1)
      const built = (name: string, options: unknown) =>
        Layer.build(copyService({ backend: name, deviceFamily: "alpha", options })).pipe(
          Effect.provide(Layer.merge(registry, Layer.succeed(ProcessGroup, group!))),
          Effect.scoped
        )
      assert.include(yield* refused("Unavailable", built("auto", { any: "thing" })), "Enough was seen.")
      assert.deepStrictEqual(seen, [{ any: "thing" }, ["fast", 10], ["slow", 20]])
      // Who is named does not join.
      yield* built("joins", { threads: 2 })
      assert.lengthOf(seen, 3)
    })
  )

  it.effect("falls back only for auto, and says why", () =>
    Effect.gen(function* () {
      const choose = (name: string, descriptors: ReadonlyArray<BackendDescriptor>) =>
        Effect.provide(chooseCopyBackend(name, "alpha"), registryLayer(descriptors))
      const absent = backend("absent", ["alpha"], { probe: Effect.succeed(unavailable) })
      const found = yield* choose("auto", [backend("fallback", ["*"]), absent])
      assert.strictEqual(found.descriptor.name, "fallback")
      assert.include(found.reason, "absent: There is no device.")
      const first = yield* choose("auto", [backend("fallback", ["*"]), backend("native", ["alpha"])])
      assert.strictEqual(first.descriptor.name, "native")
      assert.include(yield* refused("Unavailable", choose("auto", [absent])), "There is no device.")
      yield* refused("UnknownBackend", choose("nobody", [absent]))
    })
  )
})

describe("other services", () => {
  const provided = <A, E>(layer: Layer.Layer<A, E, BackendRegistry>, descriptors: ReadonlyArray<BackendDescriptor>) =>
    Effect.scoped(Layer.build(Layer.provide(layer, registryLayer(descriptors))))

  it.effect("staging must be a positive number of whole bytes", () =>
    Effect.gen(function* () {
      const descriptors = [backend("alpha", ["cpu"])]
      for (const stagingBytes of [0, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY]) {
        const layer = Layer.provide(
          copyService({ backend: "alpha", stagingBytes }),
          ProcessGroupInProcess.layerSingle()
        )
        assert.include(yield* refused("InvalidOptions", provided(layer, descriptors)), String(stagingBytes))
      }
    })
  )

  it.effect("engines are found by family, and refused where no backend has one", () =>
    Effect.gen(function* () {
      const descriptors = [backend("alpha", ["alpha"])]
      yield* provided(tensorEngine({ deviceFamily: "alpha" }), descriptors)
      yield* refused("UnknownBackend", provided(tensorEngine({ deviceFamily: "beta" }), descriptors))
      yield* refused(
        "InvalidOptions",
        provided(tensorEngine({ deviceFamily: "alpha", options: { x: 1 } }), descriptors)
      )
      yield* refused("UnknownBackend", provided(hostMemory(), descriptors))
    })
  )

  /** A backend with slots in memory of this process. */
  const replaying = (name: string, deviceFamilies: ReadonlyArray<string>, changes: Partial<BackendDescriptor> = {}) => {
    const honest = backend(name, deviceFamilies)
    return {
      ...honest,
      capabilities: { ...honest.capabilities, replayTransfer: true },
      replayTransfer: (device: Device, ringDepth: number) =>
        replayTransferLayer(Effect.succeed(makeDelayedReplayDevice({ mode: "asynchronous", device })), {
          ringDepth,
          backend: name
        }),
      ...changes
    }
  }

  it.effect("replay backends refuse devices, depths and deadlines that make no sense", () =>
    Effect.gen(function* () {
      assert.strictEqual(buildReplayTransferBackend, replayTransfer)
      // The same words whether the family has a backend of its own, one that serves any family, or none that is available.
      for (const descriptors of [
        [replaying("alpha", ["alpha"])],
        [replaying("everything", ["*"])],
        [replaying("alpha", ["alpha"], { probe: Effect.succeed(unavailable) })]
      ]) {
        const build = (choice: Partial<Parameters<typeof replayTransfer>[0]>) =>
          provided(replayTransfer({ device: "alpha:0", ringDepth: 2, ...choice }), descriptors)
        assert.include(yield* refused("InvalidOptions", build({ device: "Alpha 0" })), '"Alpha 0"')
        for (const ringDepth of [0, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY, 65_537]) {
          assert.include(yield* refused("InvalidOptions", build({ ringDepth })), `depth of ${ringDepth}`)
        }
        for (const deadline of [0, -5, "soon" as "1 second"]) {
          assert.include(yield* refused("InvalidOptions", build({ deadline })), String(deadline))
        }
        assert.include(yield* refused("InvalidOptions", build({ busyPoll: "soon" as "1 second" })), "soon")
        const unset = Config.Int("REPLAY_TEST_DEPTH_THAT_IS_NOT_SET")
        yield* refused("InvalidOptions", build({ ringDepth: unset }))
      }
      const without = [backend("alpha", ["alpha"])]
      yield* refused("UnknownBackend", provided(replayTransfer({ device: "alpha:0", ringDepth: 2 }), without))
      yield* refused(
        "NotOffered",
        provided(replayTransfer({ device: "alpha:0", ringDepth: 2, backend: "alpha" }), without)
      )
    })
  )

  it.effect("replay backends refuse options, and say what an unavailable one lacks", () =>
    Effect.gen(function* () {
      const choice = { device: "alpha:1", ringDepth: 2 }
      for (const family of ["alpha", "*"]) {
        const message = yield* refused(
          "InvalidOptions",
          provided(replayTransfer({ ...choice, options: { thread: 1 } }), [replaying("alpha", [family])])
        )
        assert.include(message, "thread")
        const absent = replaying("alpha", [family], { probe: Effect.succeed(unavailable) })
        const lacking = yield* refused("Unavailable", provided(replayTransfer(choice), [absent]))
        for (const part of ["There is no device.", "/opt/one; /opt/two", "Put one in."]) assert.include(lacking, part)
      }
    })
  )

  it.effect("how long waits poll, and whether copies are timed, reaches the backend", () =>
    Effect.gen(function* () {
      const told: Array<unknown> = []
      const alpha = replaying("alpha", ["alpha"])
      const listening: BackendDescriptor = {
        ...alpha,
        replayTransfer: (device, ringDepth) =>
          Layer.unwrap(
            Effect.gen(function* () {
              told.push(Duration.toMillis(yield* ReplayTransferBusyPoll), yield* ReplayTransferTiming)
              return alpha.replayTransfer(device, ringDepth, {})
            })
          )
      }
      const choice = { device: "alpha:0", ringDepth: 2, busyPoll: "7 millis", timing: true } as const
      yield* provided(replayTransfer(choice), [listening])
      assert.deepStrictEqual(told, [7, true])
    })
  )

  it.effect("the family of the device decides who replays, and its engine is there for whoever asks", () =>
    Effect.gen(function* () {
      const engines: Array<unknown> = []
      const everything = replaying("everything", ["*"])
      const descriptors = [
        replaying("alpha", ["alpha"]),
        backend("beta", ["beta"]),
        {
          ...everything,
          replayTransfer: ((device, ringDepth, _, familyEngine) =>
            Layer.unwrap(
              Effect.gen(function* () {
                const engine = yield* Effect.provide(TensorEngine, familyEngine!)
                engines.push(engine.deviceFamilies)
                return everything.replayTransfer(device, ringDepth, {})
              })
            )) satisfies BackendDescriptor["replayTransfer"]
        }
      ]
      const depths = (device: string, deadline?: Duration.Input) =>
        Effect.gen(function* () {
          const built = yield* ReplayTransferBackend
          assert.strictEqual(formatDevice((yield* built.attributes).device), device)
          yield* built.slotState(2)
          const beyond = yield* Effect.flip(built.slotState(3))
          const waiting = yield* Effect.forkChild(Effect.flip(built.waitReady(1)), { startImmediately: true })
          yield* TestClock.adjust(deadline ?? "60 seconds")
          const late = yield* Fiber.join(waiting)
          assert.strictEqual(late.reason._tag, "DeadlineExceeded")
          return [beyond.reason.backend, late.reason.backend]
        }).pipe(
          Effect.scoped,
          Effect.provide(
            replayTransfer({
              device,
              ringDepth: Config.succeed(3),
              ...(deadline === undefined ? {} : { deadline })
            }).pipe(Layer.provide(registryLayer(descriptors))),
            { local: true }
          )
        )
      assert.deepStrictEqual(yield* depths("alpha:2", "3 seconds"), ["alpha", "alpha"])
      assert.deepStrictEqual(engines, [])
      assert.deepStrictEqual(yield* depths("beta:1"), ["everything", "everything"])
      assert.deepStrictEqual(engines, [["beta"]])
      assert.deepStrictEqual(yield* depths("cpu", "1 minute"), ["everything", "everything"])
    })
  )
})

describe("loader", () => {
  /** Installs packages into a fresh application folder and gives its URL. */
  const application = (packages: { readonly [name: string]: { readonly [file: string]: string } }) =>
    Effect.acquireRelease(
      Effect.promise(async () => {
        const root = await mkdtemp(path.join(tmpdir(), "tensorferry-backends-"))
        for (const [name, files] of Object.entries(packages)) {
          const folder = path.join(root, "node_modules", name)
          await mkdir(folder, { recursive: true })
          for (const [file, text] of Object.entries(files)) await writeFile(path.join(folder, file), text)
        }
        await writeFile(
          path.join(root, "outside.mjs"),
          "globalThis.tensorferryEscaped = true; export const descriptors = []"
        )
        return { root, url: pathToFileURL(path.join(root, "main.mjs")).href }
      }),
      ({ root }) => Effect.promise(() => rm(root, { recursive: true, force: true }))
    )

  const manifest = (name: string, tensorferry?: unknown) =>
    JSON.stringify({ name, version: "1.0.0", type: "module", tensorferry })
  const effect = import.meta.resolve("effect/Effect")
  const schema = import.meta.resolve("effect/Schema")
  const source = (name: string, apiVersion = backendApiVersion, changes = "") => `
    import * as Effect from ${JSON.stringify(effect)}
    import * as Schema from ${JSON.stringify(schema)}
    export const descriptors = [{
      name: ${JSON.stringify(name)}, apiVersion: ${apiVersion}, deviceFamilies: ["alpha"], capabilities: {},
      options: Schema.Struct({}), probe: Effect.succeed({ _tag: "Available", detail: "", versions: {} }), ${changes}
    }]`

  it.live("imports the descriptors that a package names", () =>
    Effect.gen(function* () {
      const { url } = yield* application({
        "good-backend": {
          "package.json": manifest("good-backend", { descriptors: "./index.js" }),
          "index.js": source("good")
        },
        "@scope/other": {
          "package.json": manifest("@scope/other", { descriptors: "./index.js" }),
          "index.js": source("other")
        }
      })
      const layer = loaderLayer({
        packages: ["good-backend", "@scope/other"],
        from: url,
        descriptors: [backend("own", ["*"])]
      })
      const names = yield* Effect.provide(
        BackendRegistry.use(({ descriptors }) => Effect.succeed(descriptors.map(({ name }) => name))),
        layer
      )
      assert.deepStrictEqual(names, ["own", "good", "other"])
    }).pipe(Effect.scoped)
  )

  it.live("refuses packages that are missing, silent, broken, foreign or of another version", () =>
    Effect.gen(function* () {
      const pointing = (name: string, text: string) => ({
        "package.json": manifest(name, { descriptors: "./index.js" }),
        "index.js": text
      })
      const { url } = yield* application({
        silent: { "package.json": manifest("silent") },
        garbled: { "package.json": "{ no json" },
        throwing: pointing("throwing", "throw new Error('no luck')"),
        empty: pointing("empty", "export const descriptors = []"),
        foreign: pointing("foreign", "export const descriptors = [{ name: 'x' }]"),
        nothing: pointing("nothing", "export const other = 1"),
        optionless: pointing("optionless", source("optionless", backendApiVersion, "options: {}")),
        incapable: pointing("incapable", source("incapable", backendApiVersion, "capabilities: null")),
        absent: { "package.json": manifest("absent", { descriptors: "./nowhere.js" }) },
        newer: pointing("newer", source("newer", 99))
      })
      const load = (name: string) => loadBackendPackage(name, url)
      assert.include(yield* refused("LoadFailed", load("not-installed")), "not-installed")
      yield* refused("InvalidDescriptor", load("silent"))
      assert.include(yield* refused("LoadFailed", load("garbled")), "not JSON")
      assert.include(yield* refused("LoadFailed", load("throwing")), "no luck")
      yield* refused("InvalidDescriptor", load("empty"))
      yield* refused("InvalidDescriptor", load("foreign"))
      yield* refused("InvalidDescriptor", load("nothing"))
      yield* refused("InvalidDescriptor", load("optionless"))
      yield* refused("InvalidDescriptor", load("incapable"))
      yield* refused("LoadFailed", load("absent"))
      assert.include(yield* refused("IncompatibleApiVersion", load("newer")), "99")
    }).pipe(Effect.scoped)
  )

  it.live("refuses files outside of the package, without running them", () =>
    Effect.gen(function* () {
      const escaping = (name: string, file: string) => ({ "package.json": manifest(name, { descriptors: file }) })
      const { url } = yield* application({
        upwards: escaping("upwards", "../../outside.mjs"),
        sibling: escaping("sibling", "../sibling-2/index.js"),
        itself: escaping("itself", ".")
      })
      for (const name of ["upwards", "sibling", "itself"]) {
        assert.include(yield* refused("InvalidDescriptor", loadBackendPackage(name, url)), "outside")
      }
      assert.isFalse("tensorferryEscaped" in globalThis)
    }).pipe(Effect.scoped)
  )
})
