// SPDX-License-Identifier: Apache-2.0
/** The roundings that quantizing rules are made of are those of PyTorch, for numbers close to every border of theirs. */
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises"
import * as os from "node:os"
import * as path from "node:path"
import { assert, it } from "@effect/vitest"
import { pythonWith, runScript, withPython } from "@tensorferry/testing/machine/python"
import { e4m3Code, floatOfBits, log2Float, roundingOf } from "../../src/quantize/numbers.ts"
import { toFloats } from "../../src/values/codes.ts"

const python = pythonWith("torch", "numpy")

/** Of both signs and every normal exponent: mantissas beside powers of two, and beside all ties of eight bits. */
const numbers = (): Float32Array => {
  const mantissas = new Set<number>()
  for (let tie = 0; tie <= 0x800000; tie += 0x8000) {
    for (let beside = -3; beside <= 3; beside++) {
      if (tie + beside >= 0 && tie + beside < 0x800000) mantissas.add(tie + beside)
    }
  }
  for (let above = 0; above < 200; above++) mantissas.add(above)
  const values: Array<number> = []
  for (let exponent = 1; exponent < 255; exponent++) {
    // Types of eight and sixteen bits have few exponents; the others round in one way.
    const isDense = exponent % 16 === 0 || (exponent > 112 && exponent < 145)
    for (const mantissa of mantissas) {
      if (isDense || mantissa < 200)
        values.push(floatOfBits((((mantissa % 2) << 31) | (exponent << 23) | mantissa) >>> 0))
    }
  }
  return Float32Array.from(values)
}

it.skipIf(python === undefined)(
  withPython(python, "roundings of float32 are those of PyTorch beside every tie and every power of two", "torch"),
  { timeout: 120_000 },
  async () => {
    const folder = await mkdtemp(path.join(os.tmpdir(), "roundings-"))
    try {
      const [file, values] = [path.join(folder, "x"), numbers()]
      await writeFile(`${file}.in`, values)
      await runScript(python!, new URL("../fixtures/torch_roundings.py", import.meta.url), file)
      const read = async (suffix: string) => new Uint8Array(await readFile(`${file}.${suffix}`))
      const floats = async (suffix: string) => toFloats("float32", await read(suffix))
      const compare = (what: string, found: ArrayLike<number>, expected: ArrayLike<number>) => {
        assert.strictEqual(found.length, expected.length)
        const at = Array.from(found).findIndex((value, place) => !Object.is(value, expected[place]))
        assert.strictEqual(at, -1, `${what} of ${values[at]} is ${found[at]}, PyTorch has ${expected[at]}`)
      }
      compare("the code", Uint8Array.from(values, e4m3Code), await read("e4m3"))
      compare("the float16", values.map(roundingOf.float16), await floats("half"))
      compare("the bfloat16", values.map(roundingOf.bfloat16), await floats("bfloat"))
      // Last bits of a logarithm differ; what rules take of it is the whole number above.
      const above = Float32Array.from(values, (value) => Math.ceil(log2Float(Math.abs(value))))
      compare("the exponent above", above, (await floats("log2")).map(Math.ceil))
    } finally {
      await rm(folder, { recursive: true })
    }
  }
)
