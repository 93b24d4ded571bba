// SPDX-License-Identifier: Apache-2.0
/** Statements of ranks as bytes: read as they were sent, and refused in one line where they are damaged. */
import { assert, describe, it } from "@effect/vitest"
import { makeRandom } from "@tensorferry/testing/mutate"
import * as Result from "effect/Result"
import { encodeOutcome } from "../../src/driver/Outcome.ts"
import { longestWhy, makeStatementReader, type SentStatement } from "../../src/joined/Statement.ts"

const statement: SentStatement = {
  host: "ü-boot",
  space: "pid:[1]",
  network: "net:[1]",
  direct: "memory",
  spansHosts: false,
  isDirectAllowed: true,
  wires: [{ name: "fast", order: 10, isStaged: false, hasToken: true, state: "lacking", why: "no library" }]
}

const encode = (value: unknown) => encodeOutcome({ _tag: "Done", value })

describe("statements", () => {
  it("are read as they were sent, again and again, and told from others", () => {
    const read = makeStatementReader()
    const other = { ...statement, isDirectAllowed: false }
    for (const value of [statement, other, statement, other]) {
      assert.deepStrictEqual(Result.getOrThrow(read(encode(value))), { _tag: "Done", value })
    }
  })

  it("are refused where a field is missing, of another type or too long", () => {
    const wire = statement.wires[0]!
    const wrong: ReadonlyArray<unknown> = [
      null,
      {},
      { ...statement, host: 1 },
      { ...statement, host: "h".repeat(300) },
      { ...statement, wires: [{ ...wire, state: "maybe" }] },
      { ...statement, wires: [{ ...wire, order: "first" }] },
      { ...statement, wires: [{ ...wire, why: "w".repeat(longestWhy + 1) }] },
      { ...statement, wires: Array.from({ length: 65 }, () => wire) }
    ]
    for (const value of wrong) {
      const read = makeStatementReader()(encode(value))
      assert.isTrue(Result.isFailure(read), JSON.stringify(value))
      assert.notInclude(Result.isFailure(read) ? read.failure : "", "\n")
    }
  })

  it("of noise are refused, and break nothing", () => {
    const read = makeStatementReader()
    const good = encode(statement)
    for (let seed = 0; seed < 500; seed++) {
      const random = makeRandom(seed)
      const bytes = Uint8Array.from(good)
      for (let change = 0; change < 1 + random.below(4); change++) bytes[random.below(bytes.length)] = random.below(256)
      const ended = read(bytes)
      if (Result.isFailure(ended)) assert.isNotEmpty(ended.failure)
    }
    assert.deepStrictEqual(Result.getOrThrow(read(good)), { _tag: "Done", value: statement })
  })
})
