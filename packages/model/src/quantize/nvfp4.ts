// SPDX-License-Identifier: Apache-2.0
/**
 * Quantizes to NVFP4 by a named rule. The global scale comes from the largest magnitude of all that share it: of the matrix,
 * of the members of a fused group, or one that is given.
 *
 * Invariant: codes and scales of a row depend on that row and the given maximum alone; with tiles of 16 rows, on those rows.
 */
import * as Result from "effect/Result"
import { e2m1Values } from "../values/codes.ts"
import { blockCounts, largerOf, type Matrix, maximaOf, maximumOf, type Place, QuantizeFault } from "./Matrix.ts"
import { e2m1Code, e4m3Values } from "./numbers.ts"
import { type Nvfp4Group, type Nvfp4Rule, type Nvfp4RuleName, nvfp4Rules } from "./nvfp4Rules.ts"

/** Codes, group scales and the global scale. */
export interface QuantizedNvfp4 {
  /** Two codes to a byte, the low half first. */
  readonly data: Uint8Array
  /** Codes of float8_e4m3fn, one per row and 16 columns, row-major. */
  readonly scales: Uint8Array
  readonly scaleShape: readonly [rows: number, columns: number]
  /** float32; the rule states what it means. */
  readonly global: number
}

/** What shares the global scale, where it is more than the matrix. */
export interface Nvfp4Place extends Place {
  /** The largest magnitude of all that share the global scale. The matrix's own by default. */
  readonly amax?: number
  /** A global scale that is stored already, as a checkpoint or an engine holds it. Takes precedence over `amax`. */
  readonly global?: number
}

/** The largest magnitude of weights that are used as one, as q, k and v are, and share a global scale. */
export const fusedMaximum = (members: ReadonlyArray<Matrix>): number =>
  members.reduce((largest, member) => largerOf(largest, maximumOf(member)), 0)

const codeOf = (scaled: number, nanCode: number | undefined): number | undefined => {
  if (Number.isNaN(scaled)) return nanCode
  return (scaled < 0 ? 8 : 0) | e2m1Code(Math.abs(scaled), "even")
}

/** Writes codes of one row of a group at a place of `codes`; the place of one that has none. */
const writeCodes = (
  { unit }: Nvfp4Group,
  values: Float32Array,
  [from, to]: readonly [number, number],
  codes: Uint8Array,
  nanCode: number | undefined
): number | undefined => {
  for (let at = from; at < to; at++) {
    const code = codeOf(unit(values[at]!), nanCode)
    if (code === undefined) return at
    codes[at] = code
  }
  return undefined
}

/** The sum of absolute errors of a row of a group, from left to right in float32. */
const errorOf = (
  read: (number: number, scale: number) => number,
  { code, unit }: Nvfp4Group,
  values: Float32Array,
  [from, to]: readonly [number, number]
): number => {
  const scale = e4m3Values[code]!
  let sum = 0
  for (let at = from; at < to; at++) {
    const value = read(e2m1Values[codeOf(unit(values[at]!), 0)!]!, scale)
    sum = Math.fround(sum + Math.abs(Math.fround(value - values[at]!)))
  }
  return sum
}

const packed = (codes: Uint8Array): Uint8Array => {
  const bytes = new Uint8Array(codes.length / 2)
  for (let at = 0; at < bytes.length; at++) bytes[at] = codes[2 * at]! | (codes[2 * at + 1]! << 4)
  return bytes
}

/**
 * Codes and scales of a matrix. Its columns are a multiple of 16, or even where the rule has a short last group; a part
 * begins at a multiple of what shares a scale.
 */
export const quantizeNvfp4 = (
  matrix: Matrix,
  name: Nvfp4RuleName,
  { amax, global, isTotal = false, maxima, origin = [0, 0] }: Nvfp4Place = {}
): Result.Result<QuantizedNvfp4, QuantizeFault> => {
  const rule: Nvfp4Rule = nvfp4Rules[name]
  const { group, read, shortGroup } = rule
  const nanCode = rule.nanCode ?? (isTotal ? 0 : undefined)
  const { columns, dtype, rows, values } = matrix
  const step = shortGroup ? 2 : 16
  if (columns % step !== 0 || origin[1] % 16 !== 0) {
    const detail = `${name} quantizes columns in multiples of ${step}, not ${columns} from column ${origin[1]}`
    return Result.fail(new QuantizeFault({ detail }))
  }
  const scaling = global === undefined ? rule.scaling(amax ?? maximumOf(matrix), dtype) : rule.stored?.(global, dtype)
  if (scaling === undefined) {
    const detail = `the stored global scale of ${name} does not say what groups are scaled by: give the maximum`
    return Result.fail(new QuantizeFault({ detail }))
  }
  const readBack = (number: number, scale: number) => read(number, scale, scaling.global)
  const across = Math.ceil(columns / 16)
  const known = maxima ?? maximaOf(matrix, group, origin)
  const tall = blockCounts(matrix, group, origin)[0]
  if (known.length !== tall * across) {
    const detail = `${known.length} maxima are given for ${tall}x${across} groups`
    return Result.fail(new QuantizeFault({ detail }))
  }
  const codes = new Uint8Array(values.length)
  const scales = new Uint8Array(rows * across)
  for (let row = 0; row < rows; row++) {
    const over = Math.floor((row + origin[0]) / group.rows) - Math.floor(origin[0] / group.rows)
    for (let column = 0; column < across; column++) {
      const within = [row * columns + 16 * column, row * columns + Math.min(columns, 16 * column + 16)] as const
      const largest = known[over * across + column]!
      let chosen = scaling.group(largest)
      const other = scaling.other?.(largest)
      if (other !== undefined && errorOf(readBack, other, values, within) < errorOf(readBack, chosen, values, within)) {
        chosen = other
      }
      scales[row * across + column] = chosen.code
      const wrong = writeCodes(chosen, values, within, codes, nanCode)
      if (wrong !== undefined) {
        const detail = `${name} has no code for what ${values[wrong]} becomes under this scale`
        return Result.fail(new QuantizeFault({ detail, at: [row, wrong - row * columns] }))
      }
    }
  }
  return Result.succeed({ data: packed(codes), scales, scaleShape: [rows, across], global: scaling.global })
}

/** The values that codes stand for, as the reference of the rule reads them. */
export const readNvfp4 = (
  { data, global, scaleShape: [rows, across], scales }: QuantizedNvfp4,
  name: Nvfp4RuleName
): Float32Array => {
  const { read } = nvfp4Rules[name]
  const values = new Float32Array(2 * data.length)
  const columns = rows === 0 ? 0 : values.length / rows
  for (let at = 0; at < values.length; at++) {
    const byte = data[at >> 1]!
    const code = at % 2 === 0 ? byte & 15 : byte >> 4
    const scale = scales[Math.floor(at / columns) * across + Math.floor((at % columns) / 16)]!
    values[at] = read(e2m1Values[code]!, e4m3Values[scale]!, global)
  }
  return values
}
