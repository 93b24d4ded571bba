// SPDX-License-Identifier: Apache-2.0
/**
 * The addon over the simulated driver: loading, libraries, devices, memory, and what it refuses. Programs have a file of
 * their own.
 */

import { spawn, spawnSync } from "node:child_process"
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import { Worker } from "node:worker_threads"
import { assert, describe, it } from "@effect/vitest"
import { dtypes } from "@tensorferry/core/base/DType"
import type { NativeAnswer, NativeHandle } from "@tensorferry/native/NativeAddon"
import { openSimulated, simulatedLibraries, simulator } from "@tensorferry/simulators/gpu"
import {
  allocate,
  allocateHost,
  librariesOf,
  onDevice,
  openDevice,
  problem,
  rowsMove,
  run,
  runSteps,
  simulated,
  start,
  value
} from "@tensorferry/simulators/gpuAddon"
import { gpuSimulator } from "@tensorferry/simulators/libraries"
import { collectGarbage } from "@tensorferry/testing/machine/collectGarbage"
import * as Effect from "effect/Effect"
import { type Addon, loadAddon, loadAddonFrom, type NativeDevice } from "../src/Addon.ts"
import { StepTable } from "../src/StepTable.ts"

const temporaryFolder = Effect.acquireRelease(
  Effect.sync(() => mkdtempSync(join(tmpdir(), "tensorferry-addon-"))),
  (folder) => Effect.sync(() => rmSync(folder, { recursive: true, force: true }))
)

const noCallback = () => assert.fail("must not run")

/** Parts of the kernels, which are compiled at the same time. */
const kernelParts = 5

describe("loading", () => {
  it.live("is Unavailable with a remedy where there is no addon", () =>
    Effect.gen(function* () {
      const { reason } = yield* Effect.flip(loadAddonFrom(tmpdir()))
      assert.strictEqual(reason._tag, "Unavailable")
      assert.include(reason.detail, tmpdir())
      assert.include(reason.remedy, "build:native")
    })
  )

  it.live("agrees on types", () =>
    Effect.gen(function* () {
      const addon = yield* loadAddon
      assert.deepStrictEqual(addon.dtypes, [...dtypes])
      assert.strictEqual(yield* loadAddon, addon)
    })
  )
})

describe("arguments", () => {
  it.live("of the wrong kind are refused by every function, never thrown at", () =>
    Effect.gen(function* () {
      const addon = yield* loadAddon
      const functions = Object.entries(addon).filter(([, member]) => typeof member === "function")
      assert.isAbove(functions.length, 25)
      const wrong: ReadonlyArray<ReadonlyArray<unknown>> = [
        [],
        [null],
        [{}, {}, {}, {}, {}],
        [-1, -1, -1, -1],
        [Number.NaN, 1n, 1, 1n, 1, true],
        [Symbol("x"), Symbol("y")],
        ["cuda", { runtime: [1], driver: [], compiler: [], collectives: [] }],
        ["opencl", { runtime: [], driver: [], compiler: [], collectives: [] }]
      ]
      for (const [name, call] of functions) {
        for (const values of wrong) {
          const answer = (call as (...values: ReadonlyArray<unknown>) => NativeAnswer<unknown>)(...values)
          assert.include(["InvalidArgument", "InvalidHandle"], answer.code, `${name}(${values.length})`)
        }
      }
    })
  )

  it.live("beyond those of a function are refused, and it does not run", () =>
    simulated(
      "",
      Effect.scoped(
        Effect.gen(function* () {
          const addon = yield* loadAddon
          const device = yield* openDevice(addon)
          const { memory } = yield* allocate(addon, device, 1000)
          const freeMemory: (...all: ReadonlyArray<never>) => NativeAnswer<undefined> = addon.freeMemory
          assert.strictEqual(problem(freeMemory(memory as never, 1 as never)).code, "InvalidArgument")
          value(addon.freeMemory(memory))
        })
      )
    )
  )

  it.live("that are handles of another kind, or closed, are refused", () =>
    simulated(
      "",
      Effect.scoped(
        Effect.gen(function* () {
          const addon = yield* loadAddon
          const libraries = librariesOf(addon)
          const device = yield* openDevice(addon)
          const { memory } = yield* allocate(addon, device, 1000)
          const program = value(addon.createProgram(device, new BigUint64Array(), [], undefined))
          const as = <Kind extends string>(handle: NativeHandle<string>) => handle as NativeHandle<Kind>
          const refused: ReadonlyArray<NativeAnswer<unknown>> = [
            addon.deviceCount(as<"libraries">(device)),
            addon.freeMemory(as<"memory">(device)),
            addon.freeMemory(as<"memory">(program)),
            addon.unpinHost(as<"pin">(memory)),
            addon.closeImport(as<"mapping">(memory)),
            addon.closeCommunicator(as<"communicator">(program)),
            addon.startProgram(as<"program">(memory), noCallback),
            addon.createProgram(device, new BigUint64Array(), [], as<"communicator">(program)),
            addon.cancelJob(as<"job">(libraries)),
            addon.freeHostMemory(memory, new ArrayBuffer(8)),
            addon.closeDevice(as<"device">(libraries))
          ]
          assert.deepStrictEqual(
            refused.map(({ code }) => code),
            refused.map(() => "InvalidHandle")
          )
          value(addon.freeMemory(memory))
          value(addon.closeProgram(program))
          assert.strictEqual(problem(addon.freeMemory(memory)).code, "InvalidHandle")
          assert.strictEqual(problem(addon.closeProgram(program)).code, "InvalidHandle")
          assert.strictEqual(problem(addon.startProgram(program, noCallback)).code, "InvalidHandle")
        })
      )
    )
  )
})

describe("libraries", () => {
  it.live("report path and version of each, and what was tried", () =>
    Effect.gen(function* () {
      const addon = yield* loadAddon
      const opened = value(
        addon.openLibraries("cuda", { ...simulatedLibraries, runtime: ["/nowhere/libcudart.so", gpuSimulator] })
      )
      assert.isDefined(opened.libraries)
      assert.deepStrictEqual(opened.runtime.tried, ["/nowhere/libcudart.so", gpuSimulator])
      assert.isTrue(opened.runtime.path?.endsWith("libtensorferry_gpu_simulator.so"))
      assert.isUndefined(opened.runtime.problem)
      assert.match(opened.runtime.version ?? "", /^13\.\d+$/)
      assert.match(opened.driver.version ?? "", /^13\.\d+$/)
      assert.match(opened.compiler.version ?? "", /^13\.\d+$/)
      assert.match(opened.collectives.version ?? "", /^2\.28\.\d+$/)
    })
  )

  it.live("that are missing are a problem with a name, not a failure", () =>
    Effect.gen(function* () {
      const addon = yield* loadAddon
      const names = { runtime: ["/nowhere/a.so", "/nowhere/b.so"], driver: [], compiler: [], collectives: [] }
      const opened = value(addon.openLibraries("cuda", names))
      assert.isUndefined(opened.libraries)
      assert.include(opened.runtime.problem, "/nowhere/a.so")
      assert.include(opened.runtime.problem, "/nowhere/b.so")
      assert.deepStrictEqual(opened.runtime.tried, names.runtime)
      assert.isUndefined(opened.runtime.path)
      assert.isDefined(opened.driver.problem)
    })
  )

  it.live("that lack a function are named with it, and the next name is tried", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const addon = yield* loadAddon
        const folder = yield* temporaryFolder
        const source = join(folder, "part.c")
        const library = join(folder, "libpart.so")
        writeFileSync(source, "int cudaGetDeviceCount(int* count) { *count = 0; return 0; }\n")
        // The compiler is not what a sanitizer that is preloaded here is to judge.
        const env = { ...process.env, LD_PRELOAD: "" }
        assert.strictEqual(spawnSync("cc", ["-shared", "-fPIC", "-o", library, source], { env }).status, 0)
        const lacking = value(addon.openLibraries("cuda", { ...simulatedLibraries, runtime: [library] }))
        assert.isUndefined(lacking.libraries)
        assert.include(lacking.runtime.problem, "libpart.so has no function cudaSetDevice")
        const both = value(addon.openLibraries("cuda", { ...simulatedLibraries, runtime: [library, gpuSimulator] }))
        assert.isDefined(both.libraries)
        assert.strictEqual(both.runtime.tried.length, 2)
        const other = value(addon.openLibraries("rocm", { ...simulatedLibraries, runtime: [library] }))
        assert.isUndefined(other.libraries)
        assert.include(other.runtime.problem, "hipGetDeviceCount")
      })
    )
  )

  it.live("of the other vendor serve as well, by their names", () =>
    simulated(
      "processors=5",
      Effect.gen(function* () {
        const addon = yield* loadAddon
        const { libraries } = value(addon.openLibraries("rocm", simulatedLibraries))
        if (libraries === undefined) return assert.fail("the simulated driver has these names too")
        const facts = value(addon.deviceFacts(libraries, 1))
        assert.strictEqual(facts.processors, 5)
        assert.strictEqual(facts.architecture, 0x942)
        const device = yield* Effect.promise(() =>
          run<NativeDevice>((done) => addon.startOpenDevice(libraries, 1, {}, done))
        )
        const { address, memory } = yield* allocate(addon, device, 100_000)
        simulator.write(address, new Uint8Array(50_000).fill(3))
        const steps = new StepTable()
        steps.moves(0, 0)
        const moves = [rowsMove(address + 50_000n, address, 5, 10_000, 10_000, 10_000)]
        yield* Effect.promise(() => runSteps(addon, device, steps.table, moves))
        assert.isTrue(simulator.read(address + 50_000n, 50_000).every((byte) => byte === 3))
        assert.include(value(addon.exportMemory(device, address)).base.toString(), address.toString())
        value(addon.freeMemory(memory))
        value(addon.closeDevice(device))
      })
    )
  )

  it.live("are optional where they only compile or connect", () =>
    simulated(
      "",
      Effect.scoped(
        Effect.gen(function* () {
          const addon = yield* loadAddon
          const { libraries } = value(
            addon.openLibraries("cuda", { ...simulatedLibraries, compiler: [], collectives: [] })
          )
          if (libraries === undefined) return assert.fail("runtime and driver are there")
          const refused = problem(addon.createUniqueId(libraries))
          assert.strictEqual(refused.code, "Unsupported")
          const opened = yield* Effect.promise(
            () => start<NativeDevice>((done) => addon.startOpenDevice(libraries, 0, {}, done)).answer
          )
          const { code, detail } = problem(opened)
          assert.strictEqual(code, "Unsupported")
          assert.include(detail, "NVRTC")
        })
      )
    )
  )
})

describe("devices", () => {
  it.live("describe themselves", () =>
    simulated(
      "devices=3 peers=0-1 memory=64m capability=8.6 processors=7 name=Some-GPU",
      Effect.gen(function* () {
        const addon = yield* loadAddon
        const libraries = librariesOf(addon)
        assert.strictEqual(value(addon.deviceCount(libraries)), 3)
        const facts = [0, 1, 2].map((ordinal) => value(addon.deviceFacts(libraries, ordinal)))
        assert.strictEqual(facts[0]?.name, "Some-GPU")
        assert.strictEqual(facts[1]?.processors, 7)
        assert.strictEqual(facts[1]?.architecture, 86)
        assert.strictEqual(facts[2]?.totalBytes, 64 * 2 ** 20)
        assert.isAtMost(facts[2]?.freeBytes ?? Number.NaN, 64 * 2 ** 20)
        assert.match(facts[0]?.uuid ?? "", /^[0-9a-f]{32}$/)
        assert.strictEqual(new Set(facts.map(({ uuid }) => uuid)).size, 3)
        assert.strictEqual(new Set(facts.map(({ busId }) => busId)).size, 3)
        assert.isTrue(value(addon.canAccessPeer(libraries, 0, 1)))
        assert.isFalse(value(addon.canAccessPeer(libraries, 0, 2)))
        const { code, op, detail, nativeCode } = problem(addon.deviceFacts(libraries, 3))
        assert.strictEqual(code, "InvalidArgument")
        assert.include(op, "cuDeviceGet")
        assert.match(detail, /INVALID_DEVICE|InvalidDevice/)
        assert.strictEqual(nativeCode, 101)
      })
    )
  )

  it.live("may be none", () =>
    simulated(
      "devices=0",
      Effect.gen(function* () {
        const addon = yield* loadAddon
        assert.strictEqual(value(addon.deviceCount(librariesOf(addon))), 0)
      })
    )
  )

  it.live("open, close once, and leave nothing", () =>
    simulated(
      "",
      Effect.gen(function* () {
        const addon = yield* loadAddon
        const libraries = librariesOf(addon)
        const device = yield* Effect.promise(() =>
          run<NativeDevice>((done) => addon.startOpenDevice(libraries, 1, { blocks: 3 }, done))
        )
        assert.isAtLeast(simulator.report().live.streams ?? 0, 8)
        const { memory } = yield* allocate(addon, device, 100)
        value(addon.closeDevice(device))
        for (const answer of [
          addon.closeDevice(device),
          addon.startAllocate(device, 1, noCallback),
          addon.createProgram(device, new BigUint64Array(), [], undefined),
          addon.exportMemory(device, 1n),
          addon.enablePeer(device, 0),
          addon.freeMemory(memory)
        ])
          assert.strictEqual(problem(answer).code, "InvalidHandle")
      })
    )
  )

  for (const [fault, code, op] of [
    ["cudaStreamCreateWithFlags:3:2", "OutOfMemory", "cudaStreamCreateWithFlags"],
    ["cuModuleLoadData:1:209", "Unsupported", "cuModuleLoadData"],
    ["cudaSetDevice:*:46", "SystemFailure", "cudaSetDevice"],
    ["nvrtcCompileProgram:1:6", "SystemFailure", "nvrtcCompileProgram"]
  ] as const) {
    it.live(`that do not open say why: ${fault}`, () =>
      simulated(
        `fail=${fault}`,
        Effect.gen(function* () {
          const addon = yield* loadAddon
          const libraries = librariesOf(addon)
          const failed = yield* Effect.promise(
            () => start<NativeDevice>((done) => addon.startOpenDevice(libraries, 0, {}, done)).answer
          )
          assert.strictEqual(problem(failed).code, code)
          assert.strictEqual(problem(failed).op, op)
          simulator.configure("clear=faults")
          yield* Effect.scoped(openDevice(addon))
        })
      )
    )
  }

  it.live("newer than the compiler get kernels of an older kind", () =>
    simulated(
      "fail=nvrtcCompileProgram:1:5",
      Effect.gen(function* () {
        const addon = yield* loadAddon
        yield* Effect.scoped(openDevice(addon))
        // The first part that is compiled is compiled again.
        assert.strictEqual(simulator.report().calls.nvrtcCompileProgram, kernelParts + 1)
        assert.isAtLeast(simulator.report().calls.nvrtcGetPTX ?? 0, 1)
      })
    )
  )

  it.live("let peers in, again and again", () =>
    onDevice("devices=3 peers=0-1", function* (addon, device) {
      value(addon.enablePeer(device, 1))
      value(addon.enablePeer(device, 1))
      assert.strictEqual(problem(addon.enablePeer(device, 2)).code, "Unsupported")
    })
  )
})

describe("kernel cache", () => {
  const compilations = () => simulator.report().calls.nvrtcCompileProgram ?? 0
  const use = (addon: Addon, kernelCache: string) => Effect.scoped(openDevice(addon, 0, { kernelCache }))

  it.live("compiles once, and a part again whose file is damaged", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const addon = yield* loadAddon
        const folder = join(yield* temporaryFolder, "a", "b")
        const file = () => join(folder, readdirSync(folder).sort()[0] ?? "none")
        yield* simulated("", use(addon, folder))
        assert.strictEqual(compilations(), kernelParts)
        assert.strictEqual(readdirSync(folder).length, kernelParts)
        assert.strictEqual(statSync(folder).mode & 0o777, 0o700)
        assert.strictEqual(statSync(file()).mode & 0o777, 0o600)
        yield* simulated("", use(addon, folder))
        assert.strictEqual(compilations(), 0)
        const whole = readFileSync(file())
        const flipped = Uint8Array.from(whole)
        flipped[whole.length - 5] = (flipped[whole.length - 5] ?? 0) ^ 1
        for (const damaged of [whole.subarray(0, whole.length - 1), new Uint8Array(), whole.subarray(0, 20), flipped]) {
          writeFileSync(file(), damaged)
          yield* simulated("", use(addon, folder))
          assert.strictEqual(compilations(), 1)
          assert.deepStrictEqual(readFileSync(file()), whole)
        }
        // Whole, but the driver no longer takes it.
        yield* simulated("fail=cuModuleLoadData:1:200", use(addon, folder))
        assert.strictEqual(compilations(), 1)
        // Another architecture has other files.
        yield* simulated("capability=8.0", use(addon, folder))
        assert.strictEqual(compilations(), kernelParts)
        assert.strictEqual(readdirSync(folder).length, 2 * kernelParts)
      })
    )
  )

  it.live("refuses a folder that others may enter", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const addon = yield* loadAddon
        const folder = join(yield* temporaryFolder, "open")
        mkdirSync(folder)
        chmodSync(folder, 0o755)
        yield* simulated(
          "",
          Effect.gen(function* () {
            const failed = yield* Effect.promise(
              () =>
                start<NativeDevice>((done) =>
                  addon.startOpenDevice(librariesOf(addon), 0, { kernelCache: folder }, done)
                ).answer
            )
            assert.strictEqual(problem(failed).code, "PermissionDenied")
            assert.include(problem(failed).detail, folder)
            chmodSync(folder, 0o700)
            yield* use(addon, folder)
          })
        )
      })
    )
  )
})

describe("memory", () => {
  it.live("is allocated, freed, and found by address", () =>
    simulated(
      "devices=2 memory=1g",
      Effect.scoped(
        Effect.gen(function* () {
          const addon = yield* loadAddon
          const devices = [yield* openDevice(addon, 0), yield* openDevice(addon, 1)] as const
          const blocks = []
          for (const byteLength of [1, 511, 65_537, 5 << 20])
            blocks.push(yield* allocate(addon, devices[1], byteLength))
          for (const { address } of blocks) assert.strictEqual(value(addon.deviceOfAddress(devices[0], address)), 1)
          assert.strictEqual(problem(addon.deviceOfAddress(devices[0], 64n)).code, "InvalidArgument")
          const host = new Uint8Array(100)
          const hostAddress = value(addon.addressOf(host))
          assert.strictEqual(problem(addon.deviceOfAddress(devices[0], hostAddress)).code, "InvalidArgument")
          for (const { memory } of blocks) value(addon.freeMemory(memory))
          for (const byteLength of [0, -1, 0.5, 2 ** 53])
            assert.strictEqual(problem(addon.startAllocate(devices[0], byteLength, noCallback)).code, "InvalidArgument")
          const full = yield* Effect.promise(
            () => start((done) => addon.startAllocate(devices[0], 2 ** 40, done)).answer
          )
          assert.strictEqual(problem(full).code, "OutOfMemory")
          assert.strictEqual(problem(full).op, "cudaMalloc")
          assert.strictEqual(problem(full).nativeCode, 2)
        })
      )
    )
  )

  it.live("that is being freed can be allocated again at once", () =>
    onDevice("memory=128m", function* (addon, device) {
      for (let round = 0; round < 20; round++) {
        const { memory } = yield* allocate(addon, device, 90 << 20)
        value(addon.freeMemory(memory))
      }
    })
  )

  it.live("of the host is seen by JavaScript until it is freed", () =>
    simulated(
      "",
      Effect.gen(function* () {
        const addon = yield* loadAddon
        const libraries = librariesOf(addon)
        const device = yield* Effect.promise(() =>
          run<NativeDevice>((done) => addon.startOpenDevice(libraries, 0, {}, done))
        )
        const make = (byteLength: number) => allocateHost(addon, device, byteLength)
        const first = yield* make(1000)
        const second = yield* make(8192)
        assert.strictEqual(first.buffer.byteLength, 1000)
        assert.strictEqual(value(addon.addressOf(new Uint8Array(first.buffer))), first.address)
        const view = new Uint8Array(first.buffer).fill(7)
        assert.strictEqual(problem(addon.freeHostMemory(first.memory, second.buffer)).code, "InvalidArgument")
        assert.strictEqual(problem(addon.freeHostMemory(first.memory, new ArrayBuffer(1))).code, "InvalidArgument")
        value(addon.freeHostMemory(first.memory, first.buffer))
        assert.isTrue(first.buffer.detached)
        assert.strictEqual(problem(addon.freeHostMemory(first.memory, first.buffer)).code, "InvalidHandle")
        assert.strictEqual(problem(addon.addressOf(view)).code, "InvalidArgument")
        value(addon.closeDevice(device))
        assert.isTrue(second.buffer.detached)
      })
    )
  )

  it.live("of the host stays where a script has transferred it to another buffer", () =>
    Effect.gen(function* () {
      const addon = yield* loadAddon
      const device = yield* Effect.promise(() =>
        run<NativeDevice>((done) => addon.startOpenDevice(librariesOf(addon), 0, {}, done))
      )
      const [freed, left] = [yield* allocateHost(addon, device, 1000), yield* allocateHost(addon, device, 8192)]
      const moved = [freed, left].map(({ buffer }) => new Uint8Array(buffer.transfer()).fill(7))
      value(addon.freeHostMemory(freed.memory, freed.buffer))
      assert.strictEqual(problem(addon.freeHostMemory(freed.memory, freed.buffer)).code, "InvalidHandle")
      value(addon.closeDevice(device))
      assert.deepStrictEqual(
        moved.map((bytes) => bytes.every((byte) => byte === 7)),
        [true, true]
      )
    })
  )

  it.live("that JavaScript forgets is released", () =>
    onDevice("", function* (addon, device) {
      const before = simulator.report().live
      for (let i = 0; i < 10; i++) {
        yield* Effect.promise(() => run((done) => addon.startAllocate(device, 1000, done)))
        yield* Effect.promise(() => run((done) => addon.startAllocateHost(device, 5000, done)))
        value(addon.createProgram(device, new BigUint64Array(), [], undefined))
      }
      const isBack = () => {
        const { memory, hostMemory } = simulator.report().live
        return memory === before.memory && hostMemory === before.hostMemory
      }
      for (let turn = 0; turn < 200 && !isBack(); turn++) {
        collectGarbage()
        yield* Effect.promise(() => new Promise((resolve) => setImmediate(resolve)))
      }
      assert.isTrue(isBack())
    })
  )

  it.live("of the host is pinned by page, once for all that overlap", () =>
    simulated(
      "devices=2",
      Effect.scoped(
        Effect.gen(function* () {
          const addon = yield* loadAddon
          const devices = [yield* openDevice(addon, 0), yield* openDevice(addon, 1)] as const
          const registrations = () => simulator.report().live.hostRegistrations ?? 0
          const before = registrations()
          const bytes = new Uint8Array(1 << 20)
          const address = value(addon.addressOf(bytes))
          const pins = [
            value(addon.pinHost(devices[0], address, 100_000)),
            value(addon.pinHost(devices[1], address, 100_000)),
            value(addon.pinHost(devices[0], address + 5000n, 10)),
            value(addon.pinHost(devices[1], address + 50_000n, 200_000)),
            value(addon.pinHost(devices[0], address, bytes.length))
          ]
          // The first range, what the fourth adds to it, and what the last adds to both.
          assert.strictEqual(registrations() - before, 3)
          for (const pin of pins) value(addon.unpinHost(pin))
          for (const pin of pins) assert.strictEqual(problem(addon.unpinHost(pin)).code, "InvalidHandle")
          yield* Effect.promise(() => runSteps(addon, devices[0], new BigUint64Array()))
          yield* Effect.promise(() => runSteps(addon, devices[1], new BigUint64Array()))
          assert.strictEqual(registrations(), before)
          assert.strictEqual(problem(addon.pinHost(devices[0], 0n, 10)).code, "InvalidArgument")
          assert.strictEqual(problem(addon.pinHost(devices[0], address, 0)).code, "InvalidArgument")
          // Known to the driver already.
          const host = yield* allocateHost(addon, devices[0], 8192)
          value(addon.unpinHost(value(addon.pinHost(devices[0], host.address, 8192))))
          value(addon.freeHostMemory(host.memory, host.buffer))
        })
      )
    )
  )
})

describe("sharing", () => {
  it.live("names the allocation, refuses what cannot be named, and does not open its own", () =>
    onDevice("", function* (addon, device) {
      const { memory, address } = yield* allocate(addon, device, 5 << 20)
      const exported = value(addon.exportMemory(device, address + 4097n))
      assert.strictEqual(exported.base, address)
      assert.isAtLeast(exported.byteLength, 5 << 20)
      assert.strictEqual(exported.handle.length, 64)
      const own = problem(addon.importMemory(device, exported.handle))
      assert.strictEqual(own.code, "InvalidArgument")
      assert.include(own.detail, "this very process")
      assert.strictEqual(problem(addon.importMemory(device, new Uint8Array(63))).code, "InvalidArgument")
      value(addon.freeMemory(memory))
      const virtual = simulator.allocateVirtual(1 << 20)
      const refused = problem(addon.exportMemory(device, virtual))
      assert.strictEqual(refused.code, "Unsupported")
      assert.include(refused.detail, "virtual-memory allocator")
      assert.strictEqual(value(addon.deviceOfAddress(device, virtual)), 0)
      simulator.freeVirtual(virtual)
      assert.strictEqual(problem(addon.exportMemory(device, 64n)).code, "InvalidArgument")
    })
  )

  it.live("reaches memory of another process until the import is closed", () =>
    onDevice("devices=2", function* (addon, device) {
      const script = fileURLToPath(new URL("./fixtures/exporter.ts", import.meta.url))
      const child = yield* Effect.acquireRelease(
        Effect.sync(() => spawn(process.execPath, [script], { stdio: ["pipe", "pipe", "inherit"] })),
        (exporter) => Effect.sync(() => void exporter.kill("SIGKILL"))
      )
      const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
      const line = yield* Effect.promise(() => lines.next())
      const { handle, offset, length } = JSON.parse(line.value ?? "{}")
      const imported = value(addon.importMemory(device, Uint8Array.from(handle)))
      const target = yield* allocate(addon, device, length)
      const steps = new StepTable()
      steps.copy(3, Number(target.address), Number(imported.address) + offset, length)
      yield* Effect.promise(() => runSteps(addon, device, steps.table))
      assert.deepStrictEqual(
        Uint8Array.from(simulator.read(target.address, length)),
        Uint8Array.from({ length }, (_, index) => (7 * index + 3) & 255)
      )
      value(addon.closeImport(imported.mapping))
      assert.strictEqual(problem(addon.closeImport(imported.mapping)).code, "InvalidHandle")
      value(addon.freeMemory(target.memory))
      yield* Effect.promise(() => runSteps(addon, device, new BigUint64Array()))
      child.stdin.write("end\n")
      const last = yield* Effect.promise(() => lines.next())
      assert.strictEqual(last.value, "[]")
    })
  )
})

describe("worker threads", () => {
  it.live("load, use and leave the addon in the middle of everything, again and again", () =>
    simulated(
      "devices=2",
      Effect.gen(function* () {
        const script = fileURLToPath(new URL("./fixtures/busy-worker.ts", import.meta.url))
        for (let round = 0; round < 5; round++) {
          yield* Effect.promise(async () => {
            const worker = new Worker(script)
            const failed = new Promise<never>((_, reject) => worker.once("error", reject))
            await Promise.race([new Promise((resolve) => worker.once("message", resolve)), failed])
            await worker.terminate()
          })
        }
        const addon = yield* loadAddon
        assert.strictEqual(value(addon.deviceCount(value(openSimulated(addon)).libraries ?? assert.fail("none"))), 2)
      })
    )
  )
})
