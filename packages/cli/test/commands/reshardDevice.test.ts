// SPDX-License-Identifier: Apache-2.0
/**
 * `reshard --device`: rank processes hold their shards in memory of a simulated GPU, from files to files. What comes out is
 * compared with what the same command writes from host memory, and with a cut of the model that this test makes itself.
 */
import { readdirSync } from "node:fs"
import { join } from "node:path"
import { afterAll, afterEach, assert, beforeAll, describe, it } from "@effect/vitest"
import {
  assertNothingRuns,
  type Ended,
  endAll,
  eventually,
  failuresOf,
  rankProcess,
  run,
  scratch,
  signal,
  start,
  temporaryNames
} from "../support/command.ts"
import { runHere } from "../support/here.ts"
import { pattern } from "../support/models.ts"
import { readSafetensors } from "../support/safetensorsFile.ts"
import { contentsOf, simulated } from "../support/simulatedDevice.ts"
import { smallModel, writeSmallModel } from "../support/smallModels.ts"

afterEach(endAll)

const folder = scratch()
const at = (name: string) => join(folder.path, name)
let model: string
beforeAll(async () => {
  model = await writeSmallModel(at("llama"), "llama")
})
afterAll(() => folder[Symbol.dispose]())

const onDevice = (args: ReadonlyArray<string>, settings?: string): Promise<Ended> =>
  run(args, { env: simulated(settings), limit: 120_000 })

/** The same command with and without --device. */
const both = async (name: string, args: ReadonlyArray<string>) => {
  const [host, device] = await Promise.all([
    run([...args, "--out", at(`${name}-host`), "--json"]),
    onDevice([...args, "--out", at(`${name}-device`), "--device", "cuda", "--json"])
  ])
  assert.strictEqual(host.code, 0, host.stdout + host.stderr)
  assert.strictEqual(device.code, 0, device.stdout + device.stderr)
  assert.deepStrictEqual(contentsOf(at(`${name}-device`)), contentsOf(at(`${name}-host`)))
  return JSON.parse(device.stdout) as {
    readonly reports: ReadonlyArray<{
      readonly tensorsVerified: number
      readonly bytesVerified: number
      readonly copy: { readonly peers: ReadonlyArray<{ readonly path: string }> }
    }>
  }
}

describe("reshard --device", () => {
  it("from one file to two ranks on one device: the bytes of the model, cut by hand", async () => {
    const { reports } = await both("halves", ["reshard", model, "--from", "tp=1", "--to", "tp=2"])
    for (const { bytesVerified, tensorsVerified } of reports) {
      assert.isAbove(tensorsVerified, 10)
      assert.isAbove(bytesVerified, 1000)
    }
    // Bytes of the other process came over the device.
    assert.deepStrictEqual(
      reports[1]!.copy.peers.map(({ path }) => path),
      ["ipc"]
    )
    const { tensors } = smallModel("llama")
    const shards = [0, 1].map((rank) => readSafetensors(at(`halves-device/rank-0000${rank}.safetensors`)))
    const byColumns = /(o_proj|down_proj)\.weight$/
    const byRows = /(q_proj|k_proj|v_proj|gate_proj|up_proj|embed_tokens|lm_head)\.weight$/
    for (const [seed, [name, shape]] of Object.entries(tensors).entries()) {
      const whole = pattern(2 * shape.reduce((product, length) => product * length, 1), seed)
      for (const [rank, shard] of shards.entries()) {
        const found = shard.get(name)!.bytes
        const [rows = 1, columns = 1] = shape
        const half = (2 * columns) / 2
        const expected = byColumns.test(name)
          ? Buffer.concat(
              Array.from({ length: rows }, (_, row) =>
                whole.subarray(2 * columns * row + rank * half, 2 * columns * row + (rank + 1) * half)
              )
            )
          : byRows.test(name)
            ? whole.subarray((whole.length / 2) * rank, (whole.length / 2) * (rank + 1))
            : whole
        assert.strictEqual(Buffer.compare(found, expected), 0, `${name} of rank ${rank}`)
      }
    }
  })

  it("without a device: one short error before anything is read, and nothing written", async () => {
    const out = at("nothing")
    const args = ["reshard", at("absent"), "--to", "tp=2", "--out", out, "--device", "cuda", "--json"]
    const [failure, ...more] = failuresOf(await run(args, { env: simulated("devices=0") }))
    assert.deepStrictEqual(more, [])
    assert.strictEqual(failure!.reason, "Unavailable")
    assert.match(failure!.message, /The NVIDIA driver shows no device.*`tensorferry doctor`/)
    assert.isBelow(failure!.message.length, 500)
    assert.notInclude(readdirSync(folder.path).join(), "nothing")
  })

  it("on a device that is not there: the error names those that are", async () => {
    const ended = await onDevice(["reshard", model, "--to", "tp=2", "--device", "cuda:0,3", "--json"], "devices=2")
    assert.strictEqual(ended.code, 2, ended.stdout)
    assert.include(failuresOf(ended)[0]!.message, "There is no device cuda:3; this machine shows 2.")
  })

  it("takes no other text for devices", async () => {
    for (const text of ["gpu", "cuda:", "cuda:a", "cuda:0,", "cuda:99"]) {
      const ended = await runHere(["reshard", model, "--to", "tp=2", "--device", text])
      assert.strictEqual(ended.code, 2, text)
      assert.include(ended.stderr, "cuda:0,1")
    }
  })

  it("is refused before anything is loaded where the device has too little memory, with the figures", async () => {
    const args = ["reshard", model, "--to", "tp=2", "--out", at("refused"), "--device", "cuda:0", "--json"]
    const failures = failuresOf(await onDevice(args, "devices=1 memory=100000000"))
    for (const { message, reason } of failures) {
      assert.strictEqual(reason, "NotEnoughMemory", message)
      assert.match(
        message,
        /Ranks 0, 1 need 128 MiB of memory for tensors on device cuda:0 \(.*\), and 9\d\.\d MiB are free/
      )
    }
    const limited = failuresOf(await onDevice([...args, "--memory-limit", "100MiB"]))
    assert.include(limited[0]!.message, "Ranks 0, 1 need 128 MiB")
    assert.include(limited[0]!.message, "and the limit is 100 MiB.")
    assert.notInclude(readdirSync(folder.path).join(), "refused")
  })

  it("whose device gives less memory than it said: the error says how much was asked for, and nothing is left", async () => {
    const args = ["reshard", model, "--to", "tp=2", "--out", at("short"), "--device", "cuda", "--json"]
    const command = start(args, { env: simulated("devices=1 fail=cudaMalloc:1:2"), limit: 120_000 })
    const ended = await command.ended
    assert.strictEqual(ended.code, 1)
    const [failure] = failuresOf(ended)
    assert.strictEqual(failure!.reason, "OutOfMemory", failure!.message)
    assert.include(failure!.message, `${64 * 2 ** 20} bytes`)
    await assertNothingRuns(command)
    assert.notInclude(readdirSync(folder.path).join(), "short")
  })

  it("whose rank is killed midway: an error that names it, and no output", async () => {
    const args = ["reshard", model, "--to", "tp=2", "--out", at("killed"), "--device", "cuda", "--json"]
    const command = start(args, { env: simulated(), limit: 120_000 })
    await eventually("the folder that is written first", 60_000, () =>
      temporaryNames(folder.path).some((name) => name.startsWith("killed")) ? true : undefined
    )
    signal(await rankProcess(command, 1), "SIGKILL")
    const ended = await command.ended
    assert.strictEqual(ended.code, 1, ended.stdout)
    assert.include(
      failuresOf(ended)
        .map(({ reason }) => reason)
        .join(),
      "RankEnded"
    )
    await assertNothingRuns(command)
    assert.notInclude(readdirSync(folder.path).join(), "killed")
  })

  it("says what ranks took of the device, and by what they were proved", async () => {
    const { stdout } = await onDevice(["reshard", model, "--to", "tp=2", "--device", "cuda"])
    assert.match(
      stdout,
      /^cuda:0 \(Simulated-GPU\S*\): 2 ranks, 128 MiB for tensors and buffers of 8\.0 GiB that were free$/m
    )
    assert.match(stdout, /^verified: .* bit-identical to .*, by digests of the device$/m)
  })

  it("is planned with what each rank takes of host, pinned and device memory", async () => {
    const ended = await runHere(["plan", model, "--to", "tp=2", "--device", "cuda", "--json"])
    const { memory } = JSON.parse(ended.stdout) as { readonly memory: ReadonlyArray<Record<string, number>> }
    const pinned = 8 * 2 * 64 * 1024
    assert.deepStrictEqual(memory, [
      { rank: 0, host: 0, pinned, device: 64 * 2 ** 20 },
      { rank: 1, host: 0, pinned, device: 64 * 2 ** 20 }
    ])
    assert.match(
      (await runHere(["plan", model, "--to", "tp=2", "--device", "cuda"])).stdout,
      /rank +host +pinned +device/
    )
  })
})
