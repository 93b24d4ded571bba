// SPDX-License-Identifier: Apache-2.0
/** `tensorferry delta apply --in-place` that is killed: the file is the old version or the new one, and can be used. */
import { copyFileSync, readFileSync, rmSync } from "node:fs"
import { join } from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import { writeSafetensors } from "@tensorferry/model/checkpoint/SafetensorsWriter"
import { makeRandom } from "@tensorferry/testing/mutate"
import * as Effect from "effect/Effect"
import { endAll, eventually, run, scratch, signal, start, temporaryNames } from "../support/command.ts"

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
