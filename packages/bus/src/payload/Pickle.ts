// SPDX-License-Identifier: Apache-2.0
/**
 * A closed reader of pickles of protocol 4: an interpreter over the operations that such payloads are made of, with an
 * allow-list of names.
 *
 * Invariant: nothing is imported, looked up or called. A call becomes a value that says what would be called with what.
 * Each operation pushes at most one value and values are shared, never copied, so memory stays within a small multiple of
 * the input, whatever it says; the input itself is limited.
 */
import * as Result from "effect/Result"
import type { PayloadError } from "./PayloadError.ts"
import { malformed, PickleMachine, type PickleValue } from "./PickleMachine.ts"

export type { PickleValue }

/** Longest pickle; a payload describes a tensor and does not hold it. */
export const longestPickle = 1024 * 1024

const none: PickleValue = { type: "none" }
const no: PickleValue = { type: "bool", value: false }
const yes: PickleValue = { type: "bool", value: true }

const stop = 0x2e

/** What each operation does, by its byte; `stop` is none of them. */
const operations: ReadonlyMap<number, (machine: PickleMachine) => void> = new Map([
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
  // BINGET
  [0x68, (machine) => machine.recall(machine.number(1))],
  // LONG_BINGET
  [0x6a, (machine) => machine.recall(machine.number(4))],
  // STACK_GLOBAL
  [0x93, (machine) => machine.global()],
  // REDUCE
  [0x52, (machine) => machine.call(false)],
  // NEWOBJ
  [0x81, (machine) => machine.call(true)],
  // BUILD
  [0x62, (machine) => machine.build()]
])

/** Carries operations out until the last, or the first fault. */
const run = (machine: PickleMachine): PickleValue => {
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

/**
 * Reads a pickle of at most 1 MiB. Fails with Malformed for bytes that are no pickle of protocol 4, with Forbidden for
 * an operation or name that is not allowed, and with Unsupported for a tensor shared by file descriptor.
 */
export const readPickle = (bytes: Uint8Array): Result.Result<PickleValue, PayloadError> => {
  if (bytes.length > longestPickle) return Result.fail(malformed(`The pickle has ${bytes.length} bytes.`))
  const machine = new PickleMachine(bytes)
  const value = run(machine)
  return machine.error === undefined ? Result.succeed(value) : Result.fail(machine.error)
}
