// SPDX-License-Identifier: Apache-2.0
/** What ranks say of themselves: what is taken, what is refused, and when two of them disagree. */
import { assert, describe, it } from "@effect/vitest"
import { encodeOutcome } from "@tensorferry/native/driver/Outcome"
import { disagrees, type Exchanged, type Publication, publicationOf } from "@tensorferry/native/driver/Publication"
import * as Result from "effect/Result"
import { PublishedEndpoint } from "../src/Publication.ts"

const decodePublication = publicationOf(PublishedEndpoint)

const publication = (...exchanges: ReadonlyArray<Exchanged>): Publication<PublishedEndpoint> => ({
  endpoint: { id: "ab".repeat(16), secret: "cd".repeat(32), addresses: [{ host: "10.0.0.1", port: 4000 }] },
  program: 3,
  exchanges
})

describe("a publication", () => {
  it("is read as it was written", () => {
    const value = publication({ peer: 1, sends: "aa", receives: "" })
    assert.deepStrictEqual(Result.getOrThrow(decodePublication(encodeOutcome({ _tag: "Done", value }))), {
      _tag: "Done",
      value
    })
  })

  it("is refused where anything of it is not what it should be", () => {
    const { endpoint, ...rest } = publication()
    const bad = [
      { endpoint: { ...endpoint, id: "ab" }, ...rest },
      { endpoint: { ...endpoint, secret: "x".repeat(64) }, ...rest },
      { endpoint: { ...endpoint, addresses: [] }, ...rest },
      { endpoint: { ...endpoint, addresses: [{ host: "example.org", port: 1 }] }, ...rest },
      { endpoint: { ...endpoint, addresses: [{ host: "10.0.0.1", port: 0 }] }, ...rest },
      { endpoint: { ...endpoint, addresses: Array.from({ length: 257 }, () => endpoint.addresses[0]) }, ...rest },
      { endpoint, ...rest, program: -1 },
      { endpoint, ...rest, program: 2 ** 31 },
      { endpoint, ...rest, exchanges: [{ peer: 1.5, sends: "", receives: "" }] },
      { endpoint, ...rest, exchanges: [{ peer: 1, sends: "a".repeat(65), receives: "" }] }
    ]
    for (const value of bad) {
      assert.isTrue(Result.isFailure(decodePublication(encodeOutcome({ _tag: "Done", value }))), JSON.stringify(value))
    }
    assert.isTrue(Result.isFailure(decodePublication(new TextEncoder().encode("{"))))
  })
})

describe("disagrees", () => {
  it("is false where both ends of everything have one digest", () => {
    const [first, second] = [
      publication({ peer: 1, sends: "a", receives: "b" }),
      publication({ peer: 0, sends: "b", receives: "a" })
    ]
    assert.isFalse(disagrees([first, second, publication()]))
  })

  it("is true where digests differ, or one end has nothing", () => {
    const first = publication({ peer: 1, sends: "a", receives: "" })
    assert.isTrue(disagrees([first, publication({ peer: 0, sends: "", receives: "other" })]))
    assert.isTrue(disagrees([first, publication()]))
    assert.isTrue(disagrees([publication(), publication({ peer: 0, sends: "a", receives: "" })]))
    assert.isTrue(disagrees([publication({ peer: 9, sends: "a", receives: "" })]))
  })
})
