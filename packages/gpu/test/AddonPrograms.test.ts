// SPDX-License-Identifier: Apache-2.0
/**
 * Programs of the addon over the simulated driver: that steps do what they say in the order they say it under many seeds,
 * that tables of any content get an answer, and how runs end early.
 */

import { spawnSync } from "node:child_process"
import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import type { NativeAnswer } from "@tensorferry/native/NativeAddon"
import { simulatedLibraries, simulator } from "@tensorferry/simulators/gpu"
import {
  allocate,
  allocateHost,
  connectAll,
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
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"
import {
  type Addon,
  type AllocatedMemory,
  loadAddon,
  type NativeCommunicator,
  type NativeDevice,
  type SpanTimes
} from "../src/Addon.ts"
import { StepTable } from "../src/StepTable.ts"

const seeds = isSoak ? 200 : 8

const makeRandom = (seed: number) => {
  let state = seed >>> 0
  return (limit: number): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return Math.floor((state / 2 ** 32) * limit)
  }
}

const pattern = (length: number, seed: number) => {
  const random = makeRandom(seed)
  return Uint8Array.from({ length }, () => random(256))
}

const read = (address: bigint, length: number) => Uint8Array.from(simulator.read(address, length))

/** Device memory with these contents. */
const filled = (addon: Addon, device: NativeDevice, bytes: Uint8Array) =>
  Effect.tap(allocate(addon, device, bytes.length), ({ address }) => Effect.sync(() => simulator.write(address, bytes)))

interface Difference {
  readonly differing: number
  readonly first: number
}

const emptyProgram = (addon: Addon, device: NativeDevice, steps: BigUint64Array) =>
  addon.createProgram(device, steps, [], undefined)

describe("steps", () => {
  it.live("copy in the order of streams and events, under every seed", () =>
    Effect.gen(function* () {
      for (let seed = 1; seed <= seeds; seed++) {
        yield* onDevice(`seed=${seed}`, function* (addon, device) {
          const length = 100_003
          const bytes = pattern(length, seed)
          const source = yield* filled(addon, device, bytes)
          const host = yield* allocateHost(addon, device, length)
          const stages = []
          for (let i = 0; i < 7; i++) stages.push(yield* filled(addon, device, new Uint8Array(length).fill(0xee)))
          const steps = new StepTable()
          // A chain through all streams, each of which waits for the one before.
          let from = Number(source.address)
          for (const [index, stage] of stages.entries()) {
            const stream = index as 0 | 1 | 2 | 3 | 4 | 5 | 6
            if (index > 0) steps.wait(stream, index - 1)
            steps.copy(stream, Number(stage.address), from, length)
            steps.copy(stream, Number(stage.address) + 5, from + 5, 0)
            steps.record(stream, index)
            from = Number(stage.address)
          }
          steps.wait(7, 6)
          steps.copy(7, Number(host.address), from, length)
          const program = value(emptyProgram(addon, device, steps.table))
          yield* Effect.promise(() => run((done) => addon.startProgram(program, done)))
          assert.deepStrictEqual(new Uint8Array(host.buffer), bytes)
          // Again, with other bytes: nothing may be left from the first run.
          const others = pattern(length, seed + 1000)
          simulator.write(source.address, others)
          yield* Effect.promise(() => run((done) => addon.startProgram(program, done)))
          assert.deepStrictEqual(new Uint8Array(host.buffer), others)
          value(addon.closeProgram(program))
        })
      }
    })
  )

  it.live("move rows by kernel and reduce, many times in one program", () =>
    Effect.gen(function* () {
      for (let seed = 1; seed <= seeds; seed++) {
        yield* onDevice(`seed=${seed}`, function* (addon, device) {
          const [rows, row, step] = [37, 771, 1024]
          const bytes = pattern(rows * step, seed)
          const source = yield* filled(addon, device, bytes)
          const packed = yield* filled(addon, device, new Uint8Array(rows * row + 64).fill(0xaa))
          const back = yield* filled(addon, device, new Uint8Array(rows * step).fill(0xbb))
          const floats = [1, 2, 3.5].map((number) => new Uint8Array(new Float32Array(500).fill(number).buffer))
          const operands = []
          for (const operand of floats) operands.push(yield* filled(addon, device, operand))
          const sum = yield* filled(addon, device, new Uint8Array(2000))
          const steps = new StepTable()
          steps.moves(2, 0)
          steps.record(2, 9)
          steps.wait(5, 9)
          steps.moves(5, 1)
          steps.reduce(
            1,
            BigUint64Array.from([
              ...[0n, 11n, 1n, 3n, sum.address],
              ...operands.map(({ address }) => address),
              ...[500n, 1n, 1n, 1n, 1n]
            ])
          )
          steps.moves(1, 2)
          const moves = [
            rowsMove(packed.address + 3n, source.address + 1n, rows, row, row, step),
            rowsMove(back.address, packed.address + 3n, rows, row, step, row),
            new BigUint64Array()
          ]
          const program = value(addon.createProgram(device, steps.table, moves, undefined))
          for (let round = 0; round < 2; round++)
            yield* Effect.promise(() => run((done) => addon.startProgram(program, done)))
          const after = read(back.address, rows * step)
          for (let i = 0; i < rows; i++) {
            assert.deepStrictEqual(
              after.subarray(i * step, i * step + row),
              bytes.subarray(i * step + 1, i * step + 1 + row)
            )
            assert.isTrue(after.subarray(i * step + row, (i + 1) * step).every((byte) => byte === 0xbb))
          }
          assert.deepStrictEqual([...new Float32Array(read(sum.address, 2000).buffer)], new Array(500).fill(6.5))
          value(addon.closeProgram(program))
        })
      }
    })
  )

  it.live("report times of spans and bytes on the way", () =>
    onDevice("seed=3", function* (addon, device) {
      const memory = yield* allocate(addon, device, 1 << 20)
      const steps = new StepTable()
      steps.spanBegins(0, 2)
      steps.copy(0, Number(memory.address), Number(memory.address) + 1000, 500)
      steps.progress(0, 500)
      steps.spanEnds(0, 2)
      steps.spanBegins(1, 0)
      steps.spin(1, 1000)
      steps.progress(1, 7)
      steps.spanEnds(3, 0)
      const program = value(emptyProgram(addon, device, steps.table))
      const job = start<SpanTimes>((done) => addon.startProgram(program, done))
      const times = value(yield* Effect.promise(() => job.answer))
      assert.strictEqual(times.length, 3)
      assert.strictEqual(times[1], 0)
      assert.isAtLeast(times[2] ?? -1, 0)
      assert.strictEqual(value(addon.movedBytes(job.handle)), 507)
      assert.strictEqual(simulator.report().launches.tensorferry_spin, 1)
    })
  )

  it.live("beyond what a driver takes at once are held back, and none is lost", () =>
    onDevice("seed=5", function* (addon, device) {
      const count = 3000
      const bytes = pattern(2 * count, 1)
      const source = yield* filled(addon, device, bytes)
      const target = yield* filled(addon, device, new Uint8Array(2 * count))
      const steps = new StepTable()
      for (let i = 0; i < count; i++) {
        steps.copy(i % 3 === 0 ? 4 : 6, Number(target.address) + 2 * i, Number(source.address) + 2 * i, 2)
        if (i % 7 === 0) steps.progress(4, 1)
      }
      yield* Effect.promise(() => runSteps(addon, device, steps.table))
      assert.deepStrictEqual(read(target.address, bytes.length), bytes)
    })
  )

  it.live("ask the driver for table memory once, not once per run", () =>
    onDevice("", function* (addon, device) {
      const memory = yield* allocate(addon, device, 1 << 16)
      const steps = new StepTable()
      steps.moves(0, 0)
      const moves = [rowsMove(memory.address, memory.address + 0x8000n, 10, 100, 100, 200)]
      yield* Effect.promise(() => runSteps(addon, device, steps.table, moves))
      const before = simulator.report().calls
      for (let i = 0; i < 20; i++) yield* Effect.promise(() => runSteps(addon, device, steps.table, moves))
      const after = simulator.report().calls
      for (const name of ["cudaMalloc", "cudaHostAlloc", "cudaFree", "cudaEventCreateWithFlags"])
        assert.strictEqual(after[name], before[name], name)
    })
  )
})

describe("tables", () => {
  const words = (...values: ReadonlyArray<number | bigint>) => BigUint64Array.from(values.map(BigInt))
  /** A table of MXFP8 from or to bfloat16 in two dimensions; addresses of the plain side, codes and scales. */
  const blockTable = (op: number, addresses: ReadonlyArray<number>, shapeAndStrides: ReadonlyArray<number>) =>
    words(op, 0, 10, 2, 1, 32, 0, 0, 15, 0, ...addresses, 0, 0, ...shapeAndStrides)

  it.live("that break a rule are refused with the number of the step", () =>
    onDevice("", function* (addon, device) {
      const bad: ReadonlyArray<readonly [BigUint64Array, number]> = [
        [words(0), 0],
        [words(13), 0],
        [words(4, 0, 99, 0), 1],
        [words(1), 0],
        [words(1, 64, 64), 0],
        [words(1 | (8 << 8), 64, 128, 1), 0],
        [words(1 | (1 << 16), 64, 128, 1), 0],
        [words(1, 0, 128, 1), 0],
        [words(1, 64, 128, 2 ** 50), 0],
        [words(1, 2n ** 64n - 1n, 128, 2), 0],
        [words(2, 0), 0],
        [words(3, 5, 1, 2), 0],
        [words(3, 1, 9), 0],
        [words(4, 65_536), 0],
        [words(5, 0), 0],
        [words(4, 1, 5, 0), 1],
        [words(6), 0],
        [words(7, 64, 1, 0), 0],
        [words(9), 0],
        [words(10, 0, 1), 0],
        [words(10, 0, 0), 1],
        [words(10, 0, 0, 10, 0, 0), 1],
        [words(10, 0, 2), 0],
        [words(11, 2n ** 53n), 0],
        [words(12, 10n ** 12n), 0]
      ]
      for (const [table, item] of bad) {
        const { code, item: found, op } = problem(emptyProgram(addon, device, table))
        assert.strictEqual(code, "InvalidArgument", table.join())
        if (op === "createProgram") assert.strictEqual(found, item, table.join())
      }
      const steps = words(2, 0)
      const badMoves: ReadonlyArray<BigUint64Array> = [
        words(1, 2),
        words((1 << 8) | (1 << 16) | (1 << 24), 0, 64, 8, 1, 1),
        words((1 << 8) | (1 << 16) | (1 << 24), 64, 0, 8, 1, 1),
        words((1 << 8) | (1 << 16) | (1 << 24), 64, 640, 2n ** 62n, 1, 1),
        words((1 << 8) | (1 << 16) | (2 << 24), 64, 640, 2n ** 40n, 2n ** 40n, 2n ** 40n, 1, 2n ** 40n, 1),
        words((1 << 8) | (1 << 16) | (1 << 24), 64, 640, 8, 2n ** 63n, 1),
        words((1n << 32n) | (1n << 24n) | (1n << 16n) | (1n << 8n), 64, 640, 8, 1, 1),
        words((1 << 8) | (1 << 16) | (1 << 24), 64, 66, 8, 1, 1)
      ]
      for (const table of badMoves)
        assert.strictEqual(
          problem(addon.createProgram(device, steps, [table], undefined)).code,
          "InvalidArgument",
          table.join()
        )
      const compared = addon.startCompare(device, words(1, 2), () => assert.fail("must not run"))
      assert.strictEqual(problem(compared).code, "InvalidArgument")
    })
  )

  it.live("quantize rows that are each longer than an index", () =>
    onDevice("", function* (addon, device) {
      const steps = new StepTable()
      const [rows, elements] = [3, 2 ** 42 + 1024]
      const [row, scaleRow] = [elements + 256, elements / 32 + 64]
      steps.quantize(3, blockTable(0, [2 ** 50, 2 ** 54, 2 ** 56], [rows, elements, row, 1, row, 1, scaleRow, 1, 0, 0]))
      const answer = addon.createProgram(device, steps.table, [], undefined)
      assert.strictEqual(answer.code, "Ok")
    })
  )

  it.live("of any content get an answer", () =>
    onDevice("", function* (addon, device) {
      const steps = new StepTable()
      steps.copy(0, 4096, 8192, 100)
      steps.record(0, 3)
      steps.wait(1, 3)
      steps.moves(1, 0)
      steps.spanBegins(1, 1)
      steps.reduce(2, words(0, 11, 2, 2, 4096, 8192, 16_384, 5, 6, 6, 1, 6, 1, 6, 1))
      steps.quantize(3, blockTable(1, [4096, 8192, 16_384], [4, 64, 64, 1, 64, 1, 2, 1, 0, 0]))
      steps.spanEnds(1, 1)
      steps.progress(4, 17)
      steps.spin(5, 100)
      const moves = [rowsMove(4096n, 1_000_000n, 7, 31, 64, 100)]
      const random = makeRandom(99)
      const interesting = [0n, 1n, 2n, 255n, 2n ** 31n, 2n ** 32n, 2n ** 53n, 2n ** 63n, 2n ** 64n - 1n]
      const mutate = (table: BigUint64Array): BigUint64Array => {
        const copy = table.slice(0, random(8) === 0 ? random(table.length) : table.length)
        for (let i = random(3); i >= 0 && copy.length > 0; i--) {
          const at = random(copy.length)
          const kind = random(3)
          const word = copy[at] ?? 0n
          if (kind === 0) copy[at] = interesting[random(interesting.length)] ?? 0n
          else if (kind === 1) copy[at] = BigInt.asUintN(64, word ^ (1n << BigInt(random(64))))
          else copy[at] = BigInt.asUintN(64, word + BigInt(random(5) - 2))
        }
        return copy
      }
      // A program is as long as its moves: one of a terabyte is valid, and takes seconds to be cut. Usual runs have none.
      const isLong = ([, , , rows = 0n, bytes = 0n]: BigUint64Array) =>
        !isSoak && rows * bytes > 2n ** 30n && rows * bytes < 2n ** 50n
      const seen = new Map<string, number>()
      for (let i = 0; i < 100 * seeds; i++) {
        const isInSteps = random(2) === 0
        const mutated = isInSteps ? moves : moves.map(mutate)
        if (mutated.some(isLong)) continue
        const answer: NativeAnswer<unknown> = addon.createProgram(
          device,
          isInSteps ? mutate(steps.table) : steps.table,
          mutated,
          undefined
        )
        seen.set(answer.code, (seen.get(answer.code) ?? 0) + 1)
      }
      assert.deepStrictEqual([...seen.keys()].sort(), ["InvalidArgument", "Ok"])
    })
  )
})

describe("comparisons", () => {
  it.live("count bytes and find the first element", () =>
    onDevice("", function* (addon, device) {
      const bytes = pattern(100_000, 1)
      const left = yield* filled(addon, device, bytes)
      const right = yield* filled(addon, device, bytes)
      const compare = (move: BigUint64Array) =>
        Effect.promise(() => run<Difference>((done) => addon.startCompare(device, move, done)))
      const rows = rowsMove(left.address, right.address, 100, 700, 1000, 1000)
      assert.deepStrictEqual(yield* compare(rows), { differing: 0, first: -1 })
      simulator.write(right.address + 5_350n, Uint8Array.of((bytes[5350] ?? 0) ^ 1))
      simulator.write(right.address + 99_001n, Uint8Array.of((bytes[99_001] ?? 0) ^ 9))
      simulator.write(right.address + 800n, Uint8Array.of(1, 2, 3))
      assert.deepStrictEqual(yield* compare(rows), { differing: 2, first: 5 * 700 + 350 })
      const wide = words32(left.address, right.address, 25_000)
      assert.strictEqual((yield* compare(wide)).first, 200)
      assert.deepStrictEqual(yield* compare(new BigUint64Array()), { differing: 0, first: -1 })
    })
  )
})

/** One copy of so many float32 in a row. */
const words32 = (destination: bigint, source: bigint, count: number) =>
  BigUint64Array.from([BigInt((11 << 8) | (11 << 16) | (1 << 24)), destination, source, BigInt(count), 1n, 1n])

describe("communicators", () => {
  it.live("exchange in groups, any number of times", () =>
    Effect.gen(function* () {
      const addon = yield* loadAddon
      for (let seed = 1; seed <= seeds; seed++) {
        yield* simulated(
          `devices=3 seed=${seed}`,
          Effect.scoped(
            Effect.gen(function* () {
              const ranks = [0, 1, 2]
              const devices: Array<NativeDevice> = []
              for (const rank of ranks) devices.push(yield* openDevice(addon, rank))
              const communicators = yield* connectAll(addon, devices)
              const length = 40_001
              const outgoing: Array<AllocatedMemory> = []
              const incoming: Array<AllocatedMemory> = []
              for (const device of devices) {
                outgoing.push(yield* filled(addon, device, pattern(3 * length, seed + outgoing.length)))
                incoming.push(yield* filled(addon, device, new Uint8Array(3 * length).fill(0xcc)))
              }
              const programs = ranks.map((rank) => {
                const steps = new StepTable()
                for (let group = 0; group < 3; group++) {
                  steps.begin(2)
                  for (const peer of ranks) {
                    const at = group * 10_000
                    const part = Math.min(length, at + 10_000) - at
                    steps.send(2, Number(outgoing[rank]?.address) + peer * length + at, part, peer)
                    steps.receive(2, Number(incoming[rank]?.address) + peer * length + at, part, peer)
                    steps.send(2, Number(outgoing[rank]?.address), 0, peer)
                  }
                  steps.end(2)
                  steps.progress(2, 1)
                }
                return value(addon.createProgram(devices[rank]!, steps.table, [], communicators[rank]))
              })
              for (let round = 0; round < 2; round++)
                yield* Effect.promise(() =>
                  Promise.all(programs.map((program) => run<SpanTimes>((done) => addon.startProgram(program, done))))
                )
              for (const rank of ranks) {
                for (const peer of ranks) {
                  const got = read(incoming[rank]!.address + BigInt(peer * length), 30_000)
                  const sent = pattern(3 * length, seed + peer)
                  assert.deepStrictEqual(got, sent.subarray(rank * length, rank * length + 30_000))
                }
              }
              for (const program of programs) value(addon.closeProgram(program))
              for (const communicator of communicators) value(addon.closeCommunicator(communicator))
              assert.strictEqual(problem(addon.closeCommunicator(communicators[0]!)).code, "InvalidHandle")
            })
          )
        )
      }
    })
  )

  it.live("that wait for a rank that never comes are cancelled", () =>
    onDevice("devices=2", function* (addon, device) {
      const id = value(addon.createUniqueId(librariesOf(addon)))
      assert.strictEqual(id.length, 128)
      const job = start<NativeCommunicator>((done) => addon.startConnect(device, id, 0, 2, done))
      value(addon.cancelJob(job.handle))
      assert.strictEqual(problem(yield* Effect.promise(() => job.answer)).code, "Cancelled")
      for (const [rank, size, bytes] of [
        [2, 2, 128],
        [0, 0, 128],
        [0, 2, 127]
      ] as const) {
        const refused = addon.startConnect(device, new Uint8Array(bytes), rank, size, () => assert.fail("must not run"))
        assert.strictEqual(problem(refused).code, "InvalidArgument")
      }
    })
  )

  /** Two ranks of which the first waits for what the second never sends. */
  const withStuckRun = (
    settings: string,
    body: (context: {
      readonly addon: Addon
      readonly device: NativeDevice
      readonly communicators: ReadonlyArray<NativeCommunicator>
      readonly steps: BigUint64Array
    }) => Effect.Effect<void>
  ) =>
    Effect.gen(function* () {
      const addon = yield* loadAddon
      yield* simulated(
        `devices=2 ${settings}`,
        Effect.scoped(
          Effect.gen(function* () {
            const devices = [yield* openDevice(addon, 0), yield* openDevice(addon, 1)] as const
            const communicators = yield* connectAll(addon, devices)
            const memory = yield* allocate(addon, devices[0], 1000)
            const steps = new StepTable()
            steps.begin(1)
            steps.receive(1, Number(memory.address), 1000, 1)
            steps.end(1)
            steps.record(1, 0)
            steps.wait(0, 0)
            steps.copy(0, Number(memory.address) + 500, Number(memory.address), 500)
            yield* body({ addon, device: devices[0], communicators, steps: steps.table })
          })
        )
      )
    })

  it.live("are aborted when a run is cancelled, and say so afterwards", () =>
    withStuckRun("", ({ addon, device, communicators, steps }) =>
      Effect.gen(function* () {
        const program = value(addon.createProgram(device, steps, [], communicators[0]))
        const job = start((done) => addon.startProgram(program, done))
        const queued = start((done) => addon.startProgram(program, done))
        value(addon.cancelJob(job.handle))
        assert.strictEqual(problem(yield* Effect.promise(() => job.answer)).code, "Cancelled")
        assert.strictEqual(problem(yield* Effect.promise(() => queued.answer)).code, "PeerGone")
        const later = problem(addon.startProgram(program, () => assert.fail("must not run")))
        assert.strictEqual(later.code, "PeerGone")
        assert.include(later.detail, "Connect all ranks again")
        assert.strictEqual(problem(addon.createProgram(device, steps, [], communicators[0])).code, "PeerGone")
        value(addon.closeCommunicator(communicators[0]!))
        assert.strictEqual(problem(addon.createProgram(device, steps, [], communicators[0])).code, "InvalidHandle")
        // The device goes on.
        yield* Effect.promise(() => runSteps(addon, device, new BigUint64Array()))
      })
    )
  )

  it.live("end what runs on them when they are closed", () =>
    withStuckRun("", ({ addon, device, communicators, steps }) =>
      Effect.gen(function* () {
        const program = value(addon.createProgram(device, steps, [], communicators[0]))
        const job = start((done) => addon.startProgram(program, done))
        value(addon.closeCommunicator(communicators[0]!))
        assert.strictEqual(problem(yield* Effect.promise(() => job.answer)).code, "PeerGone")
      })
    )
  )

  it.live("end with the device", () =>
    withStuckRun("", ({ addon, device, communicators, steps }) =>
      Effect.gen(function* () {
        const program = value(addon.createProgram(device, steps, [], communicators[0]))
        const job = start((done) => addon.startProgram(program, done))
        value(addon.closeDevice(device))
        assert.strictEqual(problem(yield* Effect.promise(() => job.answer)).code, "Cancelled")
      })
    )
  )

  for (const [fault, op, nativeCode] of [
    ["ncclGroupEnd:1:3", "ncclGroupEnd", 3],
    ["ncclRecv:1:5", "ncclRecv", 5],
    ["ncclGroupStart:1:2", "ncclGroupStart", 2],
    ["cudaMemcpyAsync:1:1", "cudaMemcpyAsync", 1]
  ] as const) {
    it.live(`do not survive a failed step: ${fault}`, () =>
      withStuckRun(`fail=${fault}`, ({ addon, device, communicators, steps }) =>
        Effect.gen(function* () {
          const program = value(addon.createProgram(device, steps, [], communicators[0]))
          const failed = problem(yield* Effect.promise(() => start((done) => addon.startProgram(program, done)).answer))
          assert.strictEqual(failed.op, op)
          assert.strictEqual(failed.nativeCode, nativeCode)
          assert.isAtLeast(failed.item, 0)
          const later = problem(addon.startProgram(program, () => assert.fail("must not run")))
          assert.strictEqual(later.code, "PeerGone")
        })
      )
    )
  }
})

describe("libraries without non-blocking calls", () => {
  const forward = (returns: string, name: string, parameters: string, names: string) =>
    `${returns} ${name}(${parameters}) { return ((${returns} (*)(${parameters}))dlsym(library(), "${name}"))(${names}); }`

  const source = `
#include <dlfcn.h>
#include <stddef.h>
typedef struct { char bytes[128]; } Id;
static void* library(void) { return dlopen("${gpuSimulator}", RTLD_NOW); }
${[
  forward("int", "ncclGetVersion", "int* a", "a"),
  forward("const char*", "ncclGetErrorString", "int a", "a"),
  forward("int", "ncclGetUniqueId", "Id* a", "a"),
  forward("int", "ncclCommInitRank", "void** a, int b, Id c, int d", "a, b, c, d"),
  forward("int", "ncclCommAbort", "void* a", "a"),
  forward("int", "ncclCommDestroy", "void* a", "a"),
  forward("int", "ncclCommGetAsyncError", "void* a, int* b", "a, b"),
  forward("int", "ncclGroupStart", "void", ""),
  forward("int", "ncclGroupEnd", "void", ""),
  forward("int", "ncclSend", "const void* a, size_t b, int c, int d, void* e, void* f", "a, b, c, d, e, f"),
  forward("int", "ncclRecv", "void* a, size_t b, int c, int d, void* e, void* f", "a, b, c, d, e, f")
].join("\n")}
`

  it.live("connect on threads of their own, and may be left alone", () =>
    simulated(
      "devices=2",
      Effect.scoped(
        Effect.gen(function* () {
          const addon = yield* loadAddon
          const folder = yield* Effect.acquireRelease(
            Effect.sync(() => mkdtempSync(join(tmpdir(), "tensorferry-blocking-"))),
            (made) => Effect.sync(() => rmSync(made, { recursive: true, force: true }))
          )
          const library = join(folder, "libblocking.so")
          writeFileSync(join(folder, "blocking.c"), source)
          // A compiler does not free all it has, which a sanitizer that is loaded here would hold against it.
          const { LD_PRELOAD: _, ...env } = process.env
          const built = spawnSync("cc", ["-shared", "-fPIC", "-o", library, join(folder, "blocking.c"), "-ldl"], {
            encoding: "utf8",
            env
          })
          assert.strictEqual(built.status, 0, built.stderr)
          const opened = value(addon.openLibraries("cuda", { ...simulatedLibraries, collectives: [library] }))
          assert.strictEqual(opened.collectives.path, library)
          const libraries = opened.libraries ?? assert.fail("they are there")
          const open = (ordinal: number) =>
            Effect.acquireRelease(
              Effect.promise(() => run<NativeDevice>((done) => addon.startOpenDevice(libraries, ordinal, {}, done))),
              (device) => Effect.sync(() => void addon.closeDevice(device))
            )
          const devices = [yield* open(0), yield* open(1)] as const
          const lonely = value(addon.createUniqueId(libraries))
          const job = start<NativeCommunicator>((done) => addon.startConnect(devices[0], lonely, 0, 2, done))
          while (simulator.report().calls.ncclCommInitRank !== 1)
            yield* Effect.promise(() => new Promise((resolve) => setImmediate(resolve)))
          value(addon.cancelJob(job.handle))
          assert.strictEqual(problem(yield* Effect.promise(() => job.answer)).code, "Cancelled")
          // The other rank comes after all, and the thread that was left alone ends the connection.
          const late = start<NativeCommunicator>((done) => addon.startConnect(devices[1], lonely, 1, 2, done))
          value(addon.closeCommunicator(value(yield* Effect.promise(() => late.answer))))
          const communicators = yield* connectAll(addon, devices)
          const bytes = pattern(1000, 4)
          const source0 = yield* filled(addon, devices[0], bytes)
          const target1 = yield* filled(addon, devices[1], new Uint8Array(1000))
          const sending = new StepTable()
          sending.begin(0)
          sending.send(0, Number(source0.address), 1000, 1)
          sending.end(0)
          const receiving = new StepTable()
          receiving.begin(0)
          receiving.receive(0, Number(target1.address), 1000, 0)
          receiving.end(0)
          yield* Effect.promise(() =>
            Promise.all([
              runSteps(addon, devices[0], sending.table, [], communicators[0]),
              runSteps(addon, devices[1], receiving.table, [], communicators[1])
            ])
          )
          assert.deepStrictEqual(read(target1.address, 1000), bytes)
          for (const communicator of communicators) value(addon.closeCommunicator(communicator))
        })
      )
    )
  )
})

describe("runs", () => {
  it.live("that are cancelled while they wait in line do nothing", () =>
    onDevice("", function* (addon, device) {
      const memory = yield* filled(addon, device, pattern(5000, 3))
      const steps = new StepTable()
      for (let i = 0; i < 200; i++) steps.copy(0, Number(memory.address), Number(memory.address) + 2500, 2500)
      const program = value(emptyProgram(addon, device, steps.table))
      const jobs = [1, 2, 3].map(() => start((done) => addon.startProgram(program, done)))
      value(addon.cancelJob(jobs[2]!.handle))
      const answers = yield* Effect.promise(() => Promise.all(jobs.map(({ answer }) => answer)))
      assert.deepStrictEqual(
        answers.map(({ code }) => code),
        ["Ok", "Ok", "Cancelled"]
      )
    })
  )

  it.live("keep what they use until they end", () =>
    Effect.gen(function* () {
      for (let seed = 1; seed <= seeds; seed++) {
        yield* onDevice(`seed=${seed}`, function* (addon, device) {
          const memory = yield* allocate(addon, device, 300_000)
          const host = yield* allocateHost(addon, device, 300_000)
          const bytes = new Uint8Array(300_000)
          const address = value(addon.addressOf(bytes))
          const pin = value(addon.pinHost(device, address, bytes.length))
          const steps = new StepTable()
          steps.copy(0, Number(memory.address), Number(host.address), 300_000)
          steps.record(0, 0)
          steps.wait(1, 0)
          steps.copy(1, Number(address), Number(memory.address), 300_000)
          steps.moves(1, 0)
          const moves = [rowsMove(memory.address, memory.address + 150_000n, 100, 1000, 1000, 1001)]
          const program = value(addon.createProgram(device, steps.table, moves, undefined))
          new Uint8Array(host.buffer).fill(9)
          const job = start((done) => addon.startProgram(program, done))
          value(addon.closeProgram(program))
          value(addon.freeMemory(memory.memory))
          value(addon.freeHostMemory(host.memory, host.buffer))
          value(addon.unpinHost(pin))
          value(yield* Effect.promise(() => job.answer))
          assert.isTrue(bytes.every((byte) => byte === 9))
        })
      }
    })
  )

  it.live("report what the device answers, by its name", () =>
    simulated(
      "late=cudaMemcpyAsync:1:700",
      Effect.gen(function* () {
        const addon = yield* loadAddon
        yield* Effect.scoped(
          Effect.gen(function* () {
            const device = yield* openDevice(addon)
            const memory = yield* allocate(addon, device, 5000)
            const steps = new StepTable()
            steps.copy(0, Number(memory.address), Number(memory.address) + 2500, 2500)
            const program = value(emptyProgram(addon, device, steps.table))
            const failed = problem(
              yield* Effect.promise(() => start((done) => addon.startProgram(program, done)).answer)
            )
            assert.strictEqual(failed.code, "SystemFailure")
            assert.strictEqual(failed.nativeCode, 700)
            assert.include(failed.detail, "cudaErrorIllegalAddress")
          })
        )
        // A device that has failed frees nothing any more.
        simulator.reset()
      })
    )
  )
})
