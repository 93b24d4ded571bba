// SPDX-License-Identifier: Apache-2.0
/**
 * The state machine under collectives, driven by hand: no clock, no fibers.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { type Delivery, makeHub } from "../../src/group/internal/hub.ts"

const bytes = (...values: ReadonlyArray<number>) => Uint8Array.from(values)
const hubOf = (deadlineMillis = 100) => makeHub({ deadlineMillis })
const failureOf = ({ result }: Delivery) => (Result.isFailure(result) ? result.failure : undefined)
const tagOf = (delivery: Delivery) => failureOf(delivery)?.reason._tag
const arrival = (rank: number, label = "a", members: ReadonlyArray<number> = [0, 1, 2], call = rank) => ({
  rank,
  call,
  circle: { members, lane: "" },
  label,
  payload: bytes(rank)
})
const upTo = (maximum: number) => Schema.Int.check(Schema.isBetween({ minimum: 0, maximum }))

describe("collective hub", () => {
  it("delivers all payloads in member order when the last member arrives", () => {
    const hub = hubOf()
    const members = [2, 0, 1]
    assert.deepStrictEqual(hub.arrive(arrival(1, "a", members), 0), [])
    assert.deepStrictEqual(hub.arrive(arrival(0, "a", members), 0), [])
    const deliveries = hub.arrive(arrival(2, "a", members), 0)
    assert.deepStrictEqual(deliveries.map(({ rank }) => rank).sort(), [0, 1, 2])
    for (const { result } of deliveries) {
      assert.deepStrictEqual(Result.getOrThrow(result), [bytes(2), bytes(0), bytes(1)])
    }
    assert.strictEqual(hub.waiting().size, 0)
    assert.strictEqual(hub.nextExpiry(), Number.POSITIVE_INFINITY)
  })

  it("fails every member of a mismatch, late ones too, and goes on with the next collective", () => {
    const hub = hubOf()
    hub.arrive(arrival(0, "left"), 0)
    const early = hub.arrive(arrival(1, "right"), 0)
    const late = hub.arrive(arrival(2, "left"), 50)
    assert.deepStrictEqual(
      [...early, ...late].map(({ rank }) => rank),
      [0, 1, 2]
    )
    for (const delivery of [...early, ...late]) {
      assert.strictEqual(tagOf(delivery), "CollectiveMismatch")
      const { message } = failureOf(delivery)!
      assert.include(message, "rank 0 in left")
      assert.include(message, "rank 1 in right")
    }
    hub.arrive(arrival(2, "next"), 60)
    hub.arrive(arrival(1, "next"), 60)
    assert.isTrue(hub.arrive(arrival(0, "next"), 60).every(({ result }) => Result.isSuccess(result)))
  })

  it("reminds of a wait after three seconds, and then at growing intervals, with who waits for whom", () => {
    const hub = hubOf(60_000)
    hub.arrive(arrival(0, "barrier loaded"), 0)
    hub.arrive(arrival(2, "barrier loaded"), 1000)
    const said: Array<readonly [at: number, text: string]> = []
    for (let at = 0; at <= 60_000; at += 500) for (const text of hub.remind(at)) said.push([at, text])
    assert.deepStrictEqual(said, [
      [3000, "ranks 0, 2 waited 3 s in barrier loaded for rank 1; without a sign of progress this fails in 58 s."],
      [9000, "ranks 0, 2 waited 9 s in barrier loaded for rank 1; without a sign of progress this fails in 52 s."],
      [27_000, "ranks 0, 2 waited 27 s in barrier loaded for rank 1; without a sign of progress this fails in 34 s."]
    ])
    hub.arrive(arrival(1, "barrier loaded"), 60_500)
    assert.deepStrictEqual(hub.remind(200_000), [])
  })

  it("names the missing rank after the deadline, fails that rank too when it arrives, and stays in step", () => {
    const hub = hubOf(100)
    hub.arrive(arrival(0), 0)
    hub.arrive(arrival(2), 10)
    assert.strictEqual(hub.nextExpiry(), 110)
    assert.deepStrictEqual(hub.expire(109), [])
    const expired = hub.expire(110)
    assert.deepStrictEqual(
      expired.map(({ rank }) => rank),
      [0, 2]
    )
    for (const delivery of expired) {
      assert.strictEqual(tagOf(delivery), "DeadlineExceeded")
      assert.deepStrictEqual(failureOf(delivery)!.ranks, [1])
    }
    hub.arrive(arrival(0, "b"), 120)
    const late = hub.arrive(arrival(1), 130)
    assert.deepStrictEqual(
      late.map((delivery) => [delivery.rank, tagOf(delivery)]),
      [[1, "DeadlineExceeded"]]
    )
    hub.arrive(arrival(1, "b"), 140)
    assert.strictEqual(hub.arrive(arrival(2, "b"), 150).length, 3)
  })

  it("waits for a rank that makes progress, and for one that waits for such a rank", () => {
    const hub = hubOf(100)
    hub.arrive(arrival(0, "world"), 0)
    hub.arrive(arrival(1, "pair", [1, 2]), 0)
    hub.progress(2, 90)
    assert.deepStrictEqual(hub.expire(180), [])
    const expired = hub.expire(190)
    assert.deepStrictEqual(
      expired.map((delivery) => [delivery.rank, failureOf(delivery)!.ranks]),
      [
        [0, [1, 2]],
        [1, [2]]
      ]
    )
    assert.include(failureOf(expired[0]!)!.message, "Rank 1 waits in pair")
  })

  it("lets ranks that wait for each other run into the deadline", () => {
    const hub = hubOf(100)
    hub.arrive(arrival(0, "x", [0, 1]), 0)
    hub.arrive(arrival(1, "y", [1, 0]), 50)
    assert.deepStrictEqual(hub.expire(150).map(tagOf), ["DeadlineExceeded", "DeadlineExceeded"])
  })

  it("fails collectives that include a lost rank, now and later, and no others", () => {
    const hub = hubOf()
    hub.arrive(arrival(0), 0)
    hub.arrive(arrival(1, "pair", [0, 1]), 0)
    const failed = hub.leave(2, { kind: "lost", detail: "killed" })
    assert.deepStrictEqual(
      failed.map((delivery) => [delivery.rank, tagOf(delivery)]),
      [[0, "PeerGone"]]
    )
    const later = hub.arrive(arrival(1), 1)
    assert.deepStrictEqual(failureOf(later[0]!)!.ranks, [2])
    assert.include(failureOf(later[0]!)!.message, "was lost: killed")
    assert.strictEqual(hub.arrive(arrival(0, "pair", [0, 1]), 2).length, 2)
    assert.deepStrictEqual(hub.leave(2, { kind: "left", detail: "again" }), [])
  })

  it("fails all members where one payload is refused or the sum is too long", () => {
    const refusing = hubOf()
    refusing.arrive({ ...arrival(0, "a", [0, 1]), payload: { refusal: "too long" } }, 0)
    const refused = refusing.arrive(arrival(1, "a", [0, 1]), 0)
    assert.deepStrictEqual(refused.map(tagOf), ["ProtocolViolation", "ProtocolViolation"])
    const small = makeHub({ deadlineMillis: 1, maxTotalBytes: 5 })
    const five = { ...arrival(0, "a", [0, 1]), payload: new Uint8Array(3) }
    small.arrive(five, 0)
    assert.deepStrictEqual(small.arrive({ ...five, rank: 1 }, 0).map(tagOf), ["ProtocolViolation", "ProtocolViolation"])
    small.arrive(five, 0)
    const exact = small.arrive({ ...five, rank: 1, payload: new Uint8Array(2) }, 0)
    assert.isTrue(exact.every(({ result }) => Result.isSuccess(result)))
  })

  it("gives a rank up that enters collectives without end, with every call of it, and nobody else", () => {
    const hub = hubOf()
    for (let call = 0; call < 4096; call++) {
      assert.deepStrictEqual(hub.arrive(arrival(0, "many", [0, 1], call), 0), [])
    }
    hub.arrive(arrival(2, "others", [1, 2]), 0)
    const failed = hub.arrive(arrival(0, "many", [0, 1], 4096), 0)
    assert.deepStrictEqual(
      failed.map(({ rank, call }) => [rank, call]),
      Array.from({ length: 4097 }, (_, call) => [0, call])
    )
    assert.isTrue(failed.every((delivery) => tagOf(delivery) === "PeerGone"))
    assert.include(failureOf(failed[0]!)!.message, "entered 4096 collectives that have not ended")
    assert.deepStrictEqual([...hub.waiting()], [2])
    assert.strictEqual(hub.arrive(arrival(1, "others", [1, 2]), 0).length, 2)
  })

  it("counts collectives as ended when their last member has entered, however they end", () => {
    const hub = hubOf(100)
    for (let call = 0; call < 10_000; call++) {
      hub.arrive(arrival(0, "a", [0, 1], call), call)
      if (call % 2 === 0) hub.expire(call + 100)
      const [last] = hub.arrive(arrival(1, call % 3 === 0 ? "b" : "a", [0, 1], call), call).slice(-1)
      assert.notStrictEqual(tagOf(last!), "PeerGone")
    }
  })

  it("expires collectives in time that is linear in their number", () => {
    const timeOf = (each: number): number => {
      const hub = hubOf(100)
      for (let rank = 0; rank < 8; rank++) {
        for (let call = 0; call < each; call++) hub.arrive(arrival(rank, "a", [rank, 8], call), 0)
      }
      const begun = performance.now()
      assert.strictEqual(hub.expire(100).length, 8 * each)
      return performance.now() - begun
    }
    timeOf(250)
    // Sixteen times as many: where each looks through all, that is 256 times as long.
    assert.isBelow(timeOf(4000) / timeOf(250), 100)
  })

  it.prop(
    "any interleaving gives every member all payloads, in order, exactly once",
    { size: upTo(6), rounds: upTo(4), picks: Arbitrary.array(Arbitrary.schema(upTo(1_000_000)), { maxLength: 60 }) },
    ({ size: smaller, rounds, picks }) => {
      const size = smaller + 1
      const hub = hubOf()
      const world = Array.from({ length: size }, (_, rank) => rank)
      const evens = world.filter((rank) => rank % 2 === 0)
      // Each rank's program: every round one collective of all, then one of the even ranks in reverse order.
      const programs = world.map((rank) =>
        Array.from({ length: rounds }, (_, round) => [
          { rank, members: world, label: `world ${round}`, payload: bytes(rank, round, 1) },
          ...(rank % 2 === 0
            ? [{ rank, members: [...evens].reverse(), label: `evens ${round}`, payload: bytes(rank, round, 2) }]
            : [])
        ]).flat()
      )
      const position = world.map(() => 0)
      const received: Array<Array<ReadonlyArray<Uint8Array>>> = world.map(() => [])
      const blocked = new Set<number>()
      for (let step = 0; ; step++) {
        const ready = world.filter((rank) => !blocked.has(rank) && position[rank]! < programs[rank]!.length)
        if (ready.length === 0) break
        const rank = ready[(picks[step % Math.max(1, picks.length)] ?? step) % ready.length]!
        const call = position[rank]!++
        blocked.add(rank)
        for (const delivery of hub.arrive(
          { ...programs[rank]![call]!, call, circle: { members: programs[rank]![call]!.members, lane: "" } },
          step
        )) {
          assert.isTrue(blocked.delete(delivery.rank), "one delivery per call")
          assert.strictEqual(delivery.call, position[delivery.rank]! - 1)
          received[delivery.rank]!.push(Result.getOrThrow(delivery.result))
        }
      }
      for (const rank of world) {
        const expected = programs[rank]!.map(({ members, payload }) =>
          members.map((member) => bytes(member, payload[1]!, payload[2]!))
        )
        assert.deepStrictEqual(received[rank], expected)
      }
      assert.strictEqual(hub.waiting().size, 0)
    },
    { arbitrary: { runs: 300 } }
  )
})
