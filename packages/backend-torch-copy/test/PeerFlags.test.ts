// SPDX-License-Identifier: Apache-2.0
/**
 * Flags in real memory files with real doorbells: what a peer sees, what it must be told, and what is refused of a peer that
 * names what is not its own.
 */
import { closeSync, openSync, readdirSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import { processStart } from "@tensorferry/core/group/processStart"
import { makePeerFlags, type OwnFlags, type PublishedFlags } from "@tensorferry/native/driver/PeerFlags"
import { acquirePool } from "@tensorferry/native/NativeJob"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import { loadAddon } from "../src/Addon.ts"
import { flagMeans } from "../src/flagMeans.ts"

const self = { pid: process.pid, processStart: processStart("self")! }

const means = Effect.gen(function* () {
  const addon = yield* loadAddon
  return { addon, ...flagMeans(addon, yield* acquirePool(addon, 1)) }
})

/** Ranks of this process, each with a scope of its own. */
const makeRanks = Effect.fnUntraced(function* (size: number) {
  const lent = yield* means
  const parent = yield* Effect.scope
  return yield* Effect.forEach([...Array(size).keys()], (rank) =>
    Effect.gen(function* () {
      const scope = yield* Scope.fork(parent)
      const own = yield* Scope.provide(makePeerFlags(lent, { rank, size }), scope)
      return { ...own, rank, close: Scope.close(scope, Exit.void) }
    })
  )
})

const meetAll = (ranks: ReadonlyArray<OwnFlags & { readonly rank: number }>): void => {
  for (const { meet } of ranks) for (const { rank, published } of ranks) meet(rank, self, published)
}

const openFiles = (): number => readdirSync("/proc/self/fd").length

describe("flags of ranks of one host", () => {
  it.live("are seen by peers that have met, and by no others", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const [a, b, c] = yield* makeRanks(3)
        assert.isFalse(a!.flags.tell(1, "Ready", 1), "before they have met")
        a!.meet(1, self, b!.published)
        assert.isFalse(a!.flags.tell(1, "Ready", 2), "the peer does not look yet")
        b!.meet(0, self, a!.published)
        assert.isTrue(a!.flags.tell(1, "Ready", 3))
        assert.strictEqual(b!.flags.read(0, "Ready"), 3)
        assert.strictEqual(b!.flags.read(0, "Done"), 0)
        assert.strictEqual(c!.flags.read(0, "Ready"), 0)
        assert.isFalse(a!.flags.tell(2, "Ready", 3))
        assert.isFalse(a!.flags.tell(0, "Ready", 3), "a rank is no peer of its own")
      })
    )
  )

  it.live("are numbers up to the largest exact one", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const ranks = yield* makeRanks(2)
        meetAll(ranks)
        assert.isTrue(ranks[0]!.flags.tell(1, "Done", Number.MAX_SAFE_INTEGER))
        assert.strictEqual(ranks[1]!.flags.read(0, "Done"), Number.MAX_SAFE_INTEGER)
      })
    )
  )

  it.live("wake a peer that sleeps, once for all that was stated meanwhile, and no other", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const ranks = yield* makeRanks(3)
        meetAll(ranks)
        const [a, b, c] = ranks
        const woken = yield* Deferred.make<void>()
        const wakes = [0, 0]
        b!.flags.watch(() => {
          wakes[0]! += 1
          Deferred.doneUnsafe(woken, Exit.void)
        })
        c!.flags.watch(() => (wakes[1]! += 1))
        a!.flags.tell(1, "Ready", 1)
        b!.flags.sleep(true)
        for (let run = 2; run <= 9; run++) a!.flags.tell(1, "Ready", run)
        yield* Effect.timeout(Deferred.await(woken), "2 seconds")
        assert.deepStrictEqual(wakes, [1, 0])
        assert.strictEqual(b!.flags.read(0, "Ready"), 9)
      })
    )
  )

  it.live("are read after they were closed, as they were then, and are not stated to a peer that has closed", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const ranks = yield* makeRanks(2)
        meetAll(ranks)
        const [a, b] = ranks
        a!.flags.tell(1, "Done", 7)
        yield* b!.close
        assert.isFalse(a!.flags.tell(1, "Done", 8), "it must be told")
        assert.strictEqual(b!.flags.read(0, "Done"), 7)
        assert.isFalse(b!.flags.tell(0, "Done", 8))
        b!.meet(0, self, a!.published)
        assert.isFalse(a!.flags.tell(1, "Done", 9), "a closed rank meets nobody")
      })
    )
  )

  it.live("of a peer that was built again take the place of those before", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const lent = yield* means
        const ranks = yield* makeRanks(2)
        meetAll(ranks)
        const [a, b] = ranks
        a!.flags.tell(1, "Done", 5)
        yield* a!.close
        const again = yield* makePeerFlags(lent, { rank: 0, size: 2 })
        b!.meet(0, self, again.published)
        again.meet(1, self, b!.published)
        assert.strictEqual(b!.flags.read(0, "Done"), 5, "what was stated before still counts")
        assert.isTrue(again.flags.tell(1, "Done", 6))
        assert.strictEqual(b!.flags.read(0, "Done"), 6)
      })
    )
  )

  it.live("leave no file open", () =>
    Effect.gen(function* () {
      const once = Effect.scoped(
        Effect.gen(function* () {
          const ranks = yield* makeRanks(3)
          meetAll(ranks)
          ranks[0]!.flags.tell(1, "Ready", 1)
        })
      )
      yield* once
      // A pipe that the event loop reads is closed in its next turn.
      yield* Effect.promise(() => new Promise((resume) => setImmediate(resume)))
      const before = openFiles()
      for (let time = 0; time < 20; time++) yield* once
      yield* Effect.promise(() => new Promise((resume) => setImmediate(resume)))
      assert.isAtMost(openFiles(), before)
    })
  )
})

describe("a peer that names what is not its own", () => {
  const forged = (change: (honest: PublishedFlags) => PublishedFlags, owner = self) =>
    Effect.scoped(
      Effect.gen(function* () {
        const [a, b] = yield* makeRanks(2)
        a!.meet(1, self, b!.published)
        b!.meet(0, owner, change(a!.published))
        assert.isFalse(a!.flags.tell(1, "Ready", 1), "rank 1 does not look there")
        assert.strictEqual(b!.flags.read(0, "Ready"), 0)
        assert.isFalse(b!.flags.tell(0, "Ready", 1))
      })
    )

  it.live("as memory: another file, or one that is no memory", () =>
    Effect.gen(function* () {
      yield* forged((honest) => ({ ...honest, inode: String(BigInt(honest.inode) + 1n) }))
      const file = openSync("/dev/null", "r+")
      yield* forged((honest) => ({ ...honest, descriptor: file }))
      closeSync(file)
      yield* forged((honest) => ({ ...honest, descriptor: 2 ** 31 - 1 }))
    })
  )

  it.live("as memory: a file that is too short for the group", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const lent = yield* means
        const small = yield* lent.create(64)
        yield* forged((honest) => ({ ...honest, descriptor: small.descriptor, inode: String(small.inode) }))
        small.close()
      })
    )
  )

  it.live("as doorbell: a device, memory, or another pipe, none of which is opened", () =>
    Effect.gen(function* () {
      const file = openSync("/dev/null", "r+")
      yield* forged((honest) => ({ ...honest, bellDescriptor: file }))
      closeSync(file)
      yield* forged((honest) => ({ ...honest, bellDescriptor: honest.descriptor, bellInode: honest.inode }))
      yield* forged((honest) => ({ ...honest, bellInode: String(BigInt(honest.bellInode) + 1n) }))
    })
  )

  it.live("as process: one that has ended, or whose number another has got", () =>
    Effect.gen(function* () {
      yield* forged((honest) => honest, { ...self, processStart: "1" })
      yield* forged((honest) => honest, { pid: 2 ** 22 + 1, processStart: "1" })
    })
  )

  it.live("as number: what is no exact whole number above zero counts as nothing", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { addon, ...lent } = yield* means
        const [a] = yield* makeRanks(2)
        // The peer's memory, written by a hand that keeps no rules.
        const memory = yield* lent.create(4096)
        const bell = addon.createDoorbell()
        if (bell.code !== "Ok") return assert.fail(bell.detail)
        a!.meet(1, self, {
          ...a!.published,
          descriptor: memory.descriptor,
          inode: String(memory.inode),
          bellDescriptor: bell.value.descriptor,
          bellInode: String(bell.value.inode)
        })
        const words = new BigInt64Array(memory.buffer)
        for (const [word, read] of [
          [-1n, 0],
          [2n ** 63n - 1n, 0],
          [2n ** 53n, 0],
          [12n, 12]
        ] as const) {
          words.fill(word)
          assert.strictEqual(a!.flags.read(1, "Ready"), read)
        }
        closeSync(bell.value.readEnd)
        // Nobody hears it: the peer is gone, which the group reports.
        words.fill(1n)
        assert.isTrue(a!.flags.tell(1, "Ready", 1))
        memory.close()
      })
    )
  )
})

describe("the addon's doorbells", () => {
  it.live("refuse what is no doorbell, and a closed one", () =>
    Effect.gen(function* () {
      const addon = yield* loadAddon
      const made = addon.createDoorbell()
      if (made.code !== "Ok") return assert.fail(made.detail)
      const { doorbell, readEnd } = made.value
      assert.strictEqual(addon.ringDoorbell({} as never).code, "InvalidHandle")
      for (let ring = 0; ring < 100_000; ring++) assert.strictEqual(addon.ringDoorbell(doorbell).code, "Ok")
      closeSync(readEnd)
      assert.strictEqual(addon.ringDoorbell(doorbell).code, "PeerGone")
      assert.strictEqual(addon.closeDoorbell(doorbell).code, "Ok")
      assert.strictEqual(addon.ringDoorbell(doorbell).code, "InvalidHandle")
    })
  )
})
