// SPDX-License-Identifier: Apache-2.0
/**
 * Two ranks on hosts of their own whose cable is cut and whose processes die or freeze at any moment: what is received is of
 * this run or of the one before, failures name the rank within the deadline, and nothing stays behind. By messages: writes that
 * UCX emulates do not outlive a peer (see `transfer`), and others need hardware.
 */
import { readdirSync, readFileSync, readlinkSync } from "node:fs"
import { connect } from "node:net"
import { assert, describe, it } from "@effect/vitest"
import { type Host, makeHosts, noHosts } from "@tensorferry/simulators/hosts"
import { makeRandom } from "@tensorferry/testing/mutate"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"
import type { HostRankAnswer } from "./fixtures/host-rank.ts"
import { type HostRank, startRanks } from "./hostRanks.ts"
import { noUcx } from "./support.ts"

const reason = noUcx ?? noHosts()
const deadlineMillis = 3000
/** What a busy machine may add until a process has its turn. */
const slackMillis = 3000
const kills = isSoak ? 250 : 50
const cuts = isSoak ? 100 : 20

const wait = (millis: number) => new Promise((resolve) => setTimeout(resolve, millis))
/** Over the cable alone: what the ranks share on this machine is no host's. */
const overCable = { devices: "eth0", token: "the group's" }

const run = async (ranks: ReadonlyArray<HostRank>, version: number): Promise<ReadonlyArray<HostRankAnswer>> => {
  for (const rank of ranks) rank.ask({ run: version })
  return Promise.all(ranks.map((rank) => rank.next("ran")))
}

const isWhole = ({ outcome, old, wrong }: HostRankAnswer, about: string) => {
  assert.strictEqual(outcome, "Ok", about)
  assert.deepStrictEqual([old, wrong], [0, 0], about)
}

const namesPeer = ({ outcome, millis, wrong }: HostRankAnswer, peer: number, about: string) => {
  assert.match(outcome!, new RegExp(`^PeerGone: Rank ${peer} `), about)
  assert.strictEqual(wrong, 0, about)
  assert.isBelow(millis!, deadlineMillis + slackMillis, about)
}

const onHosts = (body: (hosts: readonly [Host, Host]) => Effect.Effect<void>): Promise<void> =>
  Effect.runPromise(Effect.scoped(Effect.flatMap(makeHosts({ count: 2 }), ([a, b]) => body([a!, b!]))))

describe.skipIf(reason !== undefined)(reason ?? "ucx between hosts", () => {
  it(`a rank that dies at any of ${kills} moments is named`, { timeout: 1_200_000 }, () =>
    onHosts((hosts) =>
      Effect.gen(function* () {
        for (let seed = 0; seed < kills; seed++) {
          const random = makeRandom(seed)
          const byteLength = random.pick([4096, 3_000_000, 40_000_000])
          const afterMillis = random.pick([0, 1, 3, 10, 30])
          const about = `seed ${seed}: ${byteLength} bytes, killed after ${afterMillis} ms`
          const test = Effect.gen(function* () {
            const ranks = yield* startRanks({ byteLength, deadlineMillis, options: overCable }, hosts)
            yield* Effect.promise(async () => {
              for (const answer of await run(ranks, 1)) isWhole(answer, about)
              const [survivor, victim] = ranks
              for (const rank of ranks) rank.ask({ run: 2 })
              await victim.next("began")
              await wait(afterMillis)
              victim.kill("SIGKILL")
              const answer = await survivor.next("ran")
              // The victim may have been done.
              if (answer.outcome === "Ok") isWhole(answer, about)
              else namesPeer(answer, 1, about)
              survivor.ask({ run: 3 })
              namesPeer({ ...(await survivor.next("ran")), wrong: 0 }, 1, `${about}, once more`)
              survivor.ask({ end: true })
              const { outcome, files, threads } = await survivor.next("ended")
              assert.strictEqual(outcome, "Ok", about)
              assert.isAtMost(files!, 0, `${about}: files stay open`)
              assert.isAtMost(threads!, 0, `${about}: threads stay`)
            })
          })
          yield* Effect.scoped(test)
        }
      })
    )
  )

  const title = `a cable that is cut at ${cuts} moments delays a run or fails it by name, the next one is whole, and nothing stays`
  it(title, { timeout: 1_200_000 }, () =>
    onHosts((hosts) =>
      Effect.gen(function* () {
        const options = overCable
        const ranks = yield* startRanks({ byteLength: 20_000_000, deadlineMillis, options }, hosts)
        yield* Effect.promise(async () => {
          let version = 1
          let settled: ReadonlyArray<HostRankAnswer> = []
          let last = settled
          for (let seed = 0; seed < cuts; seed++) {
            const random = makeRandom(seed)
            for (const rank of ranks) rank.ask({ run: version })
            await Promise.all(ranks.map((rank) => rank.next("began")))
            await wait(random.pick([0, 1, 3, 10]))
            hosts[1].cut()
            // Some longer than the deadline: the link is given up, and another one made.
            await wait(random.pick([50, 50, 50, 300, 300, 300, 1000, 1000, deadlineMillis + 1000]))
            hosts[1].heal()
            for (const [rank, answer] of (await Promise.all(ranks.map((each) => each.next("ran")))).entries()) {
              const about = `seed ${seed}, rank ${rank}`
              if (answer.outcome === "Ok") isWhole(answer, about)
              else namesPeer(answer, 1 - rank, about)
            }
            version += 1
            last = await run(ranks, version)
            for (const answer of last) isWhole(answer, `seed ${seed}, after it`)
            version += 1
            if (seed === Math.floor(cuts / 5)) settled = last
          }
          for (const [rank, { mebibytes }] of last.entries())
            assert.isBelow(mebibytes! - settled[rank]!.mebibytes!, 48, `memory of rank ${rank}`)
          for (const rank of ranks) {
            rank.ask({ end: true })
            const { outcome, files, threads } = await rank.next("ended")
            assert.strictEqual(outcome, "Ok")
            assert.isAtMost(files!, 0, "files stay open")
            assert.isAtMost(threads!, 0, "threads stay")
          }
        })
      }).pipe(Effect.scoped)
    )
  )

  it("a host that vanishes is named at the deadline", { timeout: 60_000 }, () =>
    onHosts((hosts) =>
      Effect.gen(function* () {
        const [survivor, victim] = yield* startRanks(
          { byteLength: 200_000_000, deadlineMillis, options: overCable },
          hosts
        )
        yield* Effect.promise(async () => {
          for (const rank of [survivor, victim]) rank.ask({ run: 1 })
          await survivor.next("began")
          hosts[1].remove()
          namesPeer(await survivor.next("ran"), 1, "removed")
        })
      }).pipe(Effect.scoped)
    )
  )

  for (const transfer of ["messages", "emulated-put"] as const) {
    it(`a frozen peer lets go of memory at the deadline, by ${transfer}`, { timeout: 60_000 }, () =>
      onHosts((hosts) =>
        Effect.gen(function* () {
          const ranks = yield* startRanks(
            { byteLength: 100_000_000, deadlineMillis, options: { ...overCable, transfer } },
            hosts
          )
          yield* Effect.promise(async () => {
            const [awake, frozen] = ranks
            for (const answer of await run(ranks, 1)) isWhole(answer, "before")
            for (const rank of ranks) rank.ask({ run: 2 })
            await frozen.next("began")
            frozen.kill("SIGSTOP")
            await wait(200)
            awake.ask({ cancel: true })
            const answer = await awake.next("ran")
            assert.notStrictEqual(answer.outcome, "Ok")
            assert.strictEqual(answer.wrong, 0)
            assert.isBelow(answer.millis!, deadlineMillis + slackMillis)
            awake.ask({ end: true })
            assert.strictEqual((await awake.next("ended")).outcome, "Ok")
            frozen.kill("SIGCONT")
            namesPeer({ ...(await frozen.next("ran")), millis: 0 }, 0, "thawed")
          })
        }).pipe(Effect.scoped)
      )
    )
  }

  it("strangers who knock with noise change nothing", { timeout: 60_000 }, () =>
    Effect.runPromise(
      Effect.gen(function* () {
        const ranks = yield* startRanks({ byteLength: 5_000_000, deadlineMillis, options: {} })
        yield* Effect.promise(async () => {
          const ports = listeningPorts(ranks[0].child.pid!)
          assert.isNotEmpty(ports)
          const random = makeRandom(1)
          for (let knock = 0; knock < 200; knock++) {
            const socket = connect({ host: "127.0.0.1", port: random.pick(ports) })
            socket.on("error", () => {})
            socket.write(Buffer.from(Array.from({ length: 1 + random.below(300) }, () => random.below(256))))
            await new Promise((resolve) => socket.once("connect", resolve))
            if (knock % 2 === 0) socket.destroy()
            else socket.end()
          }
          for (let version = 1; version < 4; version++)
            for (const answer of await run(ranks, version)) isWhole(answer, `version ${version}`)
        })
      }).pipe(Effect.scoped)
    )
  )
})

/** Ports at which a process listens on this machine. */
const listeningPorts = (pid: number): ReadonlyArray<number> => {
  const inodes = new Set(
    readdirSync(`/proc/${pid}/fd`).flatMap((fd) => {
      try {
        return /socket:\[(\d+)\]/.exec(readlinkSync(`/proc/${pid}/fd/${fd}`))?.[1] ?? []
      } catch {
        return []
      }
    })
  )
  return readFileSync(`/proc/${pid}/net/tcp`, "utf8")
    .split("\n")
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => fields[3] === "0A" && inodes.has(fields[9] ?? ""))
    .map((fields) => Number.parseInt(fields[1]!.split(":")[1]!, 16))
}
