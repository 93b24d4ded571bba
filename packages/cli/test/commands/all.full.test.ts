// SPDX-License-Identifier: Apache-2.0
/** Every command as a user runs it: exit codes, and the structure of what it prints. */
import { readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { afterAll, afterEach, assert, beforeAll, describe, it } from "@effect/vitest"
import { shippedDescriptors } from "../../src/job/backends.ts"
import { type Ended, endAll, failuresOf, run, runAll, scratch } from "../support/command.ts"
import { runAllHere, runHere } from "../support/here.ts"
import { mnist, mnistRules, writeModel } from "../support/models.ts"

afterEach(endAll)

let folder: ReturnType<typeof scratch>
/** MNIST in shards of tp=2. */
let shards: string
beforeAll(async () => {
  folder = scratch()
  shards = join(folder.path, "shards")
  const ended = await run(["reshard", mnist, "--to", "tp=2", "--rules", mnistRules, "--out", shards])
  assert.strictEqual(ended.code, 0, ended.stderr)
})
afterAll(() => folder[Symbol.dispose]())

const at = (name: string): string => join(folder.path, name)

const json = <A>(ended: Ended): A => JSON.parse(ended.stdout) as A

describe("wrong usage ends with 2", () => {
  const usages: ReadonlyArray<readonly [args: ReadonlyArray<string>, says: RegExp]> = [
    [["nonsense"], /nonsense/],
    [["reshard"], /CHECKPOINT/],
    [["reshard", mnist], /--to/],
    [["reshard", mnist, "--to", "tp=x"], /--to.*tp=x/s],
    [["reshard", mnist, "--to", "tp=0"], /--to.*tp=0/s],
    [["reshard", mnist, "--to", "tp=2,tp=2"], /--to/],
    [["reshard", mnist, "--to", "tp=2", "--from", "cp=2"], /--from.*cp=2/s],
    [["reshard", mnist, "--to", "tp=2,ep=3"], /--to.*ep=3/s],
    [["reshard", mnist, "--to", "tp=2", "--preset", "gpt"], /--preset.*gpt.*llama/s],
    [["reshard", mnist, "--to", "tp=2", "--deadline", "0"], /--deadline/],
    [["reshard", mnist, "--to", "tp=2", "--ranks", "both"], /--ranks/],
    [["reshard", mnist, "--to", "tp=2", "--nonsense"], /--nonsense/],
    [["plan", mnist, "--to", ""], /--to/],
    [["verify", mnist], /B/],
    [["plan", "check"], /FILE/]
  ]
  it("and says what is wrong", async () => {
    const ended = await runAllHere(usages.map(([args]) => args))
    for (const [at, [args, says]] of usages.entries()) {
      assert.strictEqual(ended[at]!.code, 2, args.join(" "))
      assert.match(ended[at]!.stderr, says, args.join(" "))
    }
  })
})

describe("wrong usage", () => {
  it("is reported in a few lines on standard error, with the usage and where the help is", async () => {
    const [flag, name, help, group] = await runAll([
      ["plan", mnist, "--to", "tp=x"],
      ["backends", "prob"],
      ["nonsense", "--help"],
      ["replay", "bensh", "-h"]
    ])
    for (const ended of [flag!, name!, help!, group!]) {
      assert.strictEqual(ended.code, 2)
      assert.strictEqual(ended.stdout, "")
      assert.isAtMost(ended.stderr.trim().split("\n").length, 3, ended.stderr)
    }
    assert.match(flag!.stderr, /^error: .*--to.*tp=x.*\nusage: tensorferry plan .*\nSee tensorferry plan --help\.\n$/)
    assert.match(name!.stderr, /prob.*Did you mean this\? probe\n/)
    assert.match(help!.stderr, /^error: Unknown subcommand "nonsense"/)
    assert.match(group!.stderr, /Unknown subcommand "bensh"/)
  })

  it("is a document on standard output with --json, and nothing else", async () => {
    const ended = await runAll([
      ["plan", mnist, "--to", "tp=x", "--json"],
      ["reshard", "--json"],
      ["nonsense", "--json"],
      ["replay", "bench", "--json", "--rows", "0"]
    ])
    for (const [at, says] of [/tp=x/, /CHECKPOINT/, /nonsense/, /--rows/].entries()) {
      assert.strictEqual(ended[at]!.code, 2)
      assert.strictEqual(ended[at]!.stderr, "")
      const failures = failuresOf(ended[at]!)
      assert.lengthOf(failures, 1)
      assert.strictEqual(failures[0]!.reason, "InvalidUsage")
      assert.match(failures[0]!.message, says)
    }
  })

  it("is not a help that was asked for behind a word that is an argument", async () => {
    const ended = await run(["plan", "nonsense", "--help"])
    assert.strictEqual(ended.code, 0, ended.stderr)
    assert.include(ended.stdout, "CHECKPOINT")
  })
})

describe("help and version", () => {
  it("name every command, and give examples", async () => {
    const [help, reshard, version] = (await runAll([["--help"], ["reshard", "--help"], ["--version"]])) as [
      Ended,
      Ended,
      Ended
    ]
    assert.strictEqual(help.code, 0)
    for (const name of ["reshard", "plan", "verify", "backends", "doctor"]) assert.include(help.stdout, name)
    assert.strictEqual(reshard.code, 0)
    for (const flag of ["--from", "--to", "--rules", "--preset", "--out", "--deadline", "--json", "--backend"]) {
      assert.include(reshard.stdout, flag)
    }
    assert.include(reshard.stdout, "tensorferry reshard")
    assert.strictEqual(version.code, 0)
    assert.match(version.stdout, /\d+\.\d+\.\d+/)
  })
})

describe("plan", () => {
  interface PlanJson {
    readonly ok: boolean
    readonly size: number
    readonly estimate: {
      readonly totalBytes: number
      readonly ranks: ReadonlyArray<{ readonly rank: number; readonly destinationBytes: number }>
    }
  }

  it("shows what moves, in a table and as JSON", async () => {
    const args = ["plan", mnist, "--to", "tp=3", "--rules", mnistRules]
    const table = await run(args)
    assert.strictEqual(table.code, 0, table.stderr)
    assert.match(table.stdout, /tp=1 → tp=3, 3 ranks/)
    assert.match(table.stdout, /from \\ to/)
    const { ok, size, estimate } = json<PlanJson>(await run([...args, "--json"]))
    assert.isTrue(ok)
    assert.strictEqual(size, 3)
    assert.strictEqual(estimate.totalBytes, (128 * 784 + 10 * 128) * 4)
    assert.strictEqual(
      estimate.ranks.reduce((sum, rank) => sum + rank.destinationBytes, 0),
      estimate.totalBytes
    )
  })

  it("is saved, proved, and refused when it was damaged", async () => {
    const file = at("plan.json")
    const saved = await runHere(["plan", mnist, "--to", "tp=3", "--rules", mnistRules, "--save", file])
    assert.strictEqual(saved.code, 0, saved.stderr)
    const proved = await runHere(["plan", "check", file, "--json"])
    assert.strictEqual(proved.code, 0, proved.stdout)
    assert.deepStrictEqual(json(proved), { ok: true, ranks: 3, operations: 6 })

    interface Plans {
      plans: Array<{ recvOps: Array<Record<string, unknown>>; sendOps: Array<unknown>; rank: number }>
    }
    const damages: ReadonlyArray<readonly [what: string, damage: (plans: Plans) => void]> = [
      ["a receive is missing", (set) => void set.plans[1]!.recvOps.pop()],
      ["a send is missing", (set) => void set.plans[0]!.sendOps.pop()],
      ["a receive is doubled", (set) => void set.plans[1]!.recvOps.push(set.plans[1]!.recvOps[0]!)],
      ["a rank is missing", (set) => void set.plans.pop()],
      ["a key is unknown", (set) => Object.assign(set, { more: 1 })],
      ["another rank", (set) => Object.assign(set.plans[1]!.recvOps[0]!, { peerRank: 2 })]
    ]
    for (const [number, [, damage]] of damages.entries()) {
      const plans = JSON.parse(readFileSync(file, "utf8")) as Plans
      damage(plans)
      writeFileSync(at(`damaged-${number}.json`), JSON.stringify(plans))
    }
    const checked = await runAllHere(
      damages.map((_, number) => ["plan", "check", at(`damaged-${number}.json`), "--json"])
    )
    for (const [number, refused] of checked.entries()) {
      const [what] = damages[number]!
      assert.strictEqual(refused.code, 1, what)
      for (const failure of failuresOf(refused)) assert.isNotEmpty(failure.message, what)
    }
    writeFileSync(at("text.json"), "{")
    const text = await runHere(["plan", "check", at("text.json"), "--json"])
    assert.strictEqual(failuresOf(text)[0]!.reason, "InvalidPlan")
    const absent = await runHere(["plan", "check", at("absent.json"), "--json"])
    assert.strictEqual(failuresOf(absent)[0]!.fields?.file, at("absent.json"))
  })
})

describe("verify", () => {
  interface VerifyJson {
    readonly ok: boolean
    readonly tensors: ReadonlyArray<{ readonly name: string; readonly equal: boolean; readonly detail: string }>
  }

  it("equal models in unequal layouts", async () => {
    const people = await run(["verify", mnist, shards])
    assert.strictEqual(people.code, 0, people.stderr)
    assert.match(people.stdout, /2 tensors.*bit-identical/)
    const machines = await run(["verify", shards, mnist, "--json"])
    assert.strictEqual(machines.code, 0)
    assert.isTrue(json<VerifyJson>(machines).ok)
  })

  it("models that differ in a byte, a type, a shape, a name", async () => {
    const [a, b] = [at("a.safetensors"), at("b.safetensors")]
    await writeModel(a, [
      { name: "same", dtype: "int8", shape: [3] },
      { name: "byte", dtype: "int8", shape: [5] },
      { name: "type", dtype: "int8", shape: [3] },
      { name: "shape", dtype: "int8", shape: [2, 3] },
      { name: "onlyA", dtype: "int8", shape: [1] }
    ])
    await writeModel(b, [
      { name: "same", dtype: "int8", shape: [3] },
      { name: "onlyB", dtype: "int8", shape: [1] },
      { name: "type", dtype: "uint8", shape: [3] },
      { name: "shape", dtype: "int8", shape: [3, 2] },
      { name: "byte", dtype: "int8", shape: [5] }
    ])
    const machines = await runHere(["verify", a, b, "--json"])
    assert.strictEqual(machines.code, 1)
    const { ok, tensors } = json<VerifyJson>(machines)
    assert.isFalse(ok)
    const verdicts = Object.fromEntries(tensors.map(({ name, equal, detail }) => [name, equal || detail]))
    assert.isTrue(verdicts.same === true)
    assert.match(String(verdicts.byte), /byte 0/)
    assert.include(String(verdicts.type), "uint8")
    assert.include(String(verdicts.shape), "[3,2]")
    assert.include(String(verdicts.onlyA), a)
    assert.include(String(verdicts.onlyB), b)
    const people = await runHere(["verify", a, b])
    assert.strictEqual(people.code, 1)
    assert.match(people.stdout, /5 of 6 tensors differ/)
  })

  it("a file that is not there", async () => {
    const ended = await runHere(["verify", mnist, at("absent"), "--json"])
    assert.strictEqual(ended.code, 1)
    assert.strictEqual(failuresOf(ended)[0]!.fields?.file, at("absent"))
  })
})

describe("reshard", () => {
  it("prints one document for machines", async () => {
    const ended = await run(["reshard", mnist, "--to", "tp=2", "--rules", mnistRules, "--quiet", "--json"])
    assert.strictEqual(ended.code, 0, ended.stdout)
    const result = json<{ ok: boolean; ranks: number; verified: boolean; out: null; bytes: Record<string, number> }>(
      ended
    )
    assert.isTrue(result.ok && result.verified)
    assert.strictEqual(result.ranks, 2)
    assert.isNull(result.out)
    assert.strictEqual(result.bytes.local! + result.bytes.remote!, result.bytes.destination)
    assert.strictEqual(ended.stderr, "")
  })

  it("a layout that the folder contradicts, tensors without a rule, rules that are none", async () => {
    const contradicted = await runHere(["reshard", shards, "--from", "tp=4", "--to", "tp=1", "--json"])
    assert.strictEqual(contradicted.code, 1)
    assert.strictEqual(failuresOf(contradicted)[0]!.reason, "InvalidLayout")
    const unruled = await runHere(["reshard", mnist, "--to", "tp=2", "--json"])
    assert.strictEqual(failuresOf(unruled)[0]!.reason, "NoRule")
    assert.include(failuresOf(unruled)[0]!.message, "l1.weight")
    assert.include(failuresOf(unruled)[0]!.message, "--default replicate")
    for (const flag of ["--rules", "--layout"]) {
      const absent = await runHere(["reshard", mnist, "--to", "tp=2", flag, at("nowhere.yaml"), "--json"])
      assert.strictEqual(absent.code, 1)
      assert.strictEqual(failuresOf(absent)[0]!.fields?.remedy, "Check the path.")
    }
    for (const text of ["rules: 5", "rules: [{ match: x }]", "a: &a [*a, *a]", ": ["]) {
      writeFileSync(at("rules.yaml"), text)
      const refused = await runHere(["reshard", mnist, "--to", "tp=2", "--rules", at("rules.yaml"), "--json"])
      assert.strictEqual(refused.code, 1, text)
      assert.strictEqual(failuresOf(refused)[0]!.reason, "InvalidRules", text)
      assert.strictEqual(failuresOf(refused)[0]!.fields?.file, at("rules.yaml"), text)
    }
  })

  it("a backend that cannot work here says why, and an unknown one is refused", async () => {
    const args = ["reshard", mnist, "--to", "tp=2", "--rules", mnistRules, "--json", "--backend"]
    interface BackendsJson {
      readonly backends: ReadonlyArray<{
        readonly name: string
        readonly probe: { readonly _tag: string; readonly cause?: string }
      }>
    }
    const { backends } = json<BackendsJson>(await run(["backends", "--json"]))
    const missing = backends.find(({ probe }) => probe._tag === "Unavailable")
    assert.isDefined(missing)
    const [unavailable] = failuresOf(await run([...args, missing!.name]))
    assert.strictEqual(unavailable!.reason, "Unavailable")
    assert.include(unavailable!.message, missing?.probe.cause ?? "a cause")
    assert.isNotEmpty(unavailable!.fields?.remedy)
    const [unknown] = failuresOf(await run([...args, "nonsense"]))
    assert.strictEqual(unknown!.reason, "UnknownBackend")
    assert.include(unknown!.message, "torch-copy")
  })
})

describe("backends and doctor", () => {
  interface Probed {
    readonly ok: boolean
    readonly machine?: Record<string, string>
    readonly backends: ReadonlyArray<{
      readonly name: string
      readonly offers: ReadonlyArray<string>
      readonly probe: { readonly _tag: string; readonly remedy?: string; readonly tried?: ReadonlyArray<string> }
    }>
  }
  const names = shippedDescriptors.map(({ name }) => name)

  it("list every backend, what it offers, and what it lacks", async () => {
    for (const command of ["backends", "doctor"]) {
      const ended = await run([command, "--json"])
      assert.strictEqual(ended.code, 0, ended.stdout)
      const found = json<Probed>(ended)
      assert.isTrue(found.ok)
      assert.sameMembers(
        found.backends.map(({ name }) => name),
        names
      )
      for (const { name, offers, probe } of found.backends) {
        if (probe._tag === "Available") assert.isNotEmpty(offers, name)
        else assert.isNotEmpty(probe.remedy, name)
      }
      assert.include(found.backends.find(({ name }) => name === "torch-copy")!.offers, "copyDriver")
      if (command === "doctor")
        assert.includeMembers(Object.keys(found.machine ?? {}), ["node", "memory", "open files"])
      const people = await run([command])
      assert.strictEqual(people.code, 0)
      for (const name of names) assert.include(people.stdout, name)
    }
  })

  it("a backend package that does not exist", async () => {
    const ended = await run(["backends", "--backend-package", "no-such-package", "--json"])
    assert.strictEqual(ended.code, 1)
    assert.include(failuresOf(ended)[0]!.message, "no-such-package")
  })
})
