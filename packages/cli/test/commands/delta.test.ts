// SPDX-License-Identifier: Apache-2.0
/** `tensorferry delta`: what it writes gives the new version back, bit by bit, and what it refuses leaves the old one. */
import { copyFileSync, existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { bitsOf } from "@tensorferry/core/base/DType"
import { elementCount } from "@tensorferry/core/base/Region"
import { writeSafetensors } from "@tensorferry/model/checkpoint/SafetensorsWriter"
import { pythonWith, runScript, withPython } from "@tensorferry/testing/machine/python"
import { makeRandom } from "@tensorferry/testing/mutate"
import * as Effect from "effect/Effect"
import { failuresOf, scratch, temporaryNames } from "../support/command.ts"
import { runHere } from "../support/here.ts"
import { assertSameModel, type Entry, pattern } from "../support/models.ts"

const entries: ReadonlyArray<Entry> = [
  { name: "embed.weight", dtype: "bfloat16", shape: [700, 300] },
  { name: "layer.0.weight", dtype: "bfloat16", shape: [64, 96] },
  { name: "layer.0.norm", dtype: "float32", shape: [96] },
  { name: "same.weight", dtype: "bfloat16", shape: [33, 7] },
  { name: "all.weight", dtype: "float64", shape: [5, 11] },
  { name: "codes", dtype: "uint8", shape: [1000] },
  { name: "empty", dtype: "bfloat16", shape: [0, 4] },
  { name: "__proto__", dtype: "float32", shape: [] }
]

const shares: Readonly<Record<string, number>> = { "same.weight": 0, "all.weight": 1, codes: 0.4 }

/** Bytes of each tensor at a step: those of the step before, with a share of the elements changed. */
const stepBytes = (step: number): ReadonlyMap<string, Uint8Array> => {
  const made = new Map<string, Uint8Array>()
  for (const [seed, { name, dtype, shape }] of entries.entries()) {
    const size = bitsOf(dtype) / 8
    const bytes = pattern(elementCount(shape) * size, seed)
    for (let at = 1; at <= step; at++) {
      const random = makeRandom(seed * 100 + at)
      const share = Object.hasOwn(shares, name) ? shares[name]! : 0.01
      for (let element = 0; element < elementCount(shape); element++) {
        if (random.below(1_000_000) >= share * 1_000_000) continue
        bytes[element * size + random.below(size)]! ^= 1 + random.below(255)
      }
    }
    made.set(name, bytes)
  }
  return made
}

const writeStep = async (file: string, step: number): Promise<string> => {
  const bytes = stepBytes(step)
  const tensors = entries.map((entry) => ({ ...entry, data: bytes.get(entry.name)! }))
  await Effect.runPromise(writeSafetensors(file, tensors, new Map([["format", "pt"]])))
  return file
}

const delta = async (...args: ReadonlyArray<string>) => {
  const ended = await runHere(["delta", ...args, "--json"])
  assert.strictEqual(ended.code, 0, ended.stdout + ended.stderr)
  return JSON.parse(ended.stdout)
}

const refusalOf = async (...args: ReadonlyArray<string>) => {
  const ended = await runHere(["delta", ...args, "--json"])
  assert.notStrictEqual(ended.code, 0, ended.stdout)
  return { code: ended.code, ...failuresOf(ended)[0]! }
}

/** Steps 0 to 2 and the deltas between them. */
const threeSteps = async (folder: string, ...flags: ReadonlyArray<string>) => {
  const steps = await Promise.all([0, 1, 2].map((step) => writeStep(join(folder, `step-${step}.safetensors`), step)))
  const [first, second] = [join(folder, "1.delta.safetensors"), join(folder, "2.delta.safetensors")]
  await delta("make", steps[0]!, steps[1]!, "--out", first, ...flags)
  await delta("make", steps[1]!, steps[2]!, "--out", second, ...flags)
  return { steps: steps as [string, string, string], deltas: [first, second] as const }
}

const python = pythonWith("numpy", "safetensors")

describe("delta", () => {
  it("gives the later version back, one delta or several, in a file, a folder or in place", async () => {
    using folder = scratch()
    const { deltas, steps } = await threeSteps(folder.path)
    const [out, inFolder] = [join(folder.path, "out.safetensors"), join(folder.path, "out")]
    await delta("apply", steps[0], deltas[0], "--out", out)
    assert.deepStrictEqual(readFileSync(out), readFileSync(steps[1]))
    await delta("apply", steps[0], ...deltas, "--out", inFolder, "--max-file-size", "300kB")
    assert.isAbove(readdirSync(inFolder).length, 2)
    await assertSameModel(inFolder, steps[2])
    const place = join(folder.path, "place.safetensors")
    copyFileSync(steps[0], place)
    for (const [at, one] of deltas.entries()) {
      await delta("apply", place, one, "--in-place")
      assert.deepStrictEqual(readFileSync(place), readFileSync(steps[at + 1]!))
    }
    assert.deepStrictEqual(temporaryNames(folder.path), [])
  })

  for (const compress of ["none", "zstd"]) {
    it(`takes a small part of the bytes and shows which, compressed by ${compress}`, async () => {
      using folder = scratch()
      const { deltas } = await threeSteps(folder.path, "--compress", compress)
      const shown = await delta("show", ...deltas)
      assert.strictEqual(shown.deltas.length, 2)
      assert.strictEqual(shown.deltas[0].result, shown.deltas[1].base)
      const byName = new Map(
        (shown.deltas[0].tensors as ReadonlyArray<{ name: string; changed: number; form?: string; bytes: number }>).map(
          (one) => [one.name, one]
        )
      )
      assert.strictEqual(byName.get("embed.weight")!.form, "positions")
      assert.isBelow(byName.get("embed.weight")!.bytes, 0.05 * 700 * 300 * 2)
      assert.deepStrictEqual([byName.get("same.weight")!.changed, byName.get("same.weight")!.bytes], [0, 0])
      assert.strictEqual(byName.get("all.weight")!.changed, 55)
      const text = await runHere(["delta", "show", deltas[0]])
      assert.match(text.stdout, /embed\.weight +\d+ +\S+% +positions/)
      assert.notMatch(text.stdout, /same\.weight/)
    })
  }

  it.skipIf(python === undefined)(
    withPython(python, "is applied by numpy and the safetensors library from its format alone", "numpy, safetensors"),
    async () => {
      using folder = scratch()
      const { deltas, steps } = await threeSteps(folder.path, "--compress", "none")
      const made = join(folder.path, "numpy.safetensors")
      await runScript(python!, new URL("../fixtures/apply_delta.py", import.meta.url), steps[0], deltas[0], made)
      const raw = readFileSync(made)
      const start = 8 + Number(raw.readBigUInt64LE(0))
      const header = new Map<string, { data_offsets: [number, number] }>(
        Object.entries(JSON.parse(raw.subarray(8, start).toString("utf8")))
      )
      for (const [name, bytes] of stepBytes(1)) {
        const [from, to] = header.get(name)!.data_offsets
        assert.strictEqual(Buffer.compare(raw.subarray(start + from, start + to), bytes), 0, name)
      }
    }
  )

  it("refuses another base, another order and a delta twice, and writes nothing", async () => {
    using folder = scratch()
    const { deltas, steps } = await threeSteps(folder.path)
    const out = join(folder.path, "out.safetensors")
    for (const [base, ...given] of [
      [steps[1], deltas[0]],
      [steps[0], deltas[1]],
      [steps[0], deltas[1], deltas[0]],
      [steps[0], deltas[0], deltas[0]],
      [steps[2], ...deltas]
    ] as ReadonlyArray<readonly [string, ...ReadonlyArray<string>]>) {
      const { code, reason } = await refusalOf("apply", base, ...given, "--out", out)
      assert.deepStrictEqual([code, reason], [1, "WrongBase"], given.join(" "))
      assert.isFalse(existsSync(out))
    }
    const before = readFileSync(steps[1])
    assert.strictEqual((await refusalOf("apply", steps[1], deltas[0], "--in-place")).reason, "WrongBase")
    assert.deepStrictEqual(readFileSync(steps[1]), before)
    assert.deepStrictEqual(temporaryNames(folder.path), [])
  })

  it("refuses a delta with any byte changed, or cut short, and leaves the base as it was", async () => {
    using folder = scratch()
    const { deltas, steps } = await threeSteps(folder.path)
    const [whole, before] = [readFileSync(deltas[0]), readFileSync(steps[0])]
    const damaged = join(folder.path, "damaged.safetensors")
    const headerEnd = 8 + Number(whole.readBigUInt64LE(0))
    const places = Array.from({ length: 60 }, (_, at) => Math.floor((at * whole.length) / 60) + (at % 7))
    let inPayloads = 0
    for (const at of places.filter((place) => place < whole.length)) {
      // Spaces behind the header say nothing; another number of them is another header.
      if (at < headerEnd && whole[at] === 0x20) continue
      const bytes = Buffer.from(whole)
      bytes[at]! ^= 1 << (at % 8)
      writeFileSync(damaged, bytes)
      const { reason } = await refusalOf("apply", steps[0], damaged, "--in-place")
      inPayloads += at >= headerEnd ? 1 : 0
      assert.notStrictEqual(reason, undefined, `byte ${at}`)
      assert.deepStrictEqual(readFileSync(steps[0]), before, `byte ${at}`)
    }
    assert.isAbove(inPayloads, 10)
    writeFileSync(damaged, whole.subarray(0, whole.length - 1))
    await refusalOf("apply", steps[0], damaged, "--in-place")
    assert.deepStrictEqual(readFileSync(steps[0]), before)
    assert.deepStrictEqual(temporaryNames(folder.path), [])
  })

  it("refuses models with other tensors, files that are no deltas, and outputs that are there", async () => {
    using folder = scratch()
    const { deltas, steps } = await threeSteps(folder.path)
    const other = join(folder.path, "other.safetensors")
    const tensor = { name: "embed.weight", dtype: "bfloat16" as const, shape: [2], data: new Uint8Array(4) }
    await Effect.runPromise(writeSafetensors(other, [tensor]))
    const out = join(folder.path, "new.safetensors")
    assert.strictEqual((await refusalOf("make", steps[0], other, "--out", out)).reason, "Different")
    assert.strictEqual((await refusalOf("make", steps[0], steps[1], "--out", deltas[0])).reason, "OutputExists")
    assert.strictEqual((await refusalOf("show", steps[0])).reason, "InvalidDelta")
    assert.strictEqual((await refusalOf("apply", other, deltas[0], "--out", out)).reason, "WrongBase")
    assert.strictEqual((await refusalOf("apply", steps[0], deltas[0], "--out", steps[2])).reason, "OutputExists")
    assert.strictEqual((await refusalOf("apply", steps[0], deltas[0])).code, 2)
    assert.isFalse(existsSync(out))
  })
})
