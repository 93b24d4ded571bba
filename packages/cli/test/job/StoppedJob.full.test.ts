// SPDX-License-Identifier: Apache-2.0
/**
 * Processes of a job that are stopped or left behind: a job that was stopped as a whole goes on and blames nobody, and a
 * rank does not outlive its parent.
 */
import { fork } from "node:child_process"
import { fileURLToPath } from "node:url"
import { afterEach, assert, describe, it } from "@effect/vitest"
import { endAll, eventually, membersOf, pause, rankProcess, start } from "../support/command.ts"
import { mnist, mnistRules } from "../support/models.ts"

afterEach(endAll)

describe("a job that is stopped as a whole", () => {
  it("for longer than its ranks have to start goes on to its end", { timeout: 120_000 }, async () => {
    const args = ["reshard", mnist, "--to", "tp=2", "--rules", mnistRules, "--deadline", "5", "--json"]
    const command = start(args, { limit: 90_000 })
    await rankProcess(command, 1)
    process.kill(-command.pid, "SIGSTOP")
    // The time itself is what is tested: five seconds, and two for each rank, would be over.
    await pause(11_000)
    process.kill(-command.pid, "SIGCONT")
    const ended = await command.ended
    assert.strictEqual(ended.code, 0, ended.stdout)
  })

  it("for longer than a collector has to be ready goes on to its end", { timeout: 120_000 }, async () => {
    const args = [
      "replay",
      "bench",
      "--rows",
      "50",
      "--width",
      "7",
      "--ticks",
      "20",
      "--compute",
      "0",
      "--deadline",
      "5"
    ]
    const command = start([...args, "--json"], { limit: 90_000 })
    await eventually("the process of the collector", 30_000, () =>
      membersOf(command.pid).find(({ args: of }) => of.includes("collector"))
    )
    process.kill(-command.pid, "SIGSTOP")
    await pause(11_000)
    process.kill(-command.pid, "SIGCONT")
    const ended = await command.ended
    assert.strictEqual(ended.code, 0, ended.stdout)
    assert.strictEqual((JSON.parse(ended.stdout) as { readonly batches: number }).batches, 20)
  })
})

describe("a rank in a wait that cannot be interrupted", () => {
  it("ends soon after its parent is gone", { timeout: 60_000 }, async () => {
    const child = fork(fileURLToPath(new URL("../fixtures/stuck-rank.ts", import.meta.url)), [], { execArgv: [] })
    await new Promise((resolve) => child.once("message", resolve))
    child.disconnect()
    const signal = await new Promise((resolve) => child.once("exit", (_, by) => resolve(by)))
    assert.strictEqual(signal, "SIGKILL")
  })
})
