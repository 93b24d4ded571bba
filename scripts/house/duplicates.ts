// SPDX-License-Identifier: Apache-2.0
/**
 * Lines that stand in a run of six or more at two places or more: the same, or of the same shape. A run of one shape
 * counts only where it says enough, so that boilerplate does not rule the figure.
 */
import { type CodeLine, codeLinesOf } from "./codeLines.ts"
import type { Measure } from "./measure.ts"
import type { SourceFile, Tree } from "./tree.ts"

const runLines = 6
/** Placeholders and keywords in a run of that length; a run with fewer is thin. */
const leastWeight = 30

interface Read {
  readonly file: SourceFile
  readonly code: ReadonlyArray<CodeLine>
  readonly same: Int32Array
  readonly shape: Int32Array
}

interface Place {
  readonly read: Read
  /** Index of the run's first line among the file's lines of code. */
  readonly at: number
}

/** Gives equal pairs of numbers one number, so that a run of six lines is compared as a single number. */
const pairing = (): ((left: number, right: number) => number) => {
  const known = new Map<number, number>()
  return (left, right) => {
    const key = left * 0x2000000 + right
    const number = known.get(key) ?? known.size
    known.set(key, number)
    return number
  }
}

/** One number for every run of six lines, by its first line. */
const runNumbers = (lines: ReadonlyArray<Int32Array>): ReadonlyArray<Int32Array> => {
  const [two, four, six] = [pairing(), pairing(), pairing()]
  return lines.map((numbers) => {
    const pairs = Int32Array.from({ length: Math.max(0, numbers.length - 1) }, (_, at) =>
      two(numbers[at]!, numbers[at + 1]!)
    )
    return Int32Array.from({ length: Math.max(0, numbers.length - runLines + 1) }, (_, at) =>
      six(four(pairs[at]!, pairs[at + 2]!), pairs[at + 4]!)
    )
  })
}

const readAll = (files: ReadonlyArray<SourceFile>): ReadonlyArray<Read> => {
  const number = (known: Map<string, number>, text: string): number => {
    const found = known.get(text) ?? known.size
    known.set(text, found)
    return found
  }
  const [texts, shapes] = [new Map<string, number>(), new Map<string, number>()]
  const codes = files.map(codeLinesOf)
  const same = runNumbers(codes.map((code) => Int32Array.from(code, (line) => number(texts, line.text))))
  const shape = runNumbers(codes.map((code) => Int32Array.from(code, (line) => number(shapes, line.shape))))
  return files.map((file, at) => ({ file, code: codes[at]!, same: same[at]!, shape: shape[at]! }))
}

const weightAt = (code: ReadonlyArray<CodeLine>, at: number): number => {
  let weight = 0
  for (let line = at; line < at + runLines; line++) weight += code[line]!.weight
  return weight
}

/** Runs that stand at two places or more which do not overlap. */
const groupsOf = (reads: ReadonlyArray<Read>, by: "same" | "shape"): ReadonlyArray<ReadonlyArray<Place>> => {
  const groups = new Map<number, Array<Place>>()
  for (const read of reads)
    for (const [at, number] of read[by].entries()) {
      if (by === "shape" && weightAt(read.code, at) < leastWeight) continue
      const group = groups.get(number)
      if (group === undefined) groups.set(number, [{ read, at }])
      else group.push({ read, at })
    }
  return [...groups.values()].filter((group) => {
    const [first, last] = [group[0]!, group.at(-1)!]
    return first.read !== last.read || last.at - first.at >= runLines
  })
}

type Covered = Map<Read, Set<number>>

const coverOf = (groups: ReadonlyArray<ReadonlyArray<Place>>, into: Covered = new Map()): Covered => {
  for (const group of groups)
    for (const { read, at } of group) {
      const lines = into.get(read) ?? new Set<number>()
      into.set(read, lines)
      for (let line = at; line < at + runLines; line++) lines.add(line)
    }
  return into
}

const sizeOf = (covered: Covered): number => [...covered.values()].reduce((sum, lines) => sum + lines.size, 0)

export interface Pair {
  readonly left: string
  readonly right: string
  /** Lines of the one that stand in the other; the smaller of both ways. */
  readonly lines: number
  /** Those that are the same to the letter. */
  readonly same: number
}

interface Shared {
  readonly left: Read
  readonly right: Read
  readonly lines: readonly [Set<number>, Set<number>]
  readonly same: readonly [Set<number>, Set<number>]
  first: readonly [number, number]
}

const pairsOf = (
  reads: ReadonlyArray<Read>,
  groups: Readonly<Record<"same" | "shape", ReadonlyArray<ReadonlyArray<Place>>>>
): ReadonlyArray<Pair> => {
  const order = new Map(reads.map((read, at) => [read, at]))
  const found = new Map<number, Shared>()
  const share = (one: Place, other: Place, by: "same" | "shape"): void => {
    if (one.read === other.read && Math.abs(other.at - one.at) < runLines) return
    const key = order.get(one.read)! * reads.length + order.get(other.read)!
    const shared: Shared = found.get(key) ?? {
      left: one.read,
      right: other.read,
      lines: [new Set(), new Set()],
      same: [new Set(), new Set()],
      first: [one.at, other.at]
    }
    found.set(key, shared)
    if (one.at < shared.first[0]) shared.first = [one.at, other.at]
    for (let line = 0; line < runLines; line++)
      for (const into of by === "same" ? [shared.lines, shared.same] : [shared.lines]) {
        into[0].add(one.at + line)
        into[1].add(other.at + line)
      }
  }
  for (const by of ["same", "shape"] as const)
    for (const group of groups[by])
      for (const [at, one] of group.entries()) for (const other of group.slice(at + 1)) share(one, other, by)
  const place = (read: Read, at: number): string => `${read.file.path}:${read.code[at]!.line}`
  return [...found.values()]
    .map((shared) => ({
      left: place(shared.left, shared.first[0]),
      right: place(shared.right, shared.first[1]),
      lines: Math.min(shared.lines[0].size, shared.lines[1].size),
      same: Math.min(shared.same[0].size, shared.same[1].size)
    }))
    .sort((one, other) => other.lines - one.lines || (one.left + one.right < other.left + other.right ? -1 : 1))
}

const measuresOf = (reads: ReadonlyArray<Read>, key: string, what: string): ReadonlyArray<Measure> => {
  const [same, shape] = [groupsOf(reads, "same"), groupsOf(reads, "shape")]
  return [
    {
      key: `${key}-lines`,
      title: `lines of code in ${what}`,
      figure: reads.reduce((sum, read) => sum + read.code.length, 0)
    },
    { key: `${key}-same`, title: "  standing twice, the same", figure: sizeOf(coverOf(same)) },
    { key: `${key}-shape`, title: "  standing twice, the same shape", figure: sizeOf(coverOf(shape)) },
    { key: `${key}-twice`, title: "  standing twice, either way", figure: sizeOf(coverOf(shape, coverOf(same))) }
  ]
}

export interface Duplicates {
  readonly measures: ReadonlyArray<Measure>
  /** The pairs of files that share most. */
  readonly pairs: (most: number) => ReadonlyArray<Pair>
}

export const duplicates = (tree: Tree): Duplicates => {
  const reads = readAll(tree.files.filter((file) => file.language !== "build"))
  const sources = reads.filter((read) => read.file.kind === "source")
  return {
    measures: [...measuresOf(sources, "sources", "sources"), ...measuresOf(reads, "all", "sources, tests and tools")],
    pairs: (most) => pairsOf(reads, { same: groupsOf(reads, "same"), shape: groupsOf(reads, "shape") }).slice(0, most)
  }
}
