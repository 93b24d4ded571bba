// SPDX-License-Identifier: Apache-2.0
/** The command as one process per rank of a launcher, as torchrun, and what happens when the processes disagree. */

import { existsSync, readdirSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import {
  assertNothingRuns,
  endAll,
  eventually,
  failuresOf,
  freePort,
  run,
  scratch,
  signal,
  start,
  temporaryNames
} from "../support/command.ts"
import { assertSameModel, mnist, mnistRules, writeModel } from "../support/models.ts"

afterEach(endAll)

/** What torchrun sets. */
const environment = (rank: number, size: number, port: number): NodeJS.ProcessEnv => ({
  RANK: `${rank}`,
  WORLD_SIZE: `${size}`,
  LOCAL_RANK: `${rank}`,
  LOCAL_WORLD_SIZE: `${size}`,
  MASTER_ADDR: "127.0.0.1",
  MASTER_PORT: "1",
  TENSORFERRY_PORT: `${port}`
})

const launch = async (size: number, argsOf: (rank: number) => ReadonlyArray<string>, more: NodeJS.ProcessEnv = {}) => {
  const port = await freePort()
  return Array.from({ length: size }, (_, rank) =>
    start(argsOf(rank), { env: { ...environment(rank, size, port), ...more }, limit: 40_000 })
  )
}

const args = (...more: ReadonlyArray<string>) => [
  "reshard",
  mnist,
  "--to",
  "tp=3",
  "--rules",
  mnistRules,
  "--json",
  ...more
]

describe("ranks that a launcher starts", () => {
  it("write one output, and rank 0 prints the result", async () => {
    using folder = scratch()
    const out = join(folder.path, "out")
    const commands = await launch(3, () => args("--out", out))
    const ended = await Promise.all(commands.map((command) => command.ended))
    for (const end of ended) assert.strictEqual(end.code, 0, end.stdout + end.stderr)
    const printed = JSON.parse(ended[0]!.stdout) as { ok: boolean; ranks: number; out: string }
    assert.isTrue(printed.ok)
    assert.strictEqual(printed.ranks, 3)
    assert.strictEqual(printed.out, out)
    assert.deepStrictEqual(
      ended.slice(1).map((end) => end.stdout),
      ["", ""]
    )
    await assertSameModel(out, mnist)
    assert.deepStrictEqual(readdirSync(folder.path), ["out"])
  })

  it("of another number than the layouts need: refused on every rank", async () => {
    using folder = scratch()
    const commands = await launch(2, () => args("--out", join(folder.path, "out")))
    for (const [rank, command] of commands.entries()) {
      const ended = await command.ended
      assert.strictEqual(ended.code, 1)
      const [failure] = failuresOf(ended)
      assert.strictEqual(failure!.reason, "InvalidLayout")
      assert.include(failure!.message, `rank ${rank}`)
      assert.include(failure!.message, "need 3 ranks, the job has 2")
    }
    assert.deepStrictEqual(readdirSync(folder.path), [])
  })

  it("that were given different arguments: an error on every rank that names them, before anything is planned", async () => {
    using folder = scratch()
    const rules = join(folder.path, "rules.yaml")
    writeFileSync(rules, 'rules: [{ match: "*", shard: 1 }]')
    const out = join(folder.path, "out")
    const all: ReadonlyArray<readonly [ReadonlyArray<string>, ReadonlyArray<string>, ReadonlyArray<RegExp>]> = [
      [["--to", "tp=2"], ["--to", "pp=2"], [/--to: rank 0 has tp=2, rank 1 has pp=2\. Start/]],
      [
        ["--from", "tp=2", "--to", "tp=1", "--rules", mnistRules, "--out", out],
        ["--from", "tp=2", "--to", "tp=1", "--rules", rules, "--out", `${out}2`, "--no-verify"],
        [
          /rules \(--rules, .*\): rank 0 has digest \w+, rank 1 has digest/,
          /--out: rank 0 has .*out, /,
          /--verify: rank 0 has on/
        ]
      ],
      [
        ["--tensor", "l1.weight", "--from-mesh", "2:S0", "--to-mesh", "2:S1"],
        ["--to", "tp=2"],
        [/--tensor: rank 0 has l1\.weight, rank 1 has not given/, /--to: rank 0 has not given, rank 1 has tp=2/]
      ]
    ]
    for (const [first, second, says] of all) {
      const stated = [first, second].map((own) =>
        own.includes("--rules") || own.includes("--tensor") ? own : [...own, "--rules", mnistRules]
      )
      const commands = await launch(2, (rank) => ["reshard", mnist, ...stated[rank]!, "--json"])
      for (const [rank, command] of commands.entries()) {
        const ended = await command.ended
        assert.strictEqual(ended.code, 2, ended.stdout)
        const [failure] = failuresOf(ended)
        assert.strictEqual(failure!.reason, "InvalidUsage", ended.stdout)
        assert.include(failure!.message, `rank ${rank}`)
        for (const pattern of says) assert.match(failure!.message, pattern)
      }
    }
    assert.isFalse(existsSync(out))
    assert.deepStrictEqual(temporaryNames(folder.path), [])
  })

  for (const [what, other] of [
    ["the type", { dtype: "float16", shape: [6, 4] }],
    ["the shape", { dtype: "float32", shape: [6, 5] }]
  ] as const) {
    it(`that disagree about ${what} of a tensor: an error that names it on every rank`, async () => {
      using folder = scratch()
      const [one, two] = [join(folder.path, "one.safetensors"), join(folder.path, "two.safetensors")]
      await writeModel(one, [{ name: "weight", dtype: "float32", shape: [6, 4] }])
      await writeModel(two, [{ name: "weight", ...other }])
      const rules = join(folder.path, "rules.yaml")
      writeFileSync(rules, 'rules: [{ match: "*", shard: 0 }]')
      const commands = await launch(2, (rank) => [
        ...["reshard", rank === 0 ? one : two, "--from", "tp=2", "--to", "tp=1", "--rules", rules],
        ...["--json"]
      ])
      for (const command of commands) {
        const ended = await command.ended
        assert.strictEqual(ended.code, 1, ended.stdout)
        const [failure] = failuresOf(ended)
        assert.strictEqual(failure!.reason, "Different", ended.stdout)
        assert.include(failure!.message, "parameter weight", ended.stdout)
      }
    })
  }

  it("of which one has another token: it ends at once, and rank 0 says so at once", async () => {
    const port = await freePort()
    const [zero, one] = [0, 1].map((rank) =>
      start(["reshard", mnist, "--from", "tp=2", "--to", "tp=1", "--rules", mnistRules, "--json"], {
        env: { ...environment(rank, 2, port), TENSORFERRY_TOKEN: rank === 0 ? "right" : "wrong" },
        limit: 60_000
      })
    )
    let warned = ""
    let printed = ""
    zero!.child.stderr!.on("data", (chunk) => {
      warned += String(chunk)
    })
    zero!.child.stdout!.on("data", (chunk) => {
      printed += String(chunk)
    })
    const ended = await one!.ended
    assert.strictEqual(ended.code, 1)
    const [failure] = failuresOf(ended)
    assert.strictEqual(failure!.reason, "RendezvousFailed")
    assert.include(failure!.message, "Set the same TENSORFERRY_TOKEN on every rank.")
    await eventually("the warning", 20_000, () => (warned.includes("continues to wait") ? true : undefined))
    assert.include(warned, "refused a connection from 127.0.0.1: The tokens of rank 1 and rank 0 differ.")
    assert.strictEqual(printed, "")
    signal(zero!.pid, "SIGTERM")
    assert.strictEqual((await zero!.ended).code, 130)
  })

  it("of which one is killed: the others name it and take the temporary folder away", async () => {
    using folder = scratch()
    const out = join(folder.path, "out")
    const commands = await launch(3, () => args("--out", out, "--deadline", "5"))
    // Rank 0 makes the folder once all have joined.
    await eventually("the temporary folder", 30_000, () =>
      temporaryNames(folder.path).length > 0 || existsSync(out) ? true : undefined
    )
    signal(commands[1]!.pid, "SIGKILL")
    const ended = await Promise.all(commands.map((command) => command.ended))
    if (existsSync(out)) await assertSameModel(out, mnist)
    else {
      for (const rank of [0, 2]) {
        assert.strictEqual(ended[rank]!.code, 1, ended[rank]!.stdout)
        // A rank that knew it first may have left by then, and is named after the one that is gone.
        for (const failure of failuresOf(ended[rank]!)) assert.strictEqual(failure.ranks[0], 1, failure.message)
      }
    }
    assert.deepStrictEqual(temporaryNames(folder.path), [])
    for (const command of commands) await assertNothingRuns(command)
  })

  it("half an environment: refused with the name of the variable", async () => {
    const ended = await run(args(), { env: { RANK: "0" } })
    assert.strictEqual(ended.code, 1)
    const [failure] = failuresOf(ended)
    assert.strictEqual(failure!.reason, "InvalidEnvironment")
    assert.include(failure!.message, "WORLD_SIZE")
  })
})
