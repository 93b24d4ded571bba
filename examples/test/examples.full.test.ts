// SPDX-License-Identifier: Apache-2.0
/** Each example as a stranger runs it, on installed tarballs. */
import { readFileSync, writeFileSync } from "node:fs"
import * as path from "node:path"
import { freePort } from "@tensorferry/testing/machine/freePort"
import { assert, describe, it } from "vitest"
import { exampleFolder, isSoak, run, shown, stranger } from "./stranger.ts"

/** Runs an example's own tests; how many passed and failed. */
const ownTests = async (folder: string) => {
  const report = path.join(folder, "report.json")
  const ended = await run("vitest", ["run", "--reporter=json", `--outputFile=${report}`], {
    cwd: folder,
    deadline: 280_000
  })
  const { numPassedTests, numFailedTests } = JSON.parse(readFileSync(report, "utf8")) as {
    readonly numPassedTests: number
    readonly numFailedTests: number
  }
  return { ended, passed: numPassedTests, failed: numFailedTests }
}

const node = (file: string, ...args: ReadonlyArray<string>) => run(process.execPath, [file, ...args])

describe("examples", () => {
  it("fit the published types", async () => {
    const ended = await run("tsc", ["--noEmit", "-p", exampleFolder("tsconfig.json")])
    assert.strictEqual(ended.code, 0, shown(ended))
  })

  it("a wrong use does not fit the published types", async () => {
    const file = exampleFolder("wrong.ts")
    writeFileSync(
      file,
      `import { copyService } from "@tensorferry/core/backend/BackendLayer"\ncopyService({ backend: 7 })\n`
    )
    const options = JSON.stringify({ extends: "./tsconfig.json", files: ["wrong.ts"], include: [] })
    writeFileSync(exampleFolder("tsconfig.wrong.json"), options)
    const ended = await run("tsc", ["--noEmit", "-p", exampleFolder("tsconfig.wrong.json")])
    assert.notStrictEqual(ended.code, 0)
    assert.include(ended.stdout, "wrong.ts(2,", shown(ended))
    assert.include(ended.stdout, "'number' is not assignable")
  })
})

describe("ring.ts", () => {
  it("runs alone, and with the ranks that a launcher sets", async () => {
    const alone = await node("ring.ts")
    assert.include(alone.stdout, "rank 0: byte 1 from rank 0", shown(alone))
    const port = String(await freePort())
    const ranks = [0, 1].map((rank) =>
      run(process.execPath, ["ring.ts"], {
        env: {
          RANK: String(rank),
          WORLD_SIZE: "2",
          LOCAL_RANK: String(rank),
          MASTER_ADDR: "127.0.0.1",
          MASTER_PORT: port,
          TENSORFERRY_PORT: port
        }
      })
    )
    const [first, second] = await Promise.all(ranks)
    assert.include(first!.stdout, "rank 0: byte 2 from rank 1, 4194304 bytes", shown(first!))
    assert.include(second!.stdout, "rank 1: byte 1 from rank 0, 4194304 bytes", shown(second!))
  })
})

describe("third-party-backend", () => {
  const folder = exampleFolder("third-party-backend")
  const reshard = (spool: { readonly [name: string]: string }, out: string) =>
    run(
      "tensorferry",
      [
        "reshard",
        exampleFolder("mnist/mnist-tinygrad.safetensors"),
        ...[
          "--rules",
          exampleFolder("mnist/rules.yaml"),
          "--from",
          "tp=2",
          "--to",
          "tp=4",
          "--out",
          exampleFolder(out)
        ],
        ...["--backend-package", "tensorferry-spool", "--backend", "spool"]
      ],
      { env: spool }
    )

  it("is built, found by its package's name and moves a real checkpoint", async () => {
    const built = await run("npm", ["run", "build"], { cwd: folder })
    assert.strictEqual(built.code, 0, shown(built))
    const spool = { SPOOL_FOLDER: exampleFolder("spool") }
    const moved = await reshard(spool, "shards")
    assert.strictEqual(moved.code, 0, shown(moved))
    assert.include(moved.stdout, "backend spool (chosen by name)")
    assert.match(moved.stdout, /1 +\d.* files +inboxes in/)
    assert.include(moved.stdout, "bit-identical", shown(moved))
    const back = await run("tensorferry", [
      "verify",
      exampleFolder("mnist/mnist-tinygrad.safetensors"),
      exampleFolder("shards")
    ])
    assert.strictEqual(back.code, 0, shown(back))
    const none = await reshard({}, "none")
    assert.strictEqual(none.code, 1, shown(none))
    assert.include(none.stderr + none.stdout, "Set SPOOL_FOLDER", shown(none))
  })

  it("passes the conformance kit", async () => {
    const { ended, passed } = await ownTests(folder)
    assert.strictEqual(ended.code, 0, shown(ended))
    assert.isAtLeast(passed, 50)
  })

  it("fails the kit when it loses a byte", async () => {
    const file = path.join(folder, "src/SpoolDriver.ts")
    const honest = readFileSync(file, "utf8")
    writeFileSync(file, honest.replace("bytes.set(found)", "bytes.set(found.subarray(0, -1))"))
    const { ended, failed } = await ownTests(folder)
    writeFileSync(file, honest)
    assert.strictEqual(ended.code, 1, shown(ended))
    assert.isAbove(failed, 10)
  })
})

describe("planner-properties", () => {
  it("finds no fault in the shipped planner and every planted one", async () => {
    const ended = await node("planner-properties/run.ts", isSoak ? "1000" : "60")
    assert.strictEqual(ended.code, 0, shown(ended))
    assert.include(ended.stdout, "The shipped planner keeps all laws")
    assert.strictEqual(ended.stdout.match(/was caught at pair/g)?.length, 3, shown(ended))
  })
})

describe("training-loop", () => {
  it("serves what it trains, step by step, in a quarter of the bytes", async () => {
    const ended = await node("training-loop/run.ts")
    assert.strictEqual(ended.code, 0, shown(ended))
    const steps = [...ended.stdout.matchAll(/loss ([\d.]+) trained, ([\d.]+) served; (\d+) bytes for (\d+)/g)]
    assert.strictEqual(steps.length, 5, shown(ended))
    const losses = steps.map(([, trained]) => Number(trained))
    for (const [at, loss] of losses.slice(1).entries()) assert.isBelow(loss, losses[at]!)
    for (const [, , , moved, whole] of steps) assert.isBelow(Number(moved), Number(whole) / 3)
  })
})

describe("device-family", () => {
  it("feeds batches to a device of its own", async () => {
    const ended = await node("device-family/run.ts")
    assert.strictEqual(ended.code, 0, shown(ended))
    assert.strictEqual(ended.stdout.match(/bytes right/g)?.length, 6, shown(ended))
  })

  it("passes the replay cases", async () => {
    const { ended, passed } = await ownTests(exampleFolder("device-family"))
    assert.strictEqual(ended.code, 0, shown(ended))
    assert.isAtLeast(passed, 25)
  })
})

describe("the list of examples", () => {
  it("names each of them", () => {
    const listed = readFileSync(path.join(import.meta.dirname, "../README.md"), "utf8")
    for (const name of ["ring.ts", "third-party-backend", "planner-properties", "training-loop", "device-family"]) {
      assert.include(listed, name)
      assert.include(
        readFileSync(name.endsWith(".ts") ? exampleFolder(name) : exampleFolder(name, "README.md"), "utf8"),
        "run"
      )
    }
    assert.isAbove(stranger.packed.length, 0)
  })
})
