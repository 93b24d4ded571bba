// SPDX-License-Identifier: Apache-2.0
/**
 * Two agents on each of two hosts: a trainer of two ranks on one host and an inference job of two on the other exchange their
 * weights, in layouts of their own, by whatever wire there is.
 */

import { type ChildProcess, spawnSync } from "node:child_process"
import { once } from "node:events"
import { readdirSync, rmSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { afterAll, assert, describe, it } from "@effect/vitest"
import type { Host } from "@tensorferry/simulators/hosts"
import { scratch } from "../support/command.ts"
import { commandOn, startOn, twoHosts } from "../support/twoHosts.ts"

const { reason, hosts, close } = await twoHosts({ hasOwnProcesses: true })
const client = fileURLToPath(new URL("../../../../examples/tensor-bus/client.ts", import.meta.url))

/** Queues of one name have the same semaphores on the whole machine, whatever network a host has. */
const firstRank = 4 * process.pid

afterAll(async () => {
  await close()
  const own = [0, 1, 2, 3].map((at) => `agent_rank${firstRank + at}_`)
  for (const name of readdirSync("/dev/shm"))
    if (own.some((each) => name.includes(each))) rmSync(join("/dev/shm", name))
})

const hasLmdb = spawnSync("sh", ["-c", "ls /usr/lib/*/liblmdb.so.0 /usr/lib*/liblmdb.so.0"]).stdout.length > 0
const skipped = reason ?? (hasLmdb ? undefined : "liblmdb.so.0 is not installed")

const firstLine = async (child: ChildProcess): Promise<string> => {
  let said = ""
  child.stderr!.on("data", (chunk) => {
    said += String(chunk)
  })
  const ended = once(child, "close").then(() => assert.fail(`an agent ended: ${said}`))
  const [chunk] = await Promise.race([once(child.stdout!, "data"), ended])
  return String(chunk).split("\n")[0]!
}

describe.skipIf(skipped !== undefined)(
  `agents on two hosts${skipped === undefined ? "" : ` (skipped: ${skipped})`}`,
  () => {
    const first = hosts[0] as Host
    const hostOf = (at: number): Host => hosts[at >> 1]!

    const startAgents = async (folders: ReadonlyArray<string>, envOf: (at: number) => NodeJS.ProcessEnv) => {
      const agents: Array<ChildProcess> = []
      let store = `${first.addresses[0]}:0`
      for (let at = 0; at < 4; at++) {
        const args = ["agent", "--rank", `${firstRank + at}`, "--folder", folders[at >> 1]!, "--store", store, "--json"]
        const place = ["--host", hostOf(at).addresses[0]!, "--deadline", "20", ...(at === 0 ? ["--serve"] : [])]
        const child = startOn(hostOf(at), [...args, ...place], envOf(at))
        agents.push(child)
        store = (JSON.parse(await firstLine(child)) as { readonly store: string }).store
      }
      return agents
    }

    const runClients = (folders: ReadonlyArray<string>) =>
      Promise.all(
        ([0, 1, 2, 3] as const).map(
          (at) =>
            commandOn(hostOf(at), process.execPath, [client, at < 2 ? "train" : "infer", `${at % 2}`, "2"], {
              AGENT_RANK: `${firstRank + at}`,
              TENSOR_BUS_DIRECTORY: folders[at >> 1]!
            }).ended
        )
      )

    for (const [name, env] of [
      ["by auto", {}],
      ["without UCX on one of them", { TENSORFERRY_UCX_LIBRARY: "/nowhere/libucp.so.0" }]
    ] as const) {
      it(`${name} move weights there and back`, { timeout: 120_000 }, async () => {
        using a = scratch()
        using b = scratch()
        const folders = [a.path, b.path]
        const agents = await startAgents(folders, (at) => ({
          TENSORFERRY_TOKEN: "a secret",
          ...(at === 3 ? env : {})
        }))
        try {
          for (const [at, { code, stdout, stderr }] of (await runClients(folders)).entries()) {
            assert.strictEqual(code, 0, stdout + stderr)
            assert.strictEqual(stdout.trim(), `${at < 2 ? "train" : "infer"} ${at % 2}: 4 steps, 0 wrong values`)
          }
        } finally {
          // The agent that serves the store goes last.
          for (const agent of agents.reverse()) {
            agent.kill("SIGTERM")
            if (agent.exitCode === null && agent.signalCode === null) await once(agent, "close")
          }
        }
      })
    }
  }
)
