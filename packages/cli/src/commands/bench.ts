// SPDX-License-Identifier: Apache-2.0
/** `tensorferry bench`: throughput and latency of a backend between processes, beside plain copies in memory. */
import * as path from "node:path"
import { pathToFileURL } from "node:url"
import { descriptor as hostBackend } from "@tensorferry/backend-torch-copy"
import { chooseCopyBackend } from "@tensorferry/core/backend/BackendLayer"
import { decodeBackendOptions } from "@tensorferry/core/backend/OptionsLayer"
import * as CliError from "effect/cli/CliError"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { benchChanges, type ChangeCase } from "../backends/benchChanges.ts"
import { makeCaseBar } from "../backends/caseBar.ts"
import { backendOptions, readBackendOptions } from "../backends/optionsFlag.ts"
import { type BenchCase, runBench } from "../backends/runBench.ts"
import { requireDevices } from "../device/requireDevices.ts"
import { backendRegistry } from "../job/backends.ts"
import { withFailures } from "../output/CliFailure.ts"
import { logsBeside, quiet } from "../output/quiet.ts"
import { parseByteSize } from "../text/byteSize.ts"
import { counted, formatBytes, table } from "../text/Table.ts"
import { printEither } from "../text/terminal.ts"
import { usage } from "./meshFlags.ts"
import { backend, backendPackages, device, json } from "./shared.ts"

const mostBytes = 2 ** 36
const defaultLengths = [8, 4096, 2 ** 20, 64 * 2 ** 20]

const flags = {
  backend,
  ranks: Flag.Int("ranks").pipe(
    Flag.withSchema(Schema.Int.check(Schema.isBetween({ minimum: 2, maximum: 64 }))),
    Flag.withDescription("Processes; each sends to the next one and receives from the one before (2 by default)"),
    Flag.withDefault(2)
  ),
  bytes: Flag.mapEffect(Flag.between(Flag.String("bytes"), 0, 32), (texts) =>
    Effect.forEach(texts, (text) => {
      const value = parseByteSize(text, mostBytes)
      return value === undefined
        ? Effect.fail(
            new CliError.InvalidValue({
              option: "bytes",
              value: text,
              expected: "bytes from 1 to 64GiB, such as 4096, 64KiB or 256MiB",
              kind: "flag"
            })
          )
        : Effect.succeed(value)
    })
  ).pipe(Flag.withDescription("Bytes of a message, as 4096, 64KiB, 256MiB (repeatable); by default 8 bytes to 64MiB")),
  device: device.pipe(
    Flag.withDescription(
      "Move memory of these devices: cuda:0 has all processes on one, cuda:0,1 lets them take turns; by default that of the backend, each process on the device that it chooses"
    )
  ),
  options: backendOptions,
  backendPackages,
  quiet,
  json
}

const formatTime = (seconds: number): string =>
  seconds < 1e-3
    ? `${(seconds * 1e6).toFixed(1)} us`
    : seconds < 1
      ? `${(seconds * 1e3).toFixed(2)} ms`
      : `${seconds.toFixed(2)} s`

const rate = (bytesPerSecond: number): string => (bytesPerSecond / 1e9).toFixed(bytesPerSecond < 1e9 ? 3 : 2)

const describe = (name: string, ranks: number, cases: ReadonlyArray<BenchCase>): string => {
  const rows = cases.map((one) => [
    formatBytes(one.byteLength),
    String(one.rounds),
    formatTime(one.medianSeconds),
    formatTime(one.fastestSeconds),
    rate(one.bytesPerSecond),
    formatTime(one.copyMedianSeconds),
    rate(one.copyBytesPerSecond),
    (one.copyMedianSeconds / one.medianSeconds).toFixed(3),
    one.path
  ])
  const header = ["bytes", "rounds", "median", "fastest", "GB/s", "memory copy", "GB/s", "copy = 1", "path"]
  return [
    `${name}, ${counted(ranks, "process", "processes")}: each sends to the next and receives from the one before, all at once`,
    "",
    table(header, rows, [...header.slice(0, -1).map(() => "right" as const), "left"]),
    "",
    "Times are of the slowest process, from submission until the bytes have arrived; rates are of one process in one direction.",
    "The memory copy moves as many bytes within each process, in turns with the rounds of the same run."
  ].join("\n")
}

const bytesFlag = (name: string, most: number) =>
  Flag.String(name).pipe(
    Flag.mapEffect((text) => {
      const value = parseByteSize(text, most)
      const expected = `bytes from 1 to ${formatBytes(most)}, such as 64MiB`
      return value === undefined
        ? Effect.fail(new CliError.InvalidValue({ option: name, value: text, expected, kind: "flag" }))
        : Effect.succeed(value)
    })
  )

const describeChanges = (cases: ReadonlyArray<ChangeCase>): string => {
  const rows = cases.map((one) => [
    `${Number((100 * one.share).toPrecision(3))}%`,
    formatBytes(one.listBytes),
    `${((100 * one.listBytes) / one.wholeBytes).toPrecision(3)}%`,
    `${((100 * one.fileBytes) / one.wholeBytes).toPrecision(3)}%`,
    formatTime(one.findSeconds),
    formatTime(one.packSeconds),
    formatTime(one.checksumSeconds),
    formatTime(one.writeSeconds),
    formatTime(one.copySeconds),
    formatTime(one.digestSeconds),
    `${rate(one.worthBelow)} GB/s`
  ])
  const header = [
    "changed",
    "list",
    "of all",
    "file",
    "find",
    "pack",
    "check",
    "write",
    "copy",
    "SHA-256",
    "pays below"
  ]
  return [
    `Changes of ${formatBytes(cases[0]!.wholeBytes)} of bfloat16 in memory of this host`,
    "",
    table(
      header,
      rows,
      header.map(() => "right" as const)
    ),
    "",
    "list: what travels between ranks; file: what a delta file takes, by the model. Over a link slower than the last column,",
    "changes arrive sooner than the tensor: they are found, packed and checked at both ends, and written. copy and SHA-256 are of the tensor."
  ].join("\n")
}

const benchDelta = Command.make(
  "delta",
  {
    bytes: bytesFlag("bytes", 2 ** 33).pipe(
      Flag.withDescription("Bytes of the tensor, as 64MiB (256MiB by default); three of them are in memory"),
      Flag.withDefault(2 ** 28)
    ),
    quiet,
    json
  },
  (given) =>
    withFailures(
      given,
      Effect.gen(function* () {
        const cases = yield* Effect.provide(benchChanges(given.bytes), hostBackend.tensorEngine!({}))
        yield* printEither(
          given.json,
          () => ({ ok: true, cases }),
          () => describeChanges(cases)
        )
      })
    )
).pipe(
  Command.withDescription("Measure what finding, checking and writing changes takes, and up to which link it pays"),
  Command.withExamples([{ command: "tensorferry bench delta --json", description: "As one document" }])
)

export const bench = Command.make("bench", flags, (given) =>
  withFailures(
    given,
    Effect.gen(function* () {
      const from = pathToFileURL(path.join(process.cwd(), "package.json")).href
      const chosen = Option.getOrUndefined(given.device)
      if (chosen !== undefined) yield* requireDevices(chosen)
      const { descriptor } = yield* Effect.provide(
        chooseCopyBackend(given.backend, chosen?.family ?? "cpu"),
        backendRegistry(given.backendPackages, from)
      )
      if (chosen !== undefined && !descriptor.deviceFamilies.includes(chosen.family))
        return yield* usage(
          `The backend ${descriptor.name} has no memory of ${chosen.family} to measure.`,
          "Leave --backend out, or name one for this device."
        )
      const written = yield* readBackendOptions(given.options)
      yield* decodeBackendOptions(descriptor.options, descriptor.name, written, "Correct --options.")
      const bar = makeCaseBar(given)
      const cases = yield* Effect.ensuring(
        runBench({
          work: {
            backend: descriptor.name,
            backendPackages: given.backendPackages,
            packagesFrom: from,
            options: written,
            ...(chosen === undefined ? {} : { device: chosen }),
            lengths: given.bytes.length === 0 ? defaultLengths : given.bytes
          },
          ranks: given.ranks,
          deadlineMillis: 60_000,
          onProgress: bar.update
        }).pipe(Effect.provide(logsBeside(bar))),
        bar.clear
      )
      yield* printEither(
        given.json,
        () => ({ ok: true, backend: descriptor.name, ranks: given.ranks, cases }),
        () => describe(descriptor.name, given.ranks, cases)
      )
    })
  )
).pipe(
  Command.withDescription("Measure the speed of a backend between processes, beside plain copies in memory"),
  Command.withSubcommands([benchDelta]),
  Command.withExamples([
    { command: "tensorferry bench", description: "The backend that auto chooses, two processes" },
    { command: "tensorferry bench --device cuda:0", description: "Two processes that share a GPU" },
    { command: "tensorferry bench --backend nccl --ranks 8 --bytes 1MiB --bytes 1GiB", description: "Eight devices" }
  ])
)
