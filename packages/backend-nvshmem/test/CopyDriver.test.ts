// SPDX-License-Identifier: Apache-2.0
/**
 * The driver between ranks of one process, where things go wrong: typed errors on every rank, nothing left, and the next
 * preparation works.
 */
import { assert, describe, it } from "@effect/vitest"
import { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine as Engine } from "@tensorferry/core/service/TensorEngine"
import { runMembers } from "@tensorferry/testing"
import {
  carryOut,
  makeShare,
  makeTransfers,
  randomTransfer,
  type Transfer
} from "@tensorferry/testing/transfers/randomTransfers"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import type { Scope } from "effect/Scope"
import type { NvshmemOptions } from "../src/options.ts"
import { assertClean, driverOf, engines, resetSimulator, testOptions } from "./cluster.ts"
import { simulator } from "./simulator.ts"

type Services = CopyDriver | Engine | ProcessGroup | Scope

/** Settings of the simulated library itself; see pes.h. */
const libraryVariable = "TENSORFERRY_NVSHMEM_SIMULATOR"

const withLibrary = async <A>(settings: string, body: () => Promise<A>): Promise<A> => {
  process.env[libraryVariable] = settings
  try {
    return await body()
  } finally {
    delete process.env[libraryVariable]
    resetSimulator("")
  }
}

const exitsOf = <A>(
  settings: string,
  program: (rank: number) => Effect.Effect<A, unknown, Services>,
  options: (rank: number) => NvshmemOptions = () => ({}),
  size = 2
) => {
  resetSimulator(settings)
  const layers = engines()
  return Effect.runPromise(
    runMembers(
      { size, groupDeadline: Duration.seconds(10) },
      ({ rank }) => Layer.provideMerge(driverOf(options(rank)), layers),
      program
    )
  )
}

/** Runs a program on the ranks over a fresh simulated driver; what they give, by rank. */
const onRanks = async <A>(...input: Parameters<typeof exitsOf<A>>): Promise<ReadonlyArray<A>> => {
  const exits = await exitsOf(...input)
  const values = exits.map((exit) => (Exit.isFailure(exit) ? assert.fail(String(exit.cause)) : exit.value))
  simulator.configure("clear=faults")
  assertClean()
  return values
}

const transfers = makeTransfers(11, 2)

/** One transfer that is right. */
const works = (rank: number, list: ReadonlyArray<Transfer> = transfers) =>
  Effect.map(carryOut(rank, list, 5), ({ wrong, program }) => {
    assert.deepStrictEqual(wrong, [])
    return program
  })

const prepareFails = (list: ReadonlyArray<Transfer>, rank: number, change: (messages: Messages) => Messages) =>
  Effect.gen(function* () {
    const driver = yield* CopyDriver
    const share = yield* makeShare(yield* Engine, list, rank)
    return (yield* Effect.flip(driver.prepare(change(share.messages)))).reason
  }).pipe(Effect.scoped)

type Messages = Effect.Success<ReturnType<typeof makeShare>>["messages"]
const same = (messages: Messages) => messages

describe("a preparation fails on all ranks, and the next one works", () => {
  for (const [what, change, reason] of [
    ["a partner without its message", (messages: Messages) => messages.slice(0, -1), "InvalidProgram"],
    [
      "a message to an unknown PE",
      (messages: Messages) => messages.map((message) => ({ ...message, peer: 7 })),
      "InvalidProgram"
    ],
    [
      "fewer parts on one end",
      (messages: Messages) => messages.map((message) => ({ ...message, parts: message.parts.slice(1) })),
      "InvalidProgram"
    ]
  ] as const) {
    it(what, { timeout: 60_000 }, async () => {
      const reasons = await onRanks("seed=2", (rank) =>
        Effect.gen(function* () {
          const failed = yield* prepareFails(transfers, rank, rank === 1 ? change : same)
          yield* works(rank)
          return failed
        })
      )
      assert.deepStrictEqual(
        reasons.map(({ _tag }) => _tag),
        [reason, reason]
      )
      for (const { detail, remedy, backend } of reasons) {
        assert.isNotEmpty(detail)
        assert.isNotEmpty(remedy)
        assert.strictEqual(backend, "nvshmem")
      }
    })
  }

  it("the direct way asked for where memory is not mapped", { timeout: 60_000 }, async () => {
    const reasons = await onRanks(
      "seed=2 peers=none",
      (rank) => prepareFails(transfers, rank, same),
      () => ({ path: "direct" })
    )
    assert.deepStrictEqual(
      reasons.map(({ _tag }) => _tag),
      ["UnreachableMemory", "UnreachableMemory"]
    )
  })

  it("a symmetric heap that is too small", { timeout: 60_000 }, async () => {
    await withLibrary("heap=64k", async () => {
      const reasons = await onRanks("seed=2", (rank) => prepareFails(transfers, rank, same))
      for (const { _tag, detail, remedy } of reasons) {
        assert.strictEqual(_tag, "TransportFailed")
        assert.match(detail, /symmetric heap .*NVSHMEM_SYMMETRIC_SIZE/)
        assert.isNotEmpty(remedy)
      }
    })
  })

  for (const [what, fault] of [
    ["an identity that cannot be made", "fail=nvshmemx_get_uniqueid:1:1"],
    ["a library that cannot start", "fail=nvshmemx_hostlib_init_attr:*:7"]
  ] as const) {
    it(what, { timeout: 60_000 }, async () => {
      const reasons = await onRanks(`seed=4 ${fault}`, (rank) => prepareFails(transfers, rank, same))
      assert.deepStrictEqual(
        reasons.map(({ _tag }) => _tag),
        ["TransportFailed", "TransportFailed"]
      )
    })
  }
})

describe("the library", () => {
  const failures = async (options: (rank: number) => NvshmemOptions, settings = "") => {
    const exits = await withLibrary(settings, () => exitsOf("seed=1", (rank) => works(rank), options))
    return exits.map((exit) => (Exit.isFailure(exit) ? String(exit.cause) : assert.fail("it worked")))
  }

  it("absent on one rank: that rank says what it tried, the other that a rank left", {
    timeout: 60_000
  }, async () => {
    const files = { ...testOptions.libraries, nvshmem: "/nonexistent/libnvshmem_host.so.3" }
    const [here, there] = await failures((rank) => (rank === 1 ? { libraries: files } : {}))
    assert.match(here!, /PeerGone|TransportFailed/)
    assert.match(there!, /Unavailable.*\/nonexistent\/libnvshmem_host\.so\.3.*TENSORFERRY_NVSHMEM/s)
  })

  it("too old on all ranks", { timeout: 60_000 }, async () => {
    for (const failure of await failures(() => ({}), "version=2.11.0")) {
      assert.match(failure, /Unavailable.*is version 2\.11\.0; the oldest that serves is 3\.0|PeerGone/s)
    }
  })

  it("another library", { timeout: 60_000 }, async () => {
    const files = { ...testOptions.libraries, nvshmem: "libc.so.6" }
    for (const failure of await failures(() => ({ libraries: files }))) {
      assert.match(failure, /Unavailable.*has no function nvshmemx_|PeerGone/s)
    }
  })
})

describe("a run", () => {
  /** Many batches through few slots. */
  const long = Array.from({ length: 40 }, (_, taskId) =>
    randomTransfer(taskId, taskId % 2, 1 - (taskId % 2), "uint8", [100, 211])
  )

  for (const path of ["direct", "put"] as const) {
    it(`that one rank cancels fails on the other at once, and after it all is right (${path})`, {
      timeout: 60_000
    }, async () => {
      const outcomes = await onRanks(
        "seed=6",
        (rank) =>
          Effect.gen(function* () {
            const driver = yield* CopyDriver
            const group = yield* ProcessGroup
            const outcome = yield* Effect.scoped(
              Effect.gen(function* () {
                const share = yield* makeShare(yield* Engine, long, rank)
                const program = yield* driver.prepare(share.messages)
                // Rank 1 never starts, so that rank 0 waits for leave to write when it is cancelled.
                if (rank === 1) {
                  yield* group.barrier("cancelled")
                  const late = yield* Effect.exit(Effect.flatMap(driver.start(program), (running) => running.await))
                  const again = yield* Effect.flip(driver.start(program))
                  return [late, again.reason._tag] as const
                }
                const running = yield* driver.start(program)
                yield* Effect.sleep("20 millis")
                yield* running.cancel
                yield* group.barrier("cancelled")
                return [yield* Effect.exit(running.await), "Broken"] as const
              })
            )
            yield* works(rank)
            yield* works(rank, long)
            return outcome
          }),
        () => ({ path })
      )
      for (const [exit, again] of outcomes) {
        assert.isTrue(Exit.isFailure(exit))
        assert.strictEqual(again, "Broken")
      }
      assert.match(String(outcomes[1]![0]), /PE 0 gave its run up/)
    })
  }

  it("that one rank cannot start, because memory was freed, fails on the other at once", {
    timeout: 60_000
  }, async () => {
    const reasons = await onRanks("seed=7", (rank) =>
      Effect.gen(function* () {
        const driver = yield* CopyDriver
        const group = yield* ProcessGroup
        const reason = yield* Effect.scoped(
          Effect.gen(function* () {
            const share = yield* makeShare(yield* Engine, transfers, rank)
            const program = yield* driver.prepare(share.messages)
            if (rank === 0) yield* Effect.sync(() => share.messages[0]!.parts[0]!.tensor.storage.free())
            yield* group.barrier("freed")
            const error = yield* Effect.flip(Effect.flatMap(driver.start(program), (running) => running.await))
            yield* group.barrier("failed")
            return error.reason
          })
        )
        yield* works(rank)
        return reason
      })
    )
    assert.deepStrictEqual(
      reasons.map(({ _tag }) => _tag),
      ["InvalidProgram", "PeerGone"]
    )
  })

  it("of a driver that was closed leaves a process that can join again", { timeout: 60_000 }, async () => {
    for (let round = 0; round < 3; round++) await onRanks(`seed=${round}`, (rank) => works(rank))
  })

  it("reports its schedule and the paths taken", { timeout: 60_000 }, async () => {
    const programs = await onRanks(
      "seed=8",
      (rank) => works(rank, long),
      () => ({ path: "auto" })
    )
    for (const program of programs) {
      assert.deepStrictEqual(
        program.paths.map(({ path }) => path),
        ["direct"]
      )
    }
    const put = await onRanks("seed=8 peers=none", (rank) => works(rank, long))
    assert.deepStrictEqual(put[0]!.paths[0]?.path, "put")
  })
})
