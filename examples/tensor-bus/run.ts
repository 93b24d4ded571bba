// SPDX-License-Identifier: Apache-2.0
/**
 * Two trainers and one inference process exchange weights for several steps through three agents:
 *
 *   node examples/tensor-bus/run.ts
 *
 * With `--python` the inference process is written in Python with PyTorch (`infer.py`); TENSORFERRY_PYTHON names another
 * Python than `python3`. It needs torch.
 */
import { type ChildProcess, spawn } from "node:child_process"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"

const here = (name: string) => fileURLToPath(new URL(name, import.meta.url))
const command = here("../../packages/cli/src/main.ts")
const folder = mkdtempSync(join(tmpdir(), "tensor-bus-"))
const children: Array<ChildProcess> = []

const start = (program: string, args: ReadonlyArray<string>, env: NodeJS.ProcessEnv = {}): ChildProcess => {
  const child = spawn(program, args, {
    stdio: ["ignore", "pipe", "inherit"],
    env: { ...process.env, TENSOR_BUS_DIRECTORY: folder, ...env }
  })
  children.push(child)
  return child
}

/** Resolves with the first line of a child that prints one. */
const firstLine = (child: ChildProcess): Promise<string> =>
  new Promise((resolve, reject) => {
    child.stdout!.once("data", (chunk) => resolve(String(chunk).split("\n")[0]!))
    child.once("exit", () => reject(new Error("A process ended before it was ready.")))
  })

const ended = (child: ChildProcess): Promise<number | null> =>
  new Promise((resolve) => {
    if (child.exitCode !== null || child.signalCode !== null) resolve(child.exitCode)
    child.once("exit", (code) => resolve(code))
  })

/** Queues of agents are named by rank, machine-wide: those of this process are not those of another run of the example. */
const firstRank = 4 * process.pid

const startAgent = (at: number, ...args: ReadonlyArray<string>) =>
  start(process.execPath, [command, "agent", "--rank", String(firstRank + at), "--json", "--store", ...args])

const python = process.env.TENSORFERRY_PYTHON ?? "python3"
const isPython = process.argv.includes("--python")

try {
  // The first serves the store of names, at a port that the system chooses.
  const serving = startAgent(0, "127.0.0.1:0", "--serve")
  const { store } = JSON.parse(await firstLine(serving)) as { readonly store: string }
  const agents = [serving, startAgent(1, store), startAgent(2, store)]
  await Promise.all(agents.slice(1).map(firstLine))
  const client = (job: string, rank: number, size: number, agent: number) =>
    start(process.execPath, [here("client.ts"), job, String(rank), String(size)], {
      AGENT_RANK: String(firstRank + agent)
    })
  const inference = isPython
    ? start(python, [here("infer.py")], { AGENT_RANK: String(firstRank + 2) })
    : client("infer", 0, 1, 2)
  const clients = [client("train", 0, 2, 0), client("train", 1, 2, 1), inference]
  for (const child of clients) child.stdout!.on("data", (chunk) => process.stdout.write(chunk))
  const codes = await Promise.all(clients.map(ended))
  process.exitCode = codes.every((code) => code === 0) ? 0 : 1
  // The agent that serves the store goes last.
  for (const agent of agents.reverse()) {
    agent.kill("SIGTERM")
    await ended(agent)
  }
} finally {
  for (const child of children) child.kill("SIGKILL")
  rmSync(folder, { recursive: true, force: true })
}
