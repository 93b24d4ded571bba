// SPDX-License-Identifier: Apache-2.0
/** Which end moves, and by which way: the same answer at both ends. */
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { commonPreference, type DirectionFacts, directionOf } from "../../src/planning/direction.ts"
import { type RouteFacts, routeOf } from "../../src/planning/route.ts"

const facts: DirectionFacts = {
  preference: "auto",
  senderProblem: undefined,
  receiverProblem: undefined,
  isDuplex: true
}
const direction = (changes: Partial<DirectionFacts>) => Result.getOrElse(directionOf({ ...facts, ...changes }), String)

describe("directionOf", () => {
  it("pushes when bytes flow both ways, and pulls otherwise, unless an option decides", () => {
    assert.strictEqual(direction({}), "push")
    assert.strictEqual(direction({ isDuplex: false }), "pull")
    assert.strictEqual(direction({ isDuplex: false, preference: "push" }), "push")
    assert.strictEqual(direction({ preference: "pull" }), "pull")
  })

  it("goes the way that leads there", () => {
    assert.strictEqual(direction({ senderProblem: "reserved", isDuplex: false }), "push")
    assert.strictEqual(direction({ receiverProblem: "reserved" }), "pull")
    assert.strictEqual(direction({ receiverProblem: "reserved", preference: "push" }), "pull")
    assert.include(direction({ receiverProblem: "here", senderProblem: "there" }), "there")
  })

  it("agrees on a preference only where all have it", () => {
    assert.strictEqual(commonPreference(["push", "push"]), "push")
    assert.strictEqual(commonPreference(["push", "pull"]), "auto")
  })

  const Facts = Schema.Struct({
    preference: Schema.Literals(["auto", "push", "pull"]),
    senderProblem: Schema.UndefinedOr(Schema.Literal("no")),
    receiverProblem: Schema.UndefinedOr(Schema.Literal("no")),
    isDuplex: Schema.Boolean
  })
  it.prop("never opens memory that cannot be opened", [Facts], ([some]) => {
    const chosen = Result.getOrUndefined(directionOf(some))
    if (chosen === "pull") assert.isUndefined(some.senderProblem)
    if (chosen === "push") assert.isUndefined(some.receiverProblem)
    if (chosen === undefined) assert.isDefined(some.senderProblem)
  })
})

describe("routeOf", () => {
  const reached: RouteFacts["reached"] = { _tag: "Reached", name: "ipc", reason: "mapped" }
  const unreached: RouteFacts["reached"] = { _tag: "Unreached", why: "another host" }
  const route = (changes: Partial<RouteFacts>) =>
    Result.match(routeOf({ kind: "cuda", reached, hasCollectives: true, ...changes }), {
      onSuccess: ({ name, reason }) => `${name}: ${reason}`,
      onFailure: (why) => `none, ${why}`
    })

  it("takes the memory where it is reached", () => {
    assert.strictEqual(route({}), "ipc: mapped")
    assert.strictEqual(route({ kind: "cuda-ipc", hasCollectives: false }), "ipc: mapped")
  })

  it("falls back to collectives and says why", () => {
    assert.strictEqual(route({ reached: unreached }), "nccl: ipc: another host")
    assert.strictEqual(route({ kind: "nccl", reached: undefined }), "nccl: the only path of this backend")
  })

  it("says what is missing where no way leads there", () => {
    assert.strictEqual(route({ kind: "cuda-ipc", reached: unreached }), "none, ipc: another host")
    const neither = route({ reached: unreached, hasCollectives: false })
    assert.include(neither, "another host")
    assert.include(neither, "could not open the library")
  })
})
