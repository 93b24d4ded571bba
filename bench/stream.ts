// SPDX-License-Identifier: Apache-2.0
/**
 * Checkpoints into host memory and back: `loadRegions` and `saveTensors` beside one region after the other, and beside plain
 * `pread` and `pwrite` of the same bytes into the same memory, taking turns in one run.
 *
 * The file lies in the folder for temporary files. "Cold" rows drop it from the page cache before each read.
 */
import { execFileSync } from "node:child_process"
import { closeSync, fsyncSync, mkdtempSync, openSync, readSync, rmSync, writeSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { TensorEngine as HostEngine } from "@tensorferry/backend-torch-copy"
import { median } from "@tensorferry/core/base/Numbers"
import { fullRegion, type Region, regionShape } from "@tensorferry/core/base/Region"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorBytes } from "@tensorferry/core/tensor/Tensor"
import { type Checkpoint, openCheckpoint } from "@tensorferry/model/checkpoint/CheckpointIndex"
import { tensorSource, writeSafetensors } from "@tensorferry/model/checkpoint/SafetensorsWriter"
import { loadRegions, saveTensors } from "@tensorferry/model/stream/CheckpointStream"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { BenchResult } from "./measure.ts"

const rounds = 7
const shape = [4096, 4096]
/** 32 MiB each in bfloat16. */
const names = Array.from({ length: 16 }, (_, at) => `layers.${String(at).padStart(2, "0")}.weight`)
const callBytes = 16 << 20

interface Held {
  readonly name: string
  readonly region: Region
  readonly into: Tensor
}

const seconds = <E, R>(effect: Effect.Effect<unknown, E, R>) =>
  Effect.suspend(() => {
    const begun = performance.now()
    return Effect.map(effect, () => (performance.now() - begun) / 1000)
  })

/** Drops the pages of a file that are clean. */
const drop = (file: string): void => {
  execFileSync("dd", [`if=${file}`, "iflag=nocache", "count=0", "status=none"])
}

/** The same bytes by plain calls: whole tensors in calls of 16 MiB, parts of rows in one call each. */
const plainReads = (file: string, offsets: ReadonlyMap<string, number>, held: ReadonlyArray<Held>): void => {
  const descriptor = openSync(file, "r")
  for (const { into, name, region } of held) {
    const bytes = tensorBytes(into)!
    const [[firstRow, endRow], [firstColumn, endColumn]] = region as readonly [
      readonly [number, number],
      readonly [number, number]
    ]
    const rowBytes = 2 * shape[1]!
    const runBytes = 2 * (endColumn - firstColumn)
    const isWhole = runBytes === rowBytes
    const [runs, length] = isWhole ? [1, (endRow - firstRow) * rowBytes] : [endRow - firstRow, runBytes]
    for (let run = 0; run < runs; run++) {
      const from = offsets.get(name)! + (firstRow + run) * rowBytes + 2 * firstColumn
      for (let at = 0; at < length; at += callBytes) {
        readSync(descriptor, bytes, run * length + at, Math.min(callBytes, length - at), from + at)
      }
    }
  }
  closeSync(descriptor)
}

const plainWrites = (file: string, tensors: ReadonlyArray<Tensor>): void => {
  const descriptor = openSync(file, "w")
  for (const tensor of tensors) {
    const bytes = tensorBytes(tensor)!
    for (let at = 0; at < bytes.length; at += callBytes) writeSync(descriptor, bytes.subarray(at, at + callBytes))
  }
  fsyncSync(descriptor)
  closeSync(descriptor)
}

const oneByOne = (source: Checkpoint, held: ReadonlyArray<Held>) =>
  Effect.forEach(held, ({ into, name, region }) => source.readRegion(name, region, tensorBytes(into)!), {
    discard: true
  })

const row = (
  name: string,
  bytes: number,
  ours: ReadonlyArray<number>,
  theirs: ReadonlyArray<number>,
  beside: string
) => ({
  case: `${name}, median of ${rounds}; ${beside}`,
  unit: "GB/s",
  ours: bytes / 1e9 / median(ours),
  reference: bytes / 1e9 / median(theirs),
  target: (0.9 * bytes) / 1e9 / median(theirs),
  lowerIsBetter: false
})

const loads = (file: string) =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const source = yield* openCheckpoint(file)
    // Tensors of one type lie in the order of their names, the last at the end of the file.
    const size = names.length * 2 * shape[0]! * shape[1]!
    const total = Number(execFileSync("stat", ["-c", "%s", file]))
    const offsets = new Map(names.map((name, at) => [name, total - size + (at * size) / names.length]))
    const results: Array<BenchResult> = []
    const quarter: Region = [
      [0, 4096],
      [1024, 2048]
    ]
    for (const [what, region, isCold] of [
      ["whole tensors", fullRegion(shape), false],
      [
        "a quarter of the rows",
        [
          [1024, 2048],
          [0, 4096]
        ],
        false
      ],
      ["a quarter of the columns", quarter, false],
      ["whole tensors, cold", fullRegion(shape), true]
    ] as ReadonlyArray<readonly [string, Region, boolean]>) {
      const made = Effect.gen(function* () {
        const held = yield* Effect.forEach(names, (name) =>
          Effect.map(engine.allocate("bfloat16", regionShape(region)), (into): Held => ({ name, region, into }))
        )
        for (const { into } of held) yield* engine.fill(into, 1)
        const bytes = held.reduce((sum, { into }) => sum + tensorBytes(into)!.length, 0)
        const times: [Array<number>, Array<number>, Array<number>] = [[], [], []]
        const ways = [
          loadRegions(source, held),
          Effect.sync(() => plainReads(file, offsets, held)),
          oneByOne(source, held)
        ]
        for (let round = -1; round < rounds; round++) {
          for (const [at, way] of ways.entries()) {
            if (isCold) drop(file)
            const took = yield* seconds(way)
            if (round >= 0) times[at]!.push(took)
          }
        }
        const beside = `one region after the other ${(bytes / 1e9 / median(times[2])).toPrecision(3)}, reference: pread`
        return row(`load ${what}`, bytes, times[0], times[1], beside)
      })
      results.push(yield* Effect.scoped(made))
    }
    return results
  })

/** Many small tensors, which lie one behind the other in the file. */
const smallLoads = (folder: string) =>
  Effect.gen(function* () {
    const [count, byteLength] = [20_000, 1024]
    const file = path.join(folder, "small.safetensors")
    const own = Array.from({ length: count }, (_, at) => `w.${String(at).padStart(5, "0")}`)
    const data = new Uint8Array(byteLength)
    yield* writeSafetensors(
      file,
      own.map((name) => ({ name, dtype: "uint8", shape: [byteLength], data }))
    )
    const source = yield* openCheckpoint(file)
    const engine = yield* TensorEngine
    const whole = yield* engine.allocate("uint8", [count, byteLength])
    yield* engine.fill(whole, 1)
    const held = own.map((name, at): Held => {
      const into = { ...whole, shape: [byteLength], strides: [1], byteOffset: at * byteLength }
      return { name, region: fullRegion([byteLength]), into }
    })
    const total = Number(execFileSync("stat", ["-c", "%s", file]))
    const calls = () => {
      const descriptor = openSync(file, "r")
      const start = total - count * byteLength
      for (const [at, { into }] of held.entries())
        readSync(descriptor, tensorBytes(into)!, 0, byteLength, start + at * byteLength)
      closeSync(descriptor)
    }
    const times: [Array<number>, Array<number>, Array<number>] = [[], [], []]
    const ways = [loadRegions(source, held), Effect.sync(calls), oneByOne(source, held)]
    for (let round = -1; round < rounds; round++) {
      for (const [at, way] of ways.entries()) {
        const took = yield* seconds(way)
        if (round >= 0) times[at]!.push(took)
      }
    }
    const bytes = count * byteLength
    const beside = `one region after the other ${(bytes / 1e9 / median(times[2])).toPrecision(3)}, reference: pread`
    return row("load 20000 tensors of 1 KiB", bytes, times[0], times[1], beside)
  })

const saves = (folder: string) =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const tensors = yield* Effect.forEach(names, (name) =>
      Effect.map(engine.allocate("bfloat16", shape), (tensor) => ({ name, tensor }))
    )
    for (const { tensor } of tensors) yield* engine.fill(tensor, 0x3c)
    const sources = tensors.map(({ name, tensor }) => Result.getOrThrow(tensorSource(name, tensor)))
    const file = path.join(folder, "out.safetensors")
    const times: [Array<number>, Array<number>, Array<number>] = [[], [], []]
    const ways = [
      saveTensors(file, tensors),
      Effect.sync(() =>
        plainWrites(
          file,
          tensors.map(({ tensor }) => tensor)
        )
      ),
      writeSafetensors(file, sources)
    ]
    for (let round = -1; round < rounds; round++) {
      for (const [at, way] of ways.entries()) {
        rmSync(file, { force: true })
        const took = yield* seconds(way)
        if (round >= 0) times[at]!.push(took)
      }
    }
    const bytes = tensors.length * 2 * shape[0]! * shape[1]!
    const beside = `one tensor after the other ${(bytes / 1e9 / median(times[2])).toPrecision(3)}, reference: pwrite and fsync`
    return row("save whole tensors", bytes, times[0], times[1], beside)
  })

export const stream = async (): Promise<ReadonlyArray<BenchResult>> => {
  const folder = mkdtempSync(path.join(process.env.TENSORFERRY_BENCH_FOLDER ?? tmpdir(), "tensorferry-stream-"))
  const file = path.join(folder, "model.safetensors")
  const program = Effect.gen(function* () {
    const engine = yield* TensorEngine
    const one = yield* engine.allocate("bfloat16", shape)
    yield* engine.fill(one, 0x3c)
    yield* saveTensors(
      file,
      names.map((name) => ({ name, tensor: one }))
    )
    return [...(yield* loads(file)), yield* Effect.scoped(smallLoads(folder)), yield* Effect.scoped(saves(folder))]
  })
  try {
    return await Effect.runPromise(Effect.provide(Effect.scoped(program), HostEngine.layer({ threads: 2 })))
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}
