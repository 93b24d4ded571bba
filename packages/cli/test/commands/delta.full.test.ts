// SPDX-License-Identifier: Apache-2.0
/**
 * `tensorferry delta apply --in-place` that is killed: the file is the old version or the new one, and can be used. And ranks
 * that move what changed since a version that they hold.
 */
import { copyFileSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import { writeSafetensors } from "@tensorferry/model/checkpoint/SafetensorsWriter"
import { makeRandom } from "@tensorferry/testing/mutate"
import * as Effect from "effect/Effect"
import { endAll, eventually, failuresOf, run, scratch, signal, start, temporaryNames } from "../support/command.ts"
import { assertSameModel, mnist, mnistRules } from "../support/models.ts"

afterEach(endAll)

const tensorBytes = 24 * 2 ** 20

/** Four tensors; from the second version on one element in 200 differs. */
const writeVersion = (file: string, version: number): Promise<void> =>
  Effect.runPromise(
    writeSafetensors(
      file,
      Array.from({ length: 4 }, (_, seed) => {
        const words = new Uint16Array(tensorBytes / 2).map((_, at) => Math.imul(at + seed, 40_503))
        for (let at = seed; version > 0 && at < words.length; at += 200) words[at]! ^= 1
        const data = new Uint8Array(words.buffer)
        return { name: `layer.${seed}`, dtype: "bfloat16" as const, shape: [tensorBytes / 2], data }
      })
    )
  )

describe("delta apply --in-place", () => {
  it("that is killed leaves the old version or the new one, whenever it dies", async () => {
    using folder = scratch()
    const at = (name: string): string => join(folder.path, name)
    await writeVersion(at("old.safetensors"), 0)
    await writeVersion(at("new.safetensors"), 1)
    const made = await run([
      "delta",
      "make",
      at("old.safetensors"),
      at("new.safetensors"),
      "--out",
      at("d.safetensors")
    ])
    assert.strictEqual(made.code, 0, made.stderr)
    const [old, later] = [readFileSync(at("old.safetensors")), readFileSync(at("new.safetensors"))]
    const place = at("place.safetensors")
    let [kept, replaced, midway] = [0, 0, 0]
    for (let seed = 1; seed <= 12; seed++) {
      copyFileSync(at("old.safetensors"), place)
      const command = start(["delta", "apply", place, at("d.safetensors"), "--in-place"])
      let isOver = false
      const over = command.ended.then(() => {
        isOver = true
      })
      // From when it writes on, after as many looks as the seed says.
      let looks = makeRandom(seed).below(120)
      await eventually("it writes, or is over", 60_000, () => {
        const writes = temporaryNames(folder.path).length > 0
        return isOver || (writes && looks-- <= 0) || undefined
      })
      midway += temporaryNames(folder.path).length > 0 ? 1 : 0
      signal(command.pid, "SIGKILL")
      await over
      const found = readFileSync(place)
      const [isOld, isNew] = [found.equals(old), found.equals(later)]
      assert.isTrue(isOld || isNew, `seed ${seed}`)
      kept += isOld ? 1 : 0
      replaced += isNew ? 1 : 0
      // What a dead writer left behind is in nobody's way.
      if (isOld) {
        const again = await run(["delta", "apply", place, at("d.safetensors"), "--in-place"])
        assert.strictEqual(again.code, 0, again.stderr)
        assert.isTrue(readFileSync(place).equals(later))
      }
      for (const name of temporaryNames(folder.path)) rmSync(at(name))
    }
    assert.isAbove(midway, 3)
    assert.strictEqual(kept + replaced, 12)
  }, 280_000)
})

describe("reshard --delta-from", () => {
  /** The digits' model with a bit of every 200th element turned over. */
  const later = (file: string): string => {
    const bytes = readFileSync(mnist)
    for (let at = 8 + Number(bytes.readBigUInt64LE(0)); at < bytes.length; at += 800) bytes[at]! ^= 1
    writeFileSync(file, bytes)
    return file
  }
  const layout = ["--from", "tp=2", "--to", "tp=3", "--ranks", "disjoint", "--rules", mnistRules, "--json"]

  it("sends what changed, and proves and writes the version after", async () => {
    using folder = scratch()
    const after = later(join(folder.path, "after.safetensors"))
    const [out, before] = [join(folder.path, "out"), join(folder.path, "before")]
    // Ranks may hold the version before in any layout.
    const made = await run(["reshard", mnist, "--to", "tp=4", "--rules", mnistRules, "--out", before, "--json"])
    assert.strictEqual(made.code, 0, made.stdout)
    const sentBy = async (...more: ReadonlyArray<string>): Promise<number> => {
      const ended = await run(["reshard", after, ...layout, ...more])
      assert.strictEqual(ended.code, 0, ended.stdout + ended.stderr)
      const { reports, verified } = JSON.parse(ended.stdout)
      assert.isTrue(verified)
      return reports.reduce(
        (sum: number, { copy }: { copy: { remoteBytesSent: number } }) => sum + copy.remoteBytesSent,
        0
      )
    }
    const whole = await sentBy()
    const changes = await sentBy("--delta-from", before, "--out", out)
    assert.isBelow(changes, 0.02 * whole)
    assert.isAbove(changes, 0)
    await assertSameModel(out, after)
  }, 120_000)

  it("is refused beside conversions, and for a version with other tensors", async () => {
    using folder = scratch()
    const other = join(folder.path, "other.safetensors")
    await writeVersion(other, 0)
    const refusal = async (...more: ReadonlyArray<string>) =>
      failuresOf(await run(["reshard", mnist, ...layout, ...more]))[0]!
    assert.strictEqual((await refusal("--delta-from", mnist, "--dtype", "bfloat16")).reason, "InvalidUsage")
    assert.strictEqual((await refusal("--delta-from", other)).reason, "Different")
  }, 120_000)
})
