// SPDX-License-Identifier: Apache-2.0
/**
 * Memory of another process, opened piece by piece: one mapping however many pieces, closed with the last, whatever is
 * interrupted or refused in between. Events are tested with whole clients by the tensor bus.
 */

import { spawn } from "node:child_process"
import { readFileSync } from "node:fs"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { tensorView } from "@tensorferry/core/tensor/Tensor"
import { assertClean, resetSimulator, simulator } from "@tensorferry/simulators/gpu"
import { makeEngine } from "@tensorferry/simulators/gpuEngine"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import type { DeviceRegion } from "../src/DeviceRegion.ts"
import { makeMemoryImport } from "../src/Import.ts"

const rounds = isSoak ? 100 : 20

/** A process with memory to open, an importer on a device here, and afterwards nothing left on either side. */
const withExporter = <A, E>(
  body: (given: {
    readonly handle: Uint8Array
    readonly offset: number
    readonly length: number
    readonly imports: import("../src/Import.ts").MemoryImport
    readonly engine: Effect.Success<ReturnType<typeof makeEngine>>["engine"]
  }) => Effect.Effect<A, E, Scope.Scope>
) =>
  Effect.gen(function* () {
    resetSimulator("")
    yield* Effect.scoped(
      Effect.gen(function* () {
        const script = fileURLToPath(new URL("./fixtures/exporter.ts", import.meta.url))
        const child = yield* Effect.acquireRelease(
          Effect.sync(() => spawn(process.execPath, [script], { stdio: ["pipe", "pipe", "inherit"] })),
          (exporter) => Effect.sync(() => void exporter.kill("SIGKILL"))
        )
        const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
        const line = Effect.promise(async () => JSON.parse((await lines.next()).value ?? "null"))
        const { handle, offset, length } = yield* line
        const { engine } = yield* makeEngine()
        const imports = Option.getOrThrow(makeMemoryImport(engine))
        yield* Effect.scoped(body({ handle: Uint8Array.from(handle), offset, length, imports, engine }))
        assert.strictEqual(imports.mapped(), 0)
        const { calls, live } = simulator.report()
        assert.strictEqual(live.importedMemory, 0)
        assert.strictEqual(calls.cudaIpcCloseMemHandle ?? 0, calls.cudaIpcOpenMemHandle ?? 0)
        // The other side frees the memory, and objects where somebody still has it open.
        child.stdin.write("\n")
        assert.deepStrictEqual(yield* line, [])
      })
    )
    assertClean()
  })

const residentKilobytes = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync("/proc/self/status", "utf8"))?.[1])

describe("memory of other processes", () => {
  it.live("ranges of one allocation share a mapping and a block, and show the owner's bytes", () =>
    withExporter(({ handle, offset, length, imports, engine }) =>
      Effect.gen(function* () {
        const whole = yield* imports.open({ handle, byteOffset: offset, byteLength: length })
        const piece = yield* imports.open({ handle, byteOffset: offset + 100, byteLength: 1000 })
        assert.strictEqual(imports.mapped(), 1)
        assert.strictEqual(simulator.report().calls.cudaIpcOpenMemHandle, 1)
        assert.strictEqual((whole.sharing as DeviceRegion).block, (piece.sharing as DeviceRegion).block)
        const src = Result.getOrThrow(tensorView(piece, "uint8", [1000]))
        const dst = yield* engine.allocate("uint8", [1000])
        yield* engine.fill(dst, 0xa5)
        yield* engine.copy([{ dst, src }])
        const seen = simulator.read(dst.storage.address, 1000)
        assert.isTrue(seen.every((byte, index) => byte === ((7 * (index + 100) + 3) & 255)))
        // Peers get what the owner gave: a mapping cannot be shared on.
        const exported = Result.getOrThrow((piece.sharing as DeviceRegion).block.exported())
        assert.deepStrictEqual(Uint8Array.from(exported.handle), handle)
        whole.free()
        assert.strictEqual(imports.mapped(), 1)
      })
    )
  )

  it.live("one handle opened three times, again and again, leaves neither mappings nor memory", () =>
    withExporter(({ handle, offset, imports }) =>
      Effect.gen(function* () {
        const open = imports.open({ handle, byteOffset: offset, byteLength: 64 })
        const round = Effect.scoped(Effect.andThen(open, Effect.andThen(Effect.scoped(open), open)))
        for (let at = 0; at < rounds; at++) yield* round
        const before = residentKilobytes()
        for (let at = 0; at < rounds; at++) {
          yield* round
          assert.strictEqual(simulator.report().live.importedMemory, 0)
        }
        assert.isBelow(residentKilobytes() - before, 20_000)
        assert.strictEqual(simulator.report().calls.cudaIpcOpenMemHandle, 2 * rounds)
      })
    )
  )

  it.live("ranges that leave their allocation, and bytes that are not a handle, are refused", () =>
    withExporter(({ handle, offset, length, imports }) =>
      Effect.gen(function* () {
        for (const [byteOffset, byteLength] of [
          [offset, length + 2 ** 21],
          [2 ** 52, 2 ** 52],
          [-1, 4],
          [0.5, 4]
        ] as const) {
          const error = yield* Effect.flip(imports.open({ handle, byteOffset, byteLength }))
          assert.strictEqual(error.reason._tag, "InvalidRequest", error.message)
          // What was mapped to look at its length is not mapped any more.
          assert.strictEqual(simulator.report().live.importedMemory, 0)
        }
        const short = yield* Effect.flip(imports.open({ handle: handle.subarray(1), byteOffset: 0, byteLength: 1 }))
        assert.isNotEmpty(short.reason.remedy)
        const noEvent = imports.open({ handle, byteOffset: 0, byteLength: 1, event: handle.subarray(1) })
        assert.strictEqual((yield* Effect.flip(noEvent)).reason._tag, "InvalidRequest")
      })
    )
  )

  it.live("interrupted at any step, every opening is closed", () =>
    withExporter(({ handle, offset, imports }) =>
      Effect.gen(function* () {
        for (let round = 0; round < rounds; round++) {
          const scope = yield* Scope.make()
          const opening = imports.open({ handle, byteOffset: offset, byteLength: 64 })
          const holding = yield* Effect.forkChild(Scope.provide(Effect.andThen(opening, Effect.never), scope), {
            startImmediately: round % 2 === 0
          })
          for (let step = 0; step < round % 9; step++) yield* Effect.yieldNow
          yield* Fiber.interrupt(holding)
          yield* Scope.close(scope, Exit.void)
          assert.strictEqual(imports.mapped(), 0)
          assert.strictEqual(simulator.report().live.importedMemory, 0)
        }
      })
    )
  )
})
