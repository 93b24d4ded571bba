// SPDX-License-Identifier: Apache-2.0
/**
 * What the tests of this package share: engines, poisoned tensors, views of all kinds, and counts of what is open.
 */
import { spawn } from "node:child_process"
import { readdirSync, readFileSync, readlinkSync } from "node:fs"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import { bitsOf, byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import type { TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { loadAddon } from "../src/Addon.ts"
import * as HostMemory from "../src/HostMemory.ts"
import * as TensorEngine from "../src/TensorEngine.ts"

/** An engine with its memory, for one scope. */
export const makeEngine = (options: TensorEngine.TensorEngineOptions = {}) =>
  Effect.gen(function* () {
    const addon = yield* loadAddon
    const memory = yield* HostMemory.make(addon)
    return { addon, memory, engine: yield* TensorEngine.make(addon, memory, options) }
  })

/** A small generator of numbers that is the same on every run. */
export const makeRandom = (seed: number) => {
  let state = seed >>> 0
  const next = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return state / 2 ** 32
  }
  return {
    next,
    below: (limit: number) => Math.floor(next() * limit),
    bytes: (length: number) => Uint8Array.from({ length }, () => Math.floor(next() * 256))
  }
}
export type Random = ReturnType<typeof makeRandom>

export interface View {
  readonly shape: ReadonlyArray<number>
  readonly strides: ReadonlyArray<number>
  readonly byteOffset: number
  readonly byteLength: number
}

/** Strides of a random dense, padded or transposed array whose elements do not overlap; the offset may be odd. */
export const randomView = (random: Random, shape: ReadonlyArray<number>, dtype: DType): View => {
  const order = shape.map((_, dim) => dim).sort(() => random.next() - 0.5)
  const strides = new Array<number>(shape.length).fill(0)
  let step = 1 + random.below(2)
  for (const dim of order) {
    strides[dim] = step
    step *= shape[dim]! + random.below(3)
  }
  const byteOffset = random.below(9)
  return { shape, strides, byteOffset, byteLength: byteOffset + (step + 1) * Math.ceil(bitsOf(dtype) / 8) + 5 }
}

/** A tensor of this view over new memory that holds these bytes. */
export const tensorOf = (engine: TensorEngineShape, dtype: DType, view: View, bytes: Uint8Array) =>
  Effect.gen(function* () {
    const { storage } = yield* engine.allocate("uint8", [view.byteLength])
    storage.bytes!.set(bytes.subarray(0, view.byteLength))
    const tensor = tensorView(storage, dtype, view.shape, view)
    return Result.getOrThrow(tensor)
  })

/** A dense tensor whose bytes are all `byte`. */
export const filled = (engine: TensorEngineShape, dtype: DType, shape: ReadonlyArray<number>, byte: number) =>
  Effect.tap(engine.allocate(dtype, shape), (tensor) => Effect.sync(() => void tensor.storage.bytes!.fill(byte)))

export const bytesOf = (tensor: Tensor): Uint8Array => Uint8Array.from(tensor.storage.bytes!)

/** A dense copy of the first `elements` elements. */
export const denseBytes = (tensor: Tensor, elements: number): Uint8Array =>
  bytesOf(tensor).subarray(0, byteLengthOf(tensor.dtype, elements))

/** Descriptors and mappings of memory files that this process has open. */
export const openMemoryFiles = () => {
  const isMemoryFile = (descriptor: string): boolean => {
    const link = Result.try(() => readlinkSync(`/proc/self/fd/${descriptor}`))
    return Result.isSuccess(link) && link.success.startsWith("/memfd:tensorferry")
  }
  const maps = readFileSync("/proc/self/maps", "utf8").split("\n")
  return {
    descriptors: readdirSync("/proc/self/fd").filter(isMemoryFile).length,
    maps: maps.filter((line) => line.includes("/memfd:tensorferry")).length
  }
}

/** Sockets that this process has open. */
export const openSockets = (): number =>
  readdirSync("/proc/self/fd").filter((descriptor) => {
    const link = Result.try(() => readlinkSync(`/proc/self/fd/${descriptor}`))
    return Result.isSuccess(link) && link.success.startsWith("socket:")
  }).length

/** A node process that runs a fixture and speaks lines of JSON. */
export interface Peer {
  readonly pid: number
  readonly ask: (question: unknown) => Promise<unknown>
  readonly kill: () => Promise<void>
}

/** Starts `fixtures/NAME.ts`; killed when the scope ends. `ask` sends a line and gets the next line back. */
export const startPeer = (
  name: string,
  options: { readonly uid?: number; readonly arguments?: ReadonlyArray<string> } = {}
) =>
  Effect.acquireRelease(
    Effect.sync((): Peer => {
      const script = fileURLToPath(new URL(`fixtures/${name}.ts`, import.meta.url))
      const child = spawn(process.execPath, [script, ...(options.arguments ?? [])], {
        stdio: ["pipe", "pipe", "inherit"],
        ...(options.uid === undefined ? {} : { uid: options.uid, gid: options.uid })
      })
      const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
      const exited = new Promise<void>((resolve) => child.once("exit", () => resolve()))
      return {
        pid: child.pid!,
        ask: async (question) => {
          child.stdin.write(`${JSON.stringify(question)}\n`)
          const line = await lines.next()
          return line.done === true ? { ended: true } : JSON.parse(line.value)
        },
        kill: () => {
          child.kill("SIGKILL")
          return exited
        }
      }
    }),
    (peer) => Effect.promise(peer.kill)
  )
