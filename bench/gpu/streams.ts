// SPDX-License-Identifier: Apache-2.0
/**
 * Checkpoints into a device's memory and out of it. A file of about 7 GB lies in memory (`/dev/shm`), so
 * that the disk of the machine does not count; safetensors for PyTorch reads and writes the same tensors in the same run.
 *
 * What was loaded is proven by its digests: those of the tensors that the file was written from.
 */
import { existsSync, mkdtempSync, rmSync, statSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import type { BackendDescriptor, BackendOptions } from "@tensorferry/core/backend/BackendDescriptor"
import { median } from "@tensorferry/core/base/Numbers"
import { fullRegion } from "@tensorferry/core/base/Region"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import { openCheckpoint } from "@tensorferry/model/checkpoint/CheckpointIndex"
import { loadRegions, saveTensors } from "@tensorferry/model/stream/CheckpointStream"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { runPython } from "./python.ts"
import type { Figure } from "./replay.ts"

const rounds = 3
const warmUps = 1
const tensorCount = 52
/** Portions under way, and MiB of each. More are under way at once only where UV_THREADPOOL_SIZE says so. */
const ways = [
  [4, 16],
  [8, 4],
  [16, 4],
  [24, 4]
] as const
/** 128 MiB each in bfloat16. */
const shape = [8192, 8192]

const times = <A, E, R>(effect: Effect.Effect<A, E, R>, count = rounds) =>
  Effect.gen(function* () {
    const taken: Array<number> = []
    for (let round = -warmUps; round < count; round++) {
      const begun = performance.now()
      yield* effect
      if (round >= 0) taken.push((performance.now() - begun) / 1000)
    }
    return taken
  })

/** Fills tensors with values of their own: the first row tells them apart. */
const fillOwn = (engine: TensorEngineShape, tensors: ReadonlyArray<Tensor>) =>
  Effect.gen(function* () {
    const [rows, columns] = tensors[0]!.shape as readonly [number, number]
    const host = new Uint16Array(rows * columns).map((_, at) => (Math.imul(at, 40_503) >>> 9) & 0x3fff)
    const bytes = new Uint8Array(host.buffer)
    const src = Result.getOrThrow(tensorView(yield* engine.wrapHost(bytes), "bfloat16", [rows, columns]))
    for (const [at, dst] of tensors.entries()) {
      host.fill(at, 0, columns)
      yield* engine.copy([{ dst, src }])
    }
  }).pipe(Effect.scoped)

const rate = (
  name: string,
  bytes: number,
  taken: ReadonlyArray<number>,
  target: number | undefined,
  more = ""
): Figure => ({
  case: name,
  value: bytes / 1e9 / median(taken),
  unit: "GB/s",
  ...(target === undefined ? {} : { target }),
  lowerIsBetter: false,
  detail: `${(bytes / 1e9).toFixed(2)} GB, median of ${taken.length}; fastest ${(bytes / 1e9 / Math.min(...taken)).toFixed(2)}${more}`
})

/** What PyTorch's users do. */
interface PythonTimes {
  readonly case: string
  readonly seconds: ReadonlyArray<number>
}

/** Figures of both directions. `shrink` divides lengths, for rehearsals; `script` is PyTorch's side, if it is there. */
export const measureStreams = (
  descriptor: BackendDescriptor,
  options: BackendOptions,
  shrink: number,
  script: string | undefined,
  tell: (figure: Figure) => void
): Effect.Effect<void, unknown> => {
  const folder = mkdtempSync(path.join(existsSync("/dev/shm") ? "/dev/shm" : tmpdir(), "tensorferry-streams-"))
  return Effect.gen(function* () {
    const engine = yield* TensorEngine
    const rows = Math.max(8, Math.floor(shape[0]! / shrink))
    const names = Array.from({ length: tensorCount }, (_, at) => `layers.${String(at).padStart(2, "0")}.weight`)
    const held = yield* Effect.forEach(names, (name) =>
      Effect.map(engine.allocate("bfloat16", [rows, shape[1]!]), (tensor) => ({ name, tensor }))
    )
    yield* fillOwn(
      engine,
      held.map(({ tensor }) => tensor)
    )
    const parts = held.map(({ tensor }) => ({ tensor }))
    const expected = yield* engine.digest(parts)
    const [file, saved] = [path.join(folder, "model.safetensors"), path.join(folder, "saved.safetensors")]
    yield* saveTensors(file, held)
    const bytes = statSync(file).size
    for (const [inFlight, portionMebibytes] of ways) {
      const save = Effect.suspend(() => {
        rmSync(saved, { force: true })
        return saveTensors(saved, held, undefined, { inFlight, portionBytes: portionMebibytes << 20 })
      })
      const how = `${inFlight} portions of ${portionMebibytes} MiB`
      tell(rate(`device to a file in memory, ${how}`, bytes, yield* times(save), 6))
    }
    rmSync(saved, { force: true })
    const source = yield* openCheckpoint(file)
    const reads = held.map(({ name, tensor }) => ({ name, region: fullRegion(tensor.shape), into: tensor }))
    for (const [inFlight, portionMebibytes] of ways) {
      for (const { tensor } of held) yield* engine.fill(tensor, 0xff)
      const taken = yield* times(loadRegions(source, reads, { inFlight, portionBytes: portionMebibytes << 20 }))
      const found = yield* engine.digest(parts)
      const wrong = found.filter((digest, at) => digest !== expected[at]).length
      const how = `${inFlight} portions of ${portionMebibytes} MiB`
      tell(rate(`checkpoint to the device, ${how}`, bytes, taken, 25, `; ${wrong} tensors wrong`))
      if (wrong > 0) return yield* Effect.die(new Error(`${wrong} tensors were loaded wrong.`))
    }
    if (script === undefined) return
    for (const { case: name, seconds } of runPython<PythonTimes>(script, [file, saved, rounds]))
      tell(rate(name, bytes, seconds, undefined))
  }).pipe(
    Effect.scoped,
    Effect.provide(descriptor.tensorEngine!(options)),
    Effect.ensuring(Effect.sync(() => rmSync(folder, { recursive: true, force: true })))
  )
}
