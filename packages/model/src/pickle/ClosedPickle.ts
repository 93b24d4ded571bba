// SPDX-License-Identifier: Apache-2.0
/**
 * A closed reader of pickles: an interpreter over the operations that the formats of this project are made of, with a list
 * of allowed names for each format.
 *
 * Invariant: nothing is imported, looked up or called. A call becomes a value that says what would be called with what.
 * Each operation makes at most one value and values are shared, so time and memory stay within a small multiple of the
 * input; the input and the number of values are limited. A value may contain itself: readers go only as deep as their
 * format.
 */
import * as Result from "effect/Result"
import { type PickleFault, PickleMachine, type PickleRules, type PickleValue } from "./PickleMachine.ts"

export type { PickleFault, PickleRules, PickleValue }

const none = { type: "none" } as const
const no = { type: "bool", value: false } as const
const yes = { type: "bool", value: true } as const

const stop = 0x2e

/** What each operation does, by its byte; `stop` is none of them. */
const operations: ReadonlyMap<number, (machine: PickleMachine<string>) => void> = new Map([
  // PROTO
  [0x80, (machine) => machine.protocol()],
  // FRAME
  [0x95, (machine) => machine.frame()],
  // MARK
  [0x28, (machine) => machine.mark()],
  // SHORT_BINUNICODE
  [0x8c, (machine) => machine.text(machine.number(1))],
  // BINUNICODE
  [0x58, (machine) => machine.text(machine.number(4))],
  // SHORT_BINBYTES
  [0x43, (machine) => machine.push({ type: "bytes", value: machine.take(machine.number(1)) })],
  // BINBYTES
  [0x42, (machine) => machine.push({ type: "bytes", value: machine.take(machine.number(4)) })],
  // BININT1
  [0x4b, (machine) => machine.push({ type: "int", value: machine.number(1) })],
  // BININT2
  [0x4d, (machine) => machine.push({ type: "int", value: machine.number(2) })],
  // BININT
  [0x4a, (machine) => machine.push({ type: "int", value: machine.number(4) | 0 })],
  // LONG1
  [0x8a, (machine) => machine.long()],
  // BINFLOAT
  [0x47, (machine) => machine.float()],
  // NONE
  [0x4e, (machine) => machine.push(none)],
  // NEWTRUE
  [0x88, (machine) => machine.push(yes)],
  // NEWFALSE
  [0x89, (machine) => machine.push(no)],
  // EMPTY_TUPLE
  [0x29, (machine) => machine.tuple([])],
  // TUPLE1
  [0x85, (machine) => machine.tuple(machine.popMany(1))],
  // TUPLE2
  [0x86, (machine) => machine.tuple(machine.popMany(2))],
  // TUPLE3
  [0x87, (machine) => machine.tuple(machine.popMany(3))],
  // TUPLE
  [0x74, (machine) => machine.tuple(machine.toMark())],
  // EMPTY_LIST
  [0x5d, (machine) => machine.push({ type: "list", items: [] })],
  // APPEND
  [0x61, (machine) => machine.append(machine.popMany(1))],
  // APPENDS
  [0x65, (machine) => machine.append(machine.toMark())],
  // EMPTY_DICT
  [0x7d, (machine) => machine.push({ type: "dict", entries: [] })],
  // SETITEM
  [0x73, (machine) => machine.setItems(machine.popMany(2))],
  // SETITEMS
  [0x75, (machine) => machine.setItems(machine.toMark())],
  // MEMOIZE
  [0x94, (machine) => machine.remember()],
  // BINPUT
  [0x71, (machine) => machine.remember(machine.number(1))],
  // LONG_BINPUT
  [0x72, (machine) => machine.remember(machine.number(4))],
  // BINGET
  [0x68, (machine) => machine.recall(machine.number(1))],
  // LONG_BINGET
  [0x6a, (machine) => machine.recall(machine.number(4))],
  // STACK_GLOBAL
  [0x93, (machine) => machine.stackGlobal()],
  // GLOBAL
  [0x63, (machine) => machine.lineGlobal()],
  // REDUCE
  [0x52, (machine) => machine.call(false)],
  // NEWOBJ
  [0x81, (machine) => machine.call(true)],
  // BUILD
  [0x62, (machine) => machine.build()],
  // BINPERSID
  [0x51, (machine) => machine.refer()]
])

/** Carries operations out until the last, or the first fault. */
const run = (machine: PickleMachine<string>): PickleValue => {
  machine.begin()
  while (machine.error === undefined) {
    const op = machine.operation()
    if (machine.error !== undefined || op === stop) break
    const carryOut = operations.get(op)
    if (carryOut === undefined) machine.forbidOperation(op)
    else carryOut(machine)
  }
  return machine.end()
}

/** Reads a pickle as its format's rules allow. Pure. */
export const readClosedPickle = <Name extends string>(
  bytes: Uint8Array,
  rules: PickleRules<Name>
): Result.Result<PickleValue<Name>, PickleFault> => {
  if (bytes.length > rules.mostBytes) {
    return Result.fail({ kind: "Malformed", detail: `The pickle has ${bytes.length} bytes.` })
  }
  const machine = new PickleMachine(bytes, rules)
  const value = run(machine as unknown as PickleMachine<string>)
  return machine.error === undefined ? Result.succeed(value as PickleValue<Name>) : Result.fail(machine.error)
}

/** The entries of a dict whose keys are texts, the last of equal keys; undefined for anything else. */
export const textEntries = <Name extends string>(
  value: PickleValue<Name> | undefined
): ReadonlyMap<string, PickleValue<Name>> | undefined => {
  if (value?.type !== "dict") return undefined
  const entries = new Map<string, PickleValue<Name>>()
  for (const [key, item] of value.entries) {
    if (key.type !== "text") return undefined
    entries.set(key.value, item)
  }
  return entries
}
