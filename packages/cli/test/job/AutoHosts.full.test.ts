// SPDX-License-Identifier: Apache-2.0
/**
 * `reshard` on two hosts that have processes and networks of their own, without a word about backends: models move bit by bit,
 * by memory within a host and by the first wire that both have between hosts.
 */
import { spawnSync } from "node:child_process"
import { readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { afterAll, assert, describe, it } from "@effect/vitest"
import { descriptor as ucx } from "@tensorferry/backend-ucx"
import * as Effect from "effect/Effect"
import { type Ended, failuresOf, scratch } from "../support/command.ts"
import { assertSameModel, mnist, mnistRules } from "../support/models.ts"
import { commandOn, ranksOn, twoHosts } from "../support/twoHosts.ts"

const { reason, hosts, close } = await twoHosts({ links: 2, hasOwnProcesses: true })
afterAll(close)

const root = fileURLToPath(new URL("../../../..", import.meta.url))
const makeLlama = join(root, "examples/llama-small/make.ts")
const hasUcx = (await Effect.runPromise(ucx.probe))._tag === "Available"

const token = { TENSORFERRY_TOKEN: "a secret" }
const noUcx = { TENSORFERRY_UCX_LIBRARY: "/nowhere/libucp.so.0" }

interface Moved {
  readonly backend: string
  readonly reports: ReadonlyArray<{
    readonly rank: number
    readonly copy: {
      readonly peers: ReadonlyArray<{ readonly peer: number; readonly path: string; readonly reason: string }>
    }
  }>
}

const pathsOf = (ended: Ended) =>
  (JSON.parse(ended.stdout) as Moved).reports.flatMap(({ rank, copy }) => copy.peers.map((peer) => ({ rank, ...peer })))

const allOk = async (ranks: ReturnType<typeof ranksOn>): Promise<Ended> => {
  const ended = await Promise.all(ranks.map((rank) => rank.ended))
  for (const { code, stdout, stderr } of ended) assert.strictEqual(code, 0, stdout + stderr)
  return ended[0]!
}

describe.skipIf(reason !== undefined)(`auto on two hosts${reason === undefined ? "" : ` (skipped: ${reason})`}`, () => {
  it("the example prints what its page says, whatever wire there is", async () => {
    using home = scratch()
    writeFileSync(join(home.path, ".tensorferry-token"), "a secret")
    const env = { PATH: `${join(root, "node_modules/.bin")}:${process.env.PATH}`, HOME: home.path }
    const page = readFileSync(join(root, "examples/two-hosts/README.md"), "utf8")
    const blocks = [...page.matchAll(/^```sh parse\n(.*?)^```/gms)].map(([, block]) => block!)
    assert.lengthOf(blocks, 2)
    const here = (block: string) =>
      `set -e\ncd ${root}\n${block.replace("10.0.0.1", hosts[0]!.addresses[0]!).replace("29600", "29599")}`
    const ended = await Promise.all(
      hosts.map((host, at) => commandOn(host, "bash", ["-c", here(blocks[at]!)], env).ended)
    )
    for (const { code, stdout, stderr } of ended) assert.strictEqual(code, 0, stdout + stderr)
    const rows = (text: string) =>
      [...text.matchAll(/^ +(\d) +(\d) +([\d.]+ K?i?B) +(local copy|shared-map|ucx|tcp)/gm)].map((row) => row.slice(1))
    const isWire = (path: string) => path === "ucx" || path === "tcp"
    const named = (text: string) =>
      rows(text).map(([from, to, bytes, path]) => [from, to, bytes, isWire(path!) ? "wire" : path])
    assert.lengthOf(named(page), 10)
    assert.deepStrictEqual(named(ended[0]!.stdout), named(page))
    assert.strictEqual(ended[1]!.stdout, "", "rank 0 prints the result")
    for (const line of page.match(/^(tp=4 .*|verified: [^,]*, [^,]*)/gm)!) assert.include(ended[0]!.stdout, line)
  })

  for (const [name, lacking, path] of [
    ["ucx where both have it", [], /^ucx-(message|put)$/],
    ["tcp where one has no UCX", [1], /^tcp$/],
    ["tcp where none has it", [0, 1], /^tcp$/]
  ] as const) {
    it.skipIf(!hasUcx && lacking.length === 0)(`models move by ${name}, bit by bit`, async () => {
      using folder = scratch()
      const llama = join(folder.path, "llama")
      const made = spawnSync(process.execPath, [makeLlama, llama], { encoding: "utf8" })
      assert.strictEqual(made.status, 0, made.stderr)
      for (const [model, rules] of [
        [mnist, ["--rules", mnistRules]],
        [llama, []]
      ] as const) {
        const out = join(folder.path, model === mnist ? "mnist-out" : "llama-out")
        const args = ["reshard", model, "--from", "tp=2", "--to", "tp=1,dp=2", ...rules, "--out", out, "--json"]
        const first = await allOk(
          ranksOn(hosts, args, (rank) => ({ ...token, ...(lacking.some((one) => one === rank) ? noUcx : {}) }))
        )
        const paths = pathsOf(first)
        assert.lengthOf(paths, 2)
        for (const peer of paths) {
          assert.match(peer.path, path)
          if (lacking.length > 0) assert.include(peer.reason, "no ucx (")
        }
        assert.notInclude(JSON.stringify(first), "a secret")
        await assertSameModel(out, model)
      }
    })
  }

  it("takes interfaces by name, each host its own, and says where one is not there", async () => {
    const args = ["reshard", mnist, "--to", "tp=2", "--rules", mnistRules, "--json", "--deadline", "10"]
    const by = (wire: string, interfaces: ReadonlyArray<string>) =>
      ranksOn(hosts, [...args, "--options", JSON.stringify({ paths: [wire] })], (rank) => ({
        ...token,
        TENSORFERRY_INTERFACES: interfaces[rank]!
      }))
    const [tcp] = pathsOf(await allOk(by("tcp", ["eth1", "eth1"])))
    assert.include(tcp!.reason, hosts[0]!.addresses[1]!)
    assert.notInclude(tcp!.reason, hosts[0]!.addresses[0]!)
    if (hasUcx) assert.match(pathsOf(await allOk(by("ucx", ["eth1", "eth1"])))[0]!.reason, /over tcp\/eth1/)
    const ended = await Promise.all(by("tcp", ["eth0", "eth7"]).map((rank) => rank.ended))
    for (const each of ended) {
      assert.strictEqual(each.code, 1)
      const [failure] = failuresOf(each)
      assert.include(failure!.message, "no tcp (rank 1: There is no interface eth7; this host has ")
    }
  })

  it("--options reach a backend that is named, and what it does not know is refused", async () => {
    const of = (backend: string, options: object) =>
      ranksOn(
        hosts,
        ["reshard", mnist, "--to", "tp=2", "--rules", mnistRules, "--json", "--backend", backend].concat([
          "--options",
          JSON.stringify(options)
        ]),
        () => token
      )
    const [tcp] = pathsOf(await allOk(of("tcp", { interfaces: ["eth1"] })))
    assert.include(tcp!.reason, hosts[1]!.addresses[1]!)
    for (const { ended } of of("tcp", { interface: "eth1" })) {
      const end = await ended
      assert.strictEqual(end.code, 2)
      assert.strictEqual(failuresOf(end)[0]!.reason, "InvalidOptions")
    }
  })
})
