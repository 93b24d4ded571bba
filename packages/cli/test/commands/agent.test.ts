// SPDX-License-Identifier: Apache-2.0
/** `tensorferry agent`: serves until it is told to stop, then leaves nothing behind; wrong usage, and two agents of one rank. */
import { spawn, spawnSync } from "node:child_process"
import { existsSync, readdirSync } from "node:fs"
import { afterAll, assert, describe, it } from "@effect/vitest"
import { endAll, eventually, run, scratch, start } from "../support/command.ts"
import { runHere } from "../support/here.ts"

afterAll(endAll)

/** Queues of one name have the same semaphores on the whole machine: other runs of this test use other ranks. */
const rank = 2 ** 30 + process.pid

const hasLmdb = spawnSync("sh", ["-c", "ls /usr/lib/*/liblmdb.so.0 /usr/lib*/liblmdb.so.0"]).stdout.length > 0

it("addresses that are none", async () => {
  for (const args of [
    ["--store", "nowhere"],
    ["--store", "http://127.0.0.1:2379", "--serve"],
    ["--store", "127.0.0.1:99999"]
  ]) {
    const ended = await runHere(["agent", "--rank", "0", ...args])
    assert.strictEqual(ended.code, 2, ended.stderr)
  }
})

it("serves a socket without LMDB, says where the store is, and ends with its client", async () => {
  using folder = scratch()
  const client = spawn("sleep", ["600"])
  try {
    const path = `${folder.path}/agent.sock`
    const where = ["--rank", `${rank + 1}`, "--serve", "--store", "127.0.0.1:0", "--json"]
    const agent = start(["agent", ...where, "--socket", path, "--client", `${client.pid}`])
    await eventually("the socket", 60_000, () => (existsSync(path) ? true : undefined))
    const second = await run(["agent", ...where, "--socket", path])
    assert.strictEqual(second.code, 1)
    assert.match(second.stdout, /Another agent serves/)
    client.kill("SIGKILL")
    const ended = await agent.ended
    assert.strictEqual(ended.code, 0, ended.stderr)
    const said = JSON.parse(ended.stdout.split("\n")[0]!) as { readonly socket: string; readonly store: string }
    assert.strictEqual(said.socket, path)
    assert.match(said.store, /^127\.0\.0\.1:[1-9]\d+$/)
    assert.deepStrictEqual(readdirSync(folder.path), [])
  } finally {
    client.kill("SIGKILL")
  }
})

describe.skipIf(!hasLmdb)(`an agent${hasLmdb ? "" : " (skipped: liblmdb.so.0 is not installed)"}`, () => {
  it("serves, refuses a second one, and ends in order", async () => {
    using folder = scratch()
    const args = ["agent", "--rank", `${rank}`, "--folder", folder.path, "--serve", "--store", "127.0.0.1:0", "--json"]
    const agent = start(args)
    const queue = `${folder.path}/agent_rank${rank}_command.lmdb`
    await eventually("the queue", 60_000, () =>
      existsSync(`${folder.path}/agent_rank${rank}_state.lmdb-lock`) ? true : undefined
    )
    await eventually("the semaphore", 60_000, () =>
      readdirSync("/dev/shm").includes(`sem.cq_ready_agent_rank${rank}_command`) ? true : undefined
    )
    const second = await run(args)
    assert.strictEqual(second.code, 1)
    assert.match(second.stdout, /Another agent serves/)
    assert.isTrue(existsSync(queue))
    process.kill(agent.pid, "SIGTERM")
    const ended = await agent.ended
    assert.strictEqual(ended.code, 130, ended.stderr)
    assert.deepStrictEqual(readdirSync(folder.path), [])
    assert.isFalse(readdirSync("/dev/shm").some((name) => name.includes(`agent_rank${rank}_command`)))
  })
})
