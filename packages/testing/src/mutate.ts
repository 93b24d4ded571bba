// SPDX-License-Identifier: Apache-2.0
/**
 * Damages valid inputs of parsers, so that fuzzing gets past the first check: by bytes, by text, and by JSON structure,
 * with the values that parsers of others have stumbled over.
 *
 * Invariant: a mutant is a function of its inputs and the random numbers alone, and stays below a
 * megabyte or so, however often parts are repeated.
 */
import * as Result from "effect/Result"

/** Numbers that are the same for the same seed. */
export interface Random {
  /** A whole number from 0 to `limit - 1`; `limit` is at most 2^32. */
  readonly below: (limit: number) => number
  /** One of the values, of which there is at least one. */
  readonly pick: <const A>(values: ReadonlyArray<A>) => A
  /** True once in `times`. */
  readonly isOneIn: (times: number) => boolean
}

/** The generator splitmix32. Only the low 32 bits of the seed count. */
export const makeRandom = (seed: number): Random => {
  let state = seed >>> 0
  const below = (limit: number): number => {
    state = (state + 0x9e3779b9) >>> 0
    let mixed = Math.imul(state ^ (state >>> 16), 0x21f0aaad)
    mixed = Math.imul(mixed ^ (mixed >>> 15), 0x735a2d97)
    return Math.floor((((mixed ^ (mixed >>> 15)) >>> 0) / 2 ** 32) * limit)
  }
  return {
    below,
    pick: (values) => values[below(values.length)]!,
    isOneIn: (times) => below(times) === 0
  }
}

/** Repeated parts stop a mutant's growth here. */
export const mutantByteLimit = 64 * 1024

/** Names that mean something to a language or a file system, and names that are hard to print. */
export const hostileNames: ReadonlyArray<string> = [
  "",
  "__proto__",
  "constructor",
  "prototype",
  "hasOwnProperty",
  "toString",
  "then",
  "length",
  "0",
  "-1",
  "../x",
  "/etc/passwd",
  "..",
  ".",
  "a/b",
  "a\\b",
  "nul\u0000",
  "\u2028",
  "\ud800",
  "\u202e",
  "é",
  "e\u0301",
  "\u{1f680}",
  "x".repeat(5000)
]

/** Texts of numbers at which arithmetic, allocation or JSON parsers change their behaviour. */
export const hostileNumbers: ReadonlyArray<string> = [
  "0",
  "-0",
  "1",
  "-1",
  "2",
  "0.5",
  "1e0",
  "1E+2",
  "1e-1",
  "127",
  "255",
  "256",
  "65535",
  "65536",
  "65537",
  "2147483647",
  "2147483648",
  "4294967295",
  "4294967296",
  "1099511627776",
  "9007199254740991",
  "9007199254740992",
  "9007199254740993",
  "18446744073709551615",
  "18446744073709551616",
  "1e308",
  "1e309",
  "-1e309",
  "1e-400",
  "00",
  "01",
  "+1",
  "1.",
  ".5",
  "NaN",
  "Infinity",
  "0x10",
  "1".repeat(400)
]

const deep = (open: string, close: string, depth: number, inner: string): string =>
  open.repeat(depth) + inner + close.repeat(depth)

const hostileValue = (random: Random): string => {
  switch (random.below(8)) {
    case 0:
      return JSON.stringify(random.pick(hostileNames))
    case 1:
      return random.pick(["null", "true", "false", "[]", "{}", '""', "[[]]", "[null]", '{"":0}'])
    case 2:
      return deep("[", random.isOneIn(4) ? "" : "]", random.pick([2, 31, 32, 33, 200, 5000, 20_000]), "0")
    case 3:
      return deep('{"a":', "}", random.pick([2, 32, 200, 5000]), random.pick(hostileNumbers))
    default:
      return random.pick(hostileNumbers)
  }
}

/** JSON as text that knows its structure, so that keys may repeat and numbers be any text. */
type Node = string | { readonly array: Array<Node> } | { readonly object: Array<[key: string, value: Node]> }

const nodeOf = (value: unknown): Node => {
  if (Array.isArray(value)) return { array: value.map(nodeOf) }
  if (typeof value === "object" && value !== null) {
    return { object: Object.entries(value).map(([key, item]) => [JSON.stringify(key), nodeOf(item)]) }
  }
  return JSON.stringify(value) ?? "null"
}

const printed = (node: Node): string => {
  if (typeof node === "string") return node
  if ("array" in node) return `[${node.array.map(printed).join(",")}]`
  return `{${node.object.map(([key, value]) => `${key}:${printed(value)}`).join(",")}}`
}

/** A place in the tree: a container and an index in it. */
interface Place {
  readonly container: Exclude<Node, string>
  readonly at: number
}

const places = (node: Node, found: Array<Place> = []): ReadonlyArray<Place> => {
  if (typeof node === "string") return found
  const items = "array" in node ? node.array : node.object.map(([, value]) => value)
  for (const [at, item] of items.entries()) {
    found.push({ container: node, at })
    places(item, found)
  }
  return found
}

const valueAt = ({ container, at }: Place): Node =>
  "array" in container ? container.array[at]! : container.object[at]![1]

const put = ({ container, at }: Place, value: Node): void => {
  if ("array" in container) container.array[at] = value
  else container.object[at]![1] = value
}

const listOf = (container: Place["container"]): Array<unknown> =>
  "array" in container ? container.array : container.object

/** How often a part of this length may be repeated. */
const repeats = (random: Random, length: number): number =>
  Math.min(random.pick([1, 1, 2, 16, 256, 4096]), Math.max(1, Math.floor(mutantByteLimit / Math.max(1, length))))

/** One change of the structure: replace, repeat, remove, rename, swap, wrap or move a part. */
const changeStructure = (root: Node, random: Random): void => {
  const all = places(root)
  if (all.length === 0) return
  const place = random.pick(all)
  const { container, at } = place
  const list = listOf(container)
  switch (random.below(9)) {
    case 0:
      list.splice(at, 1)
      return
    case 1: {
      const key = "object" in container ? container.object[at]![0] : ""
      const count = repeats(random, key.length + printed(valueAt(place)).length)
      // Copies, so that a later change of one is not a change of all.
      list.splice(at, 0, ...Array.from({ length: count }, () => structuredClone(list[at])))
      return
    }
    case 2:
      if ("object" in container) container.object[at]![0] = JSON.stringify(random.pick(hostileNames))
      return
    case 3: {
      const other = random.pick(all)
      const [a, b] = [valueAt(place), valueAt(other)]
      // Parts that contain each other would make a circle.
      put(place, printed(b))
      put(other, printed(a))
      return
    }
    case 4:
      put(place, { array: [valueAt(place)] })
      return
    case 5:
      if ("object" in container) {
        container.object.splice(random.below(container.object.length + 1), 0, [
          random.pick([JSON.stringify(random.pick(hostileNames)), container.object[at]![0]]),
          hostileValue(random)
        ])
      } else container.array.splice(at, 0, hostileValue(random))
      return
    case 6: {
      // A number close to the one that is there.
      const value = Number(valueAt(place))
      if (Number.isFinite(value)) put(place, String(value + random.pick([-1, 1, value, -value])))
      return
    }
    default:
      put(place, hostileValue(random))
  }
}

/** A few changes of the structure of a JSON text; one that is not JSON is changed as text. */
export const mutateJson = (text: string, random: Random): string => {
  const parsed = Result.try((): unknown => JSON.parse(text))
  if (Result.isFailure(parsed)) return mutateText(text, random)
  const root: Node = { array: [nodeOf(parsed.success)] }
  for (let left = 1 + random.below(random.pick([1, 1, 3, 8])); left > 0; left--) changeStructure(root, random)
  return root.array.map(printed).join(random.pick(["", ",", "\n"]))
}

const fragments: ReadonlyArray<string> = [
  "\n",
  " ",
  "\t",
  "\r\n",
  '"',
  "'",
  "\\",
  "\\u0000",
  "\\ud800",
  "{",
  "}",
  "[",
  "]",
  ":",
  ",",
  "=",
  "- ",
  "? ",
  "# ",
  "---\n",
  "...\n",
  "%YAML 1.1\n",
  "&a ",
  "*a",
  "<<: *a\n",
  "!!js/function ",
  "!!binary ",
  "!!python/object ",
  "|\n",
  ">\n",
  "\ufeff",
  "\u0000",
  "\u2028"
]

/** An alias bomb of YAML: each level names the one before it several times. */
export const aliasBomb = (levels: number, width: number): string =>
  Array.from({ length: levels }, (_, level) => {
    const items = level === 0 ? "x" : `*a${level - 1}`
    return `a${level}: &a${level} [${Array.from({ length: width }, () => items).join(", ")}]`
  }).join("\n")

/** A few changes of a text: parts removed, repeated, moved, or replaced by what means something to a parser. */
export const mutateText = (text: string, random: Random): string => {
  let out = text
  for (let left = 1 + random.below(random.pick([1, 1, 3, 8])); left > 0; left--) {
    const at = random.below(out.length + 1)
    const to = Math.min(out.length, at + random.below(random.pick([2, 8, 64, out.length + 1])))
    const part = out.slice(at, to)
    const middle = (): string => {
      switch (random.below(8)) {
        case 0:
          return ""
        case 1:
          return part.repeat(1 + repeats(random, part.length))
        case 2:
          return random.pick(fragments).repeat(random.pick([1, 1, 2, 3000]))
        case 3:
          return random.pick(hostileNumbers)
        case 4:
          return random.pick(hostileNames)
        case 5:
          return part + out.slice(random.below(out.length + 1)).slice(0, 64)
        case 6:
          return `\n${aliasBomb(1 + random.below(12), 1 + random.below(12))}\n`
        default:
          return random.pick(fragments) + part
      }
    }
    out = (out.slice(0, at) + middle() + out.slice(to)).slice(0, 2 * mutantByteLimit)
  }
  return out
}

/** A few changes of bytes: flipped bits, other values, cuts, repeats, and what is no UTF-8. */
export const mutateBytes = (bytes: Uint8Array, random: Random): Uint8Array => {
  let out = Uint8Array.from(bytes)
  for (let left = 1 + random.below(random.pick([1, 1, 4, 16])); left > 0; left--) {
    const at = random.below(out.length + 1)
    const to = Math.min(out.length, at + random.below(random.pick([2, 8, 64, out.length + 1])))
    switch (random.below(6)) {
      case 0:
        if (at < out.length) out[at]! ^= 1 << random.below(8)
        break
      case 1:
        if (at < out.length) out[at] = random.pick([0, 0xff, 0x80, 0xc0, 0xed, 0xf8, 0x22, 0x7b, 0x5b])
        break
      case 2:
        out = out.slice(0, at)
        break
      case 3:
        out = concat(out.subarray(0, at), out.subarray(to))
        break
      case 4: {
        const part = out.subarray(at, to)
        const copies = Array.from({ length: repeats(random, part.length) }, () => part)
        out = concat(out.subarray(0, at), ...copies, out.subarray(at)).slice(0, 2 * mutantByteLimit)
        break
      }
      default:
        out = concat(out.subarray(0, at), random.pick(brokenUtf8), out.subarray(to))
    }
  }
  return out
}

const brokenUtf8: ReadonlyArray<Uint8Array> = [
  Uint8Array.of(0xff),
  Uint8Array.of(0xc0, 0x80),
  Uint8Array.of(0xed, 0xa0, 0x80),
  Uint8Array.of(0xf4, 0x90, 0x80, 0x80),
  Uint8Array.of(0xe2, 0x82),
  Uint8Array.of(0xef, 0xbb, 0xbf)
]

const concat = (...parts: ReadonlyArray<Uint8Array>): Uint8Array<ArrayBuffer> => {
  const out = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0))
  let at = 0
  for (const part of parts) {
    out.set(part, at)
    at += part.length
  }
  return out
}

/** A mutant of a text, by structure, text or bytes; `structure` says how its structure is changed, JSON by default. */
export const mutateEncoded = (
  text: string,
  random: Random,
  structure: (text: string, random: Random) => string = mutateJson
): Uint8Array => {
  const kind = random.below(10)
  const mutant = kind < 6 ? structure(text, random) : kind < 8 ? mutateText(text, random) : text
  const bytes = new TextEncoder().encode(mutant)
  return kind >= 8 || random.isOneIn(10) ? mutateBytes(bytes, random) : bytes
}
