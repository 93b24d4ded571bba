// SPDX-License-Identifier: Apache-2.0
/**
 * Two hosts, as network namespaces joined by one cable: ranks meet over TCP with a token, and do not without.
 *
 * Needs root and `ip`; in full runs only.
 */
import { spawn, spawnSync } from "node:child_process"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { type Ended, failuresOf, scratch } from "../support/command.ts"
import { assertSameModel, mnist, mnistRules } from "../support/models.ts"

const main = fileURLToPath(new URL("../../src/main.ts", import.meta.url))

const makeLlama = fileURLToPath(new URL("../../../../examples/llama-small/make.ts", import.meta.url))

const ip = (...args: ReadonlyArray<string>): string => {
  const { status, stderr } = spawnSync("ip", args, { encoding: "utf8" })
  return status === 0 ? "" : `ip ${args.join(" ")}: ${stderr}`
}

const tag = `tf${process.pid}`
const hosts = [`${tag}a`, `${tag}b`] as const
const addresses = ["10.213.7.1", "10.213.7.2"] as const
const port = 29_600

const connect = (): ReadonlyArray<string> =>
  [
    ...hosts.map((host) => ip("netns", "add", host)),
    ip("link", "add", `${tag}0`, "netns", hosts[0], "type", "veth", "peer", "name", `${tag}1`, "netns", hosts[1]),
    ...hosts.flatMap((host, at) => [
      ip("-n", host, "address", "add", `${addresses[at]}/24`, "dev", `${tag}${at}`),
      ip("-n", host, "link", "set", `${tag}${at}`, "up"),
      ip("-n", host, "link", "set", "lo", "up")
    ])
  ].filter((fault) => fault !== "")

const remove = (): void => {
  for (const host of hosts) ip("netns", "delete", host)
}

const isRoot = process.getuid?.() === 0 && spawnSync("ip", ["-V"]).status === 0

interface Rank {
  readonly ended: Promise<Ended>
  readonly kill: () => void
}

/** One rank on its host. Killed with all that it started where it takes too long. */
const rankOn = (rank: 0 | 1, args: ReadonlyArray<string>, token: string | undefined): Rank => {
  const child = spawn("ip", ["netns", "exec", hosts[rank], process.execPath, main, ...args], {
    stdio: ["ignore", "pipe", "pipe"],
    detached: true,
    env: {
      ...process.env,
      RANK: `${rank}`,
      WORLD_SIZE: "2",
      LOCAL_RANK: "0",
      LOCAL_WORLD_SIZE: "1",
      MASTER_ADDR: addresses[0],
      TENSORFERRY_PORT: `${port}`,
      ...(token === undefined ? {} : { TENSORFERRY_TOKEN: token })
    }
  })
  let [stdout, stderr] = ["", ""]
  child.stdout.on("data", (chunk) => {
    stdout += String(chunk)
  })
  child.stderr.on("data", (chunk) => {
    stderr += String(chunk)
  })
  const kill = (): void => {
    if (child.exitCode === null && child.signalCode === null) process.kill(-child.pid!, "SIGKILL")
  }
  const timer = setTimeout(kill, 90_000)
  const ended = new Promise<Ended>((resolve) => {
    child.once("close", (code, signal) => {
      clearTimeout(timer)
      resolve({ code, signal, stdout, stderr })
    })
  })
  return { ended, kill }
}

type Tokens = readonly [string | undefined, string | undefined]

const launch = (tokens: Tokens, ...more: ReadonlyArray<string>): readonly [Rank, Rank] => {
  const args = ["reshard", mnist, "--to", "tp=2", "--rules", mnistRules, "--json", "--deadline", "5", ...more]
  return [rankOn(0, args, tokens[0]), rankOn(1, args, tokens[1])]
}

describe.skipIf(!isRoot)("two hosts", () => {
  beforeAll(() => {
    assert.deepStrictEqual(connect(), [])
  })
  afterAll(remove)

  it("with a token work as one job", async () => {
    using folder = scratch()
    const out = join(folder.path, "out")
    const ranks = launch(["a secret", "a secret"], "--out", out)
    for (const { ended } of ranks) {
      const end = await ended
      assert.strictEqual(end.code, 0, end.stdout + end.stderr)
      assert.notInclude(end.stdout + end.stderr, "a secret")
    }
    await assertSameModel(out, mnist)
  })

  it("move a model's bytes by tcp, bit by bit", async () => {
    using folder = scratch()
    const llama = join(folder.path, "llama")
    const made = spawnSync(process.execPath, [makeLlama, llama], { encoding: "utf8" })
    assert.strictEqual(made.status, 0, made.stderr)
    for (const [name, model, rules] of [
      ["mnist", mnist, ["--rules", mnistRules]],
      ["llama", llama, []]
    ] as const) {
      const out = join(folder.path, `${name}-out`)
      const args = ["reshard", model, "--from", "tp=2", "--to", "tp=1,dp=2", ...rules, "--backend", "tcp", "--json"]
      const ranks = ([0, 1] as const).map((rank) => rankOn(rank, [...args, "--out", out], "a secret"))
      for (const { ended } of ranks) {
        const end = await ended
        assert.strictEqual(end.code, 0, end.stdout + end.stderr)
      }
      const first = await ranks[0]!.ended
      assert.include(first.stdout, `over ${addresses.join(" to ")}`)
      await assertSameModel(out, model)
    }
  })

  it("without a token do not: rank 0 says so at once", async () => {
    const [first, second] = launch([undefined, undefined])
    const end = await first.ended
    second.kill()
    assert.strictEqual(end.code, 1, end.stdout)
    assert.match(failuresOf(end)[0]!.message, /TENSORFERRY_TOKEN/)
    assert.notStrictEqual((await second.ended).code, 0)
  })

  it("with another token a rank is turned away, and rank 0 goes on waiting for the right one", async () => {
    const [first, second] = launch(["one secret", "other secret"])
    const turnedAway = await second.ended
    assert.strictEqual(turnedAway.code, 1, turnedAway.stdout)
    assert.match(failuresOf(turnedAway)[0]!.message, /token/i)
    first.kill()
    const waiting = await first.ended
    assert.strictEqual(waiting.signal, "SIGKILL")
    for (const { stdout, stderr } of [turnedAway, waiting]) assert.notMatch(stdout + stderr, /one secret|other secret/)
  })
})
