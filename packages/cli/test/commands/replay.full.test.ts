// SPDX-License-Identifier: Apache-2.0
/** `replay` as a user runs it: rows that are right at every depth, its trace, its failures, and a collector that dies. */
import { existsSync, mkdirSync, readFileSync, rmSync } from "node:fs"
import { join } from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import { gpuSimulator } from "@tensorferry/simulators/libraries"
import {
  assertNothingRuns,
  endAll,
  eventually,
  failuresOf,
  isSoak,
  membersOf,
  type Running,
  run,
  runAll,
  scratch,
  signal,
  start
} from "../support/command.ts"

afterEach(endAll)

interface ReplayJson {
  readonly ok: boolean
  readonly batches: number
  readonly rows: number
  readonly bytes: number
  readonly rowBytes: number
  readonly rowsVerified: number
  readonly seconds: number
  readonly stallSeconds: number
  readonly copySeconds: number
  readonly overlap: number
  readonly attributes: { readonly h2dSubmitter: string }
}

interface TraceJson {
  readonly traceEvents: ReadonlyArray<{
    readonly name: string
    readonly ph: string
    readonly pid: number
    readonly ts: number
    readonly dur: number
    readonly args: { readonly tick?: number; readonly name?: string }
  }>
}

const small = ["--rows", "50", "--width", "7", "--compute", "0", "--json"]

describe("replay demo", () => {
  it("finds every row right, whatever the depth, while rows are overwritten", async () => {
    const depths = isSoak ? [1, 2, 3, 5, 8] : [1, 3]
    const ticks = isSoak ? 10_000 : 30
    const all = await Promise.all(
      depths.map((depth) =>
        run(["replay", "demo", ...small, "--depth", `${depth}`, "--ticks", `${ticks}`, "--append", "35"])
      )
    )
    for (const ended of all) {
      assert.strictEqual(ended.code, 0, ended.stderr + ended.stdout)
      const report = JSON.parse(ended.stdout) as ReplayJson
      assert.deepStrictEqual([report.ok, report.batches, report.rowBytes], [true, ticks, 40])
      assert.deepStrictEqual([report.rows, report.bytes], [ticks * 50, ticks * 2000])
      assert.strictEqual(report.rowsVerified, (ticks + 2) * 50)
      assert.isAbove(report.copySeconds, 0)
      assert.isTrue(report.overlap >= 0 && report.overlap <= 1)
    }
  })
})

describe("replay from a ring on the device", () => {
  it("finds every row right, drawn and gathered by the host's engine and by the simulated GPU", async () => {
    const library = gpuSimulator
    const env = {
      TENSORFERRY_CUDA_RUNTIME: library,
      TENSORFERRY_CUDA_DRIVER: library,
      TENSORFERRY_CUDA_NVRTC: library
    }
    for (const device of ["cpu", "cuda:0"]) {
      const wanted = ["--ring", "device", "--device", device, "--depth", "2", "--ticks", "12", "--append", "35"]
      const ended = await run(["replay", "demo", ...small, ...wanted], { env })
      assert.strictEqual(ended.code, 0, ended.stderr + ended.stdout)
      const report = JSON.parse(ended.stdout) as ReplayJson
      assert.deepStrictEqual([report.rowsVerified, report.attributes.h2dSubmitter], [14 * 50, "device_ring"])
    }
  })
})

describe("replay to a device without bytes of its own", () => {
  it("finds every row right, read back from the device", async ({ skip }) => {
    const { stdout } = await run(["backends", "--json"])
    const { backends } = JSON.parse(stdout) as {
      readonly backends: ReadonlyArray<{ readonly name: string; readonly probe: { readonly _tag: string } }>
    }
    const isThere = backends.some(({ name, probe }) => name === "xpu" && probe._tag === "Available")
    if (!isThere) skip("There is no device xpu:0.")
    const ended = await run(["replay", "demo", ...small, "--device", "xpu:0", "--depth", "3", "--ticks", "12"])
    assert.strictEqual(ended.code, 0, ended.stderr + ended.stdout)
    const report = JSON.parse(ended.stdout) as ReplayJson
    assert.deepStrictEqual([report.rowsVerified, report.attributes.h2dSubmitter], [14 * 50, "xpu_copy_stream"])
  })
})

describe("replay to a device family with several engines", () => {
  it("takes the engine of the backend that copies: over the simulated driver", async () => {
    const library = gpuSimulator
    const ended = await run(["replay", "demo", ...small, "--device", "cuda:0", "--depth", "2", "--ticks", "8"], {
      env: {
        TENSORFERRY_CUDA_RUNTIME: library,
        TENSORFERRY_CUDA_DRIVER: library,
        TENSORFERRY_CUDA_NVRTC: library
      }
    })
    assert.strictEqual(ended.code, 0, ended.stderr + ended.stdout)
    const report = JSON.parse(ended.stdout) as ReplayJson
    assert.deepStrictEqual([report.rowsVerified, report.attributes.h2dSubmitter], [10 * 50, "native_copy_stream"])
    assert.isAbove(report.copySeconds, 0)
  })
})

describe("replay bench", () => {
  it("prints a table for people, and a trace with both processes", async () => {
    using folder = scratch()
    const file = join(folder.path, "trace.json")
    const ended = await run([
      "replay",
      "bench",
      "--rows",
      "100",
      "--width",
      "16",
      "--ticks",
      "5",
      "--compute",
      "1",
      "--trace",
      file
    ])
    assert.strictEqual(ended.code, 0, ended.stderr)
    assert.match(ended.stdout, /5 batches of 100 rows .* to cpu, ring depth 2, by torch_copy from pageable_shared/)
    for (const word of ["device copy", "stall", "rows/s", "overlap", "GB/s"]) assert.include(ended.stdout, word)
    assert.notInclude(ended.stderr, "█", "no progress bar without a terminal")
    const { traceEvents } = JSON.parse(readFileSync(file, "utf8")) as TraceJson
    const processes = traceEvents.filter(({ name }) => name === "process_name").map(({ args }) => args.name)
    assert.deepStrictEqual(processes.toSorted(), ["collector", "learner"])
    for (const name of ["pack", "collect", "submit", "copy", "wait", "swap"]) {
      const ticks = traceEvents.filter((event) => event.name === `replay.${name}`).map(({ args }) => args.tick)
      assert.deepStrictEqual([...new Set(ticks)].toSorted(), [0, 1, 2, 3, 4, 5, 6], name)
    }
    // The collector's work on a batch lies between the request and the answer, on the learner's clock.
    for (const collect of traceEvents.filter(({ name }) => name === "replay.collect")) {
      const pack = traceEvents.find(({ name, args }) => name === "replay.pack" && args.tick === collect.args.tick)!
      assert.isAtLeast(collect.ts, pack.ts - 1000)
      assert.isAtMost(collect.ts + collect.dur, pack.ts + pack.dur + 1000)
    }
  })
})

describe("a replay that cannot work", () => {
  it("is wrong usage, or says what is missing", async () => {
    using folder = scratch()
    const usages: ReadonlyArray<readonly [args: ReadonlyArray<string>, says: RegExp]> = [
      [["replay", "bench", "--device", "CUDA:zero"], /--device.*CUDA:zero/s],
      [["replay", "demo", "--depth", "0"], /--depth/],
      [["replay", "demo", "--ring", "2"], /--ring.*host/s]
    ]
    const ended = await runAll([
      ...usages.map(([args]) => args),
      ["replay", "bench", ...small, "--device", "warp:0"],
      ["replay", "bench", ...small, "--trace", join(folder.path, "no", "trace.json"), "--ticks", "1000000"]
    ])
    for (const [at, [args, says]] of usages.entries()) {
      assert.strictEqual(ended[at]!.code, 2, args.join(" "))
      assert.match(ended[at]!.stderr, says)
    }
    const [device, trace] = ended.slice(usages.length)
    assert.strictEqual(trace!.code, 1)
    assert.strictEqual(failuresOf(trace!)[0]!.reason, "WriteFailed")
    assert.isFalse(existsSync(join(folder.path, "no")))
    assert.strictEqual(device!.code, 1)
    const [failure] = failuresOf(device!)
    assert.strictEqual(failure!.reason, "UnknownBackend")
    assert.match(failure!.fields!.remedy, /^Choose one of cpu, cuda, rocm, xpu, or load a package/)
  })
})

const collectorOf = (command: Running): Promise<number> =>
  eventually("the collector", 30_000, () => {
    const found = membersOf(command.pid).find(({ args }) => args.some((arg) => /collectorMain\.[tj]s$/.test(arg)))
    return found?.pid
  })

/** The collector's process, once it has mapped the learner's memory. */
const servingCollector = async (command: Running): Promise<number> => {
  const pid = await collectorOf(command)
  return eventually("the collector's mapping", 30_000, () => {
    const file = `/proc/${pid}/maps`
    return existsSync(file) && readFileSync(file, "utf8").includes("memfd:tensorferry") ? pid : undefined
  })
}

describe("a trace that can no longer be written when the run ends", () => {
  it.each([{ more: ["--json"] }, { more: [] }])("takes no figures along: $more", async ({ more }) => {
    using folder = scratch()
    const inside = join(folder.path, "inside")
    mkdirSync(inside)
    const args = ["replay", "bench", "--rows", "50", "--width", "7", "--ticks", "50", "--compute", "30"]
    const command = start([...args, "--trace", join(inside, "trace.json"), ...more])
    await servingCollector(command)
    rmSync(inside, { recursive: true })
    const ended = await command.ended
    assert.strictEqual(ended.code, 1)
    if (more.length > 0) {
      assert.strictEqual(failuresOf(ended)[0]!.reason, "WriteFailed")
      assert.strictEqual((JSON.parse(ended.stdout) as { readonly batches: number }).batches, 50)
    } else {
      assert.include(ended.stdout, "throughput")
      assert.include(ended.stderr, "The system could not write the trace: ENOENT.")
    }
  })
})

const endless = ["replay", "bench", ...small, "--ticks", "1000000"]

describe("processes that stop in the middle", () => {
  it("end the command with a name, or with it, and nothing is left", async () => {
    const killed = async () => {
      const command = start(endless)
      signal(await servingCollector(command), "SIGKILL")
      const ended = await command.ended
      assert.strictEqual(ended.code, 1, ended.stderr)
      assert.include(["CollectorGone", "CollectorFailed"], failuresOf(ended)[0]!.reason)
      return command
    }
    const frozen = async () => {
      const command = start([...endless, "--deadline", "15"])
      signal(await servingCollector(command), "SIGSTOP")
      const ended = await command.ended
      assert.strictEqual(ended.code, 1, ended.stderr)
      assert.include(["DeadlineExceeded", "CollectorFailed"], failuresOf(ended)[0]!.reason)
      return command
    }
    const learnerEnds = async (name: NodeJS.Signals, code: number | null) => {
      const command = start(endless)
      await collectorOf(command)
      signal(command.pid, name)
      assert.strictEqual((await command.ended).code, code)
      return command
    }
    const all = [killed(), learnerEnds("SIGINT", 130), ...(isSoak ? [frozen(), learnerEnds("SIGKILL", null)] : [])]
    for (const command of await Promise.all(all)) await assertNothingRuns(command)
  })
})
