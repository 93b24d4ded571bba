// SPDX-License-Identifier: Apache-2.0
/**
 * Ranks on hosts of their own, as network namespaces: links that are slow, cut and healed, several links, small packets, hosts
 * that vanish, strangers at the door.
 */
import { once } from "node:events"
import { assert, describe, it } from "@effect/vitest"
import { type Host, type HostsInput, makeHosts, noHosts } from "@tensorferry/simulators/hosts"
import { makeRandom } from "@tensorferry/testing/mutate"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { askAll, type HostRank, prepareOneWay, runTogether, startRanks } from "./hostRanks.ts"

const reason = noHosts()
const mebibyte = 2 ** 20
const token = "the driver's"
const counts = { cuts: isSoak ? 100 : 20, kills: isSoak ? 100 : 10 }

const live = (
  title: string,
  hosts: HostsInput,
  test: (hosts: ReadonlyArray<Host>) => Effect.Effect<unknown, never, Scope.Scope>
) =>
  it.live(
    title,
    () => Effect.asVoid(Effect.scoped(Effect.flatMap(makeHosts(hosts), test))),
    isSoak ? 3_600_000 : 300_000
  )

const pause = (millis: number) => new Promise<void>((resolve) => setTimeout(resolve, millis))

const outcomes = (answers: ReadonlyArray<{ readonly outcome?: string } | undefined>) =>
  answers.map((each) => each?.outcome)

const sentBy = (host: Host, link: number): number =>
  Number(host.run("cat", [`/sys/class/net/eth${link}/statistics/tx_bytes`]))

/** Everything arrives, in so many milliseconds at most. */
const arrives = (
  ranks: ReadonlyArray<HostRank>,
  version: number,
  byteLength: number,
  meanwhile?: () => Promise<void>
) =>
  Effect.map(runTogether(ranks, version, meanwhile), (answers) => {
    assert.deepStrictEqual(outcomes(answers), ["Ok", "Ok"])
    assert.strictEqual(answers[1]!.fresh, byteLength)
    return Math.max(...answers.map((each) => each!.millis!))
  })

describe.skipIf(reason !== undefined)(`between hosts${reason === undefined ? "" : ` (skipped: ${reason})`}`, () => {
  live(
    "lanes spread over two links, go on over one when the other is cut, and come back when it heals",
    { count: 2, links: 3 },
    (hosts) =>
      Effect.gen(function* () {
        const ranks = yield* startRanks(hosts, () => ({ token, interfaces: ["eth0", "eth1"] }), 20_000)
        const byteLength = 64 * mebibyte
        assert.deepStrictEqual(outcomes(yield* prepareOneWay(ranks, byteLength)), ["Ok", "Ok"])
        for (const link of [0, 1]) hosts[0]!.limit(400e6, link)
        const before = [0, 1].map((link) => sentBy(hosts[0]!, link))
        yield* arrives(ranks, 1, byteLength)
        for (const link of [0, 1])
          assert.isAbove(sentBy(hosts[0]!, link) - before[link]!, byteLength / 4, `link ${link}`)
        yield* arrives(ranks, 2, byteLength, async () => {
          await pause(200)
          hosts[1]!.cut(0)
        })
        hosts[1]!.heal(0)
        yield* Effect.promise(() => pause(5500))
        yield* arrives(ranks, 3, byteLength)
        const healed = sentBy(hosts[0]!, 0)
        yield* arrives(ranks, 4, byteLength)
        assert.isAbove(sentBy(hosts[0]!, 0) - healed, byteLength / 8)
      })
  )

  live("a link of 200 Mbit/s is filled", { count: 2, links: 2 }, (hosts) =>
    Effect.gen(function* () {
      const ranks = yield* startRanks(hosts, () => ({ token, interfaces: ["eth0"] }), 20_000)
      const byteLength = 64 * mebibyte
      yield* prepareOneWay(ranks, byteLength)
      hosts[0]!.limit(200e6)
      const millis = yield* arrives(ranks, 1, byteLength)
      const line = (200e6 / 8) * (1448 / 1514)
      assert.isAbove(byteLength / (millis / 1000), 0.85 * line)
    })
  )

  live("packets of 1280 bytes carry everything, over IPv6 alone", { count: 2, links: 2, mtu: 1280 }, (hosts) =>
    Effect.gen(function* () {
      const ranks = yield* startRanks(hosts, (rank) => ({ token, addresses: [hosts[rank]!.addresses6[0]!] }), 20_000)
      const byteLength = 20 * mebibyte + 13
      yield* prepareOneWay(ranks, byteLength)
      yield* arrives(ranks, 1, byteLength)
    })
  )

  live("a short cut delays an update, and no more", { count: 2, links: 2 }, (hosts) =>
    Effect.gen(function* () {
      const ranks = yield* startRanks(hosts, () => ({ token, interfaces: ["eth0"] }), 20_000)
      const byteLength = 64 * mebibyte
      yield* prepareOneWay(ranks, byteLength)
      hosts[0]!.limit(400e6)
      yield* arrives(ranks, 1, byteLength, async () => {
        await pause(300)
        hosts[1]!.cut()
        await pause(1500)
        hosts[1]!.heal()
      })
    })
  )

  live(
    `${counts.cuts} cuts at random moments leave bytes old or new, name the peer, and leak nothing`,
    { count: 2, links: 2 },
    (hosts) =>
      Effect.gen(function* () {
        const deadline = 1500
        const ranks = yield* startRanks(hosts, () => ({ token, interfaces: ["eth0"], lanes: 8 }), deadline)
        const byteLength = 24 * mebibyte
        yield* prepareOneWay(ranks, byteLength)
        hosts[0]!.limit(800e6)
        yield* arrives(ranks, 1, byteLength)
        const before = yield* askAll(ranks, { count: true })
        const random = makeRandom(11)
        let failed = 0
        for (let cut = 0; cut < counts.cuts; cut++) {
          const version = 2 + cut
          const [at, length] = [random.below(300), random.pick([10, 200, 1000, 4000])]
          const answers = yield* runTogether(ranks, version, async () => {
            await pause(at)
            hosts[cut % 2]!.cut()
            await pause(length)
            hosts[cut % 2]!.heal()
          })
          const text = JSON.stringify({ cut, at, length, answers })
          const [sender, receiver] = answers
          assert.strictEqual(receiver!.wrong, 0, text)
          if (receiver!.outcome === "Ok" || sender!.outcome === "Ok")
            assert.strictEqual(receiver!.fresh, byteLength, text)
          for (const [rank, { outcome, millis }] of [sender!, receiver!].entries()) {
            if (outcome === "Ok" || outcome!.startsWith("TransportFailed: ")) continue
            failed += 1
            assert.match(outcome!, new RegExp(`^PeerGone: Rank ${1 - rank} has not answered for 1.5 s`), text)
            assert.isBelow(millis!, at + 2 * deadline + 1000, text)
          }
        }
        assert.isAbove(failed, 0)
        yield* arrives(ranks, 2 + counts.cuts, byteLength)
        const after = yield* askAll(ranks, { count: true })
        for (const rank of [0, 1]) {
          // Lanes that were given up are closed; as many as before may be open again.
          assert.isAtMost(after[rank]!.descriptors!, before[rank]!.descriptors! + 8)
          assert.strictEqual(after[rank]!.threads, before[rank]!.threads)
          assert.isAtMost(after[rank]!.residentKiB!, before[rank]!.residentKiB! + 100 * 1024)
        }
      })
  )

  for (const [who, victim] of [
    ["sender", 0],
    ["receiver", 1]
  ] as const) {
    live(
      `the end of a ${who}'s process is told at once, at ${counts.kills} random moments`,
      { count: 2, links: 2 },
      (hosts) =>
        Effect.gen(function* () {
          const random = makeRandom(3 + victim)
          for (let kill = 0; kill < counts.kills; kill++) {
            const ranks = yield* startRanks(hosts, () => ({ token, interfaces: ["eth0"] }), 20_000)
            yield* prepareOneWay(ranks, 32 * mebibyte)
            hosts[0]!.limit(800e6)
            const other = ranks[1 - victim]!
            yield* Effect.promise(async () => {
              const answer = other.ask({ run: 1 })
              const dying = ranks[victim]!.ask({ run: 1 })
              await pause(random.below(350))
              ranks[victim]!.kill()
              await dying
              const killed = performance.now()
              const { outcome, wrong } = (await answer)!
              const text = `kill ${kill}: ${outcome}`
              assert.isBelow(performance.now() - killed, 3000, text)
              if (outcome !== "Ok") assert.match(outcome!, new RegExp(`^PeerGone: Rank ${victim} has ended`), text)
              assert.strictEqual(wrong, 0, text)
              other.kill()
            })
          }
        })
    )
  }

  live("a host that vanishes is named within the deadline", { count: 2, links: 1 }, (hosts) =>
    Effect.gen(function* () {
      const ranks = yield* startRanks(hosts, () => ({ token }), 2000)
      yield* prepareOneWay(ranks, 64 * mebibyte)
      hosts[0]!.limit(400e6)
      yield* Effect.promise(async () => {
        const answer = ranks[0]!.ask({ run: 1 })
        ranks[1]!.tell({ run: 1 })
        await pause(300)
        hosts[1]!.remove()
        const { outcome, millis } = (await answer)!
        assert.match(outcome!, /^PeerGone: Rank 1 has not answered for 2 s/)
        assert.isBelow(millis!, 300 + 2 * 2000 + 1000)
      })
    })
  )

  live("a process that dies behind a cut link is found out when the link heals", { count: 2, links: 2 }, (hosts) =>
    Effect.gen(function* () {
      const ranks = yield* startRanks(hosts, () => ({ token, interfaces: ["eth0"] }), 30_000)
      yield* prepareOneWay(ranks, 64 * mebibyte)
      hosts[0]!.limit(400e6)
      yield* Effect.promise(async () => {
        const answer = ranks[0]!.ask({ run: 1 })
        const dying = ranks[1]!.ask({ run: 1 })
        await pause(300)
        hosts[1]!.cut()
        ranks[1]!.kill()
        await dying
        hosts[1]!.heal()
        const healed = performance.now()
        assert.match((await answer)!.outcome!, /^PeerGone: Rank 1 has ended/)
        assert.isBelow(performance.now() - healed, 10_000)
      })
    })
  )

  live("wrong tokens are named, and those with the right one go on", { count: 2, links: 1 }, (hosts) =>
    Effect.gen(function* () {
      const ranks = yield* startRanks(hosts, (rank) => ({ token: rank === 0 ? token : "another" }), 5000)
      const answers = yield* prepareOneWay(ranks, mebibyte)
      for (const outcome of outcomes(answers)) assert.match(outcome!, /^TransportFailed: .*Rank 1 has another token/)
    })
  )

  live("500 strangers and a port scan do not disturb an update", { count: 3, links: 1 }, (hosts) =>
    Effect.gen(function* () {
      const pair = hosts.slice(0, 2)
      const ranks = yield* startRanks(pair, () => ({ token }), 20_000)
      const byteLength = 64 * mebibyte
      yield* prepareOneWay(ranks, byteLength)
      const before = yield* askAll(ranks, { count: true })
      hosts[0]!.limit(400e6)
      const knock = `
        const { connect } = require("node:net")
        const knock = (port, text) => new Promise((resolve) => {
          const socket = connect({ host: ${JSON.stringify(hosts[1]!.addresses[0])}, port })
          socket.on("error", resolve).on("close", resolve)
          socket.on("connect", () => { if (text !== undefined) socket.write(text); setTimeout(() => socket.destroy(), 500) })
          socket.on("data", () => {})
        })
        const scan = async () => {
          const open = []
          for (let first = 1024; first < 65536; first += 4096) {
            const ports = Array.from({ length: Math.min(4096, 65536 - first) }, (_, at) => first + at)
            await Promise.all(ports.map((port) => new Promise((resolve) => {
              const socket = connect({ host: ${JSON.stringify(hosts[1]!.addresses[0])}, port })
              socket.on("error", resolve).on("connect", () => { open.push(port); socket.destroy(); resolve() })
            })))
          }
          return open
        }
        scan().then(async (open) => {
          const texts = ["GET / HTTP/1.0\\r\\n\\r\\n", Buffer.alloc(10_000, 0xff), undefined, Buffer.from("TFWIRE\\0\\x01")]
          await Promise.all(Array.from({ length: 500 }, (_, at) => knock(open[at % open.length], texts[at % 4])))
          console.log(open.length)
        })`
      yield* arrives(ranks, 1, byteLength, async () => {
        const knocking = hosts[2]!.start(process.execPath, ["-e", knock], { stdio: ["ignore", "pipe", "inherit"] })
        const [open] = await once(knocking.stdout!, "data")
        assert.isAbove(Number(String(open)), 0)
      })
      yield* arrives(ranks, 2, byteLength)
      const after = yield* askAll(ranks, { count: true })
      for (const rank of [0, 1]) assert.isAtMost(after[rank]!.descriptors!, before[rank]!.descriptors! + 8)
    })
  )
})
