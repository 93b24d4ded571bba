// SPDX-License-Identifier: Apache-2.0
/** `verify --device`: what a simulated GPU finds out about two models is what the host finds out. */
import { readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { afterAll, afterEach, assert, beforeAll, describe, it } from "@effect/vitest"
import { endAll, failuresOf, run, scratch } from "../support/command.ts"
import { runHere } from "../support/here.ts"
import { simulated } from "../support/simulatedDevice.ts"
import { writeSmallModel } from "../support/smallModels.ts"

afterEach(endAll)

const folder = scratch()
const at = (name: string) => join(folder.path, name)
let model: string
beforeAll(async () => {
  model = await writeSmallModel(at("llama"), "llama")
  const ended = await run(["reshard", model, "--to", "tp=2", "--out", at("shards"), "--json"])
  assert.strictEqual(ended.code, 0, ended.stdout)
})
afterAll(() => folder[Symbol.dispose]())

interface Verdicts {
  readonly ok: boolean
  readonly tensors: ReadonlyArray<{
    readonly name: string
    readonly equal: boolean
    readonly detail: string
    readonly bytes: number
    readonly digest: string
  }>
}

const both = async (a: string, b: string) => {
  const [host, device] = await Promise.all([
    runHere(["verify", a, b, "--json"]),
    run(["verify", a, b, "--device", "cuda", "--json"], { env: simulated() })
  ])
  assert.strictEqual(device.code, host.code, device.stdout + device.stderr)
  return [JSON.parse(host.stdout) as Verdicts, JSON.parse(device.stdout) as Verdicts] as const
}

const withoutDigests = ({ ok, tensors }: Verdicts) => ({ ok, tensors: tensors.map(({ digest: _, ...rest }) => rest) })

describe("verify --device", () => {
  it("a file and its shards are the same", async () => {
    const [host, device] = await both(model, at("shards"))
    assert.isTrue(device.ok)
    assert.deepStrictEqual(withoutDigests(device), withoutDigests(host))
    for (const { digest } of device.tensors) assert.match(digest, /^[0-9a-f]{32}$/)
    const ended = await run(["verify", model, at("shards"), "--device", "cuda:0"], { env: simulated() })
    assert.include(ended.stdout, "bit-identical by digests of the device")
  })

  it("one byte that differs is named as the host names it, and so are tensors that one model lacks", async () => {
    const changed = await writeSmallModel(at("changed"), "llama")
    const file = join(changed, "model.safetensors")
    const bytes = readFileSync(file)
    bytes[bytes.length - 9]! ^= 0x10
    writeFileSync(file, bytes)
    const [host, device] = await both(changed, at("shards"))
    assert.isFalse(device.ok)
    assert.lengthOf(
      device.tensors.filter(({ detail }) => /^byte \d+ is \d+ and \d+$/.test(detail)),
      1
    )
    assert.deepStrictEqual(withoutDigests(device), withoutDigests(host))
    const other = await writeSmallModel(at("other"), "qwen3")
    const [ofHost, ofDevice] = await both(model, other)
    assert.isFalse(ofDevice.ok)
    assert.deepStrictEqual(withoutDigests(ofDevice), withoutDigests(ofHost))
  })

  it("is refused without a device, and with a tolerance", async () => {
    const [failure] = failuresOf(
      await run(["verify", at("absent"), model, "--device", "cuda", "--json"], { env: simulated("devices=0") })
    )
    assert.include(failure!.message, "tensorferry doctor")
    const ended = await runHere(["verify", model, model, "--device", "cuda", "--tolerance", "0.1", "--json"])
    assert.strictEqual(ended.code, 2)
  })
})
