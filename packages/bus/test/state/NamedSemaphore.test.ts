// SPDX-License-Identifier: Apache-2.0
/**
 * Named semaphores in one process and between two.
 */
import { execFile } from "node:child_process"
import { chmodSync, readdirSync, statSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { promisify } from "node:util"
import { Worker } from "node:worker_threads"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as NamedSemaphore from "../../src/state/NamedSemaphore.ts"

let made = 0
const freshName = () => `/tensorferry-test-${process.pid}-${++made}`
const fileOf = (name: string) => `sem.${name.slice(1)}`

const reasonOf = <A, E extends { readonly reason: { readonly _tag: string } }, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.flip(effect), (error) => error.reason._tag)

const peer = fileURLToPath(new URL("../fixtures/semaphore-peer.ts", import.meta.url))
const runPeer = (name: string, action: "post" | "wait") =>
  Effect.map(
    Effect.promise(() => promisify(execFile)(process.execPath, [peer, name, action])),
    ({ stdout }) => stdout.trim()
  )

describe("NamedSemaphore", () => {
  it.live("counts posts and gives each to one waiter", () =>
    Effect.gen(function* () {
      const name = freshName()
      const semaphore = yield* NamedSemaphore.create(name, 2)
      const same = yield* NamedSemaphore.open(name)
      yield* semaphore.wait()
      yield* same.wait()
      assert.strictEqual(yield* semaphore.value, 0)
      const waiters = yield* Effect.forEach(new Array(6).fill(same), (each: NamedSemaphore.NamedSemaphore) =>
        Effect.forkChild(each.wait(), { startImmediately: true })
      )
      for (const _ of waiters) yield* semaphore.post
      yield* Effect.forEach(waiters, Fiber.join)
      assert.strictEqual(yield* same.value, 0)
    })
  )

  it.live("keeps deadlines, also of a waiter behind one that waits for ever", () =>
    Effect.gen(function* () {
      const semaphore = yield* NamedSemaphore.create(freshName())
      const forEver = yield* Effect.forkChild(semaphore.wait(), { startImmediately: true })
      assert.strictEqual(yield* reasonOf(semaphore.wait("10 millis")), "DeadlineExceeded")
      assert.strictEqual(yield* reasonOf(semaphore.wait(0)), "DeadlineExceeded")
      yield* Fiber.interrupt(forEver)
      yield* semaphore.post
      assert.strictEqual(yield* semaphore.value, 1, "an interrupted waiter takes nothing")
      yield* semaphore.wait(0)
    })
  )

  it.live("belongs to its user and goes away with its scope", () =>
    Effect.gen(function* () {
      const name = freshName()
      yield* Effect.scoped(
        Effect.gen(function* () {
          yield* NamedSemaphore.create(name)
          assert.strictEqual(statSync(`/dev/shm/${fileOf(name)}`).mode & 0o777, 0o600)
          assert.strictEqual(yield* reasonOf(NamedSemaphore.create(name)), "AlreadyExists")
          assert.include(readdirSync("/dev/shm"), fileOf(name))
        })
      )
      assert.notInclude(readdirSync("/dev/shm"), fileOf(name))
      assert.strictEqual(yield* reasonOf(NamedSemaphore.open(name)), "NotFound")
      assert.strictEqual(yield* reasonOf(NamedSemaphore.unlink(name)), "NotFound")
    })
  )

  it.live("refuses names that are paths or nothing", () =>
    Effect.gen(function* () {
      for (const name of ["", "/", "name", "/a/b", "/../etc", "/.", "/..", "/a\0b", "/a b", `/${"x".repeat(201)}`]) {
        assert.strictEqual(yield* reasonOf(NamedSemaphore.create(name)), "InvalidName", name)
        assert.strictEqual(yield* reasonOf(NamedSemaphore.open(name)), "InvalidName", name)
        assert.strictEqual(yield* reasonOf(NamedSemaphore.unlink(name)), "InvalidName", name)
      }
      yield* NamedSemaphore.create(`/${"x".repeat(190)}-${process.pid}`)
    })
  )

  it.live("works between processes", () =>
    Effect.gen(function* () {
      const name = freshName()
      const semaphore = yield* NamedSemaphore.create(name)
      const posted = yield* Effect.forkChild(runPeer(name, "post"))
      yield* semaphore.wait("30 seconds")
      assert.strictEqual(yield* Fiber.join(posted), "done")
      const waited = yield* Effect.forkChild(runPeer(name, "wait"))
      yield* semaphore.post
      assert.strictEqual(yield* Fiber.join(waited), "done")
      assert.strictEqual(yield* runPeer("/none", "post"), "NotFound")
    })
  )

  it.live("is not opened where other users can change it", () =>
    Effect.gen(function* () {
      const name = freshName()
      yield* NamedSemaphore.create(name)
      chmodSync(`/dev/shm/${fileOf(name)}`, 0o622)
      assert.strictEqual(yield* reasonOf(NamedSemaphore.open(name)), "PermissionDenied")
    })
  )

  it.live("goes with its worker thread, also in the middle of a wait that has no end", () =>
    Effect.gen(function* () {
      const script = fileURLToPath(new URL("../fixtures/waiting-worker.ts", import.meta.url))
      const name = freshName()
      for (let round = 0; round < 6; round++) {
        yield* Effect.promise(async () => {
          const worker = new Worker(script, { workerData: name })
          const failed = new Promise<never>((_, reject) => worker.once("error", reject))
          await Promise.race([new Promise((resolve) => worker.once("message", resolve)), failed])
          await worker.terminate()
        })
      }
      assert.notInclude(readdirSync("/dev/shm"), fileOf(name))
    })
  )
})
