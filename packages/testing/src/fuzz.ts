// SPDX-License-Identifier: Apache-2.0
/**
 * Runs a parser on many mutants in a process of its own, with little memory, so that an input that kills, blocks or bloats
 * the parser is found and named instead of taking the tests along.
 *
 * Invariant: a case is a function of its seed; the seed is written down before the case runs, so that it is known even
 * when the process dies.
 */
import { spawn } from "node:child_process"
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { makeRandom, type Random } from "./mutate.ts"

/** One parser, and where its inputs come from. */
export interface FuzzTarget {
  /** A mutant of a valid input; called with the random numbers of the case. */
  readonly mutant: (random: Random) => Uint8Array
  /**
   * Parses. Succeeds whether the input was accepted or refused with the parser's own typed error, and fails with what is
   * wrong otherwise: another error, or something accepted that breaks its rules. Defects count as wrong.
   */
  readonly examine: (input: Uint8Array) => Effect.Effect<"accepted" | "refused", string>
}

/** Targets by the name that `FuzzOptions.target` gives. */
export type FuzzTargets = { readonly [name: string]: FuzzTarget }

const FuzzReport = Schema.Struct({
  cases: Schema.Int,
  accepted: Schema.Int,
  /** Slowest case. */
  slowestSeed: Schema.Int,
  slowestMillis: Schema.Finite,
  /** Most memory that the process had, everything counted. */
  peakMegabytes: Schema.Finite,
  /** What was wrong first; no case ran after it. */
  fault: Schema.NullOr(Schema.Struct({ seed: Schema.Int, detail: Schema.String, input: Schema.String }))
})
/** What a process of cases found. */
export type FuzzReport = typeof FuzzReport.Type

const reportCodec = Schema.fromJsonString(FuzzReport)

/** Longest part of an input that a report shows, in bytes. */
const shownBytes = 2000

/** Runs cases from `seed` on until the time is over, or only the first where there is none. */
const runCases = (target: FuzzTarget, seed: number, millis: number, before: (seed: number) => void) =>
  Effect.gen(function* () {
    const started = performance.now()
    let cases = 0
    let accepted = 0
    let [slowestSeed, slowestMillis] = [seed, 0]
    let fault: FuzzReport["fault"] = null
    do {
      const own = seed + cases
      before(own)
      const input = target.mutant(makeRandom(own))
      const start = performance.now()
      const exit = yield* Effect.exit(Effect.suspend(() => target.examine(input)))
      const took = performance.now() - start
      if (took > slowestMillis) [slowestSeed, slowestMillis] = [own, took]
      cases += 1
      if (Exit.isFailure(exit)) {
        const shown = Buffer.from(input.subarray(0, shownBytes)).toString("utf8")
        fault = { seed: own, detail: Cause.pretty(exit.cause), input: shown }
      } else if (exit.value === "accepted") accepted += 1
    } while (fault === null && performance.now() - started < millis)
    const peakMegabytes = process.resourceUsage().maxRSS / 1024
    return { cases, accepted, slowestSeed, slowestMillis, peakMegabytes, fault } satisfies FuzzReport
  })

/**
 * The program of the process: `args` are the target's name, the first seed, milliseconds, and the file for seeds. Prints
 * the report.
 */
export const fuzzMain = (targets: FuzzTargets, args: ReadonlyArray<string>): Effect.Effect<void> => {
  const [name = "", seed = "0", millis = "0", seedFile = "/dev/null"] = args
  const target = targets[name]
  if (target === undefined) return Effect.die(`There is no target "${name}".`)
  return Effect.acquireUseRelease(
    Effect.sync(() => openSync(seedFile, "w")),
    (file) =>
      Effect.flatMap(
        runCases(target, Number(seed), Number(millis), (own) => {
          writeSync(file, String(own).padEnd(20), 0)
        }),
        (report) => Effect.sync(() => console.log(JSON.stringify(report)))
      ),
    (file) => Effect.sync(() => closeSync(file))
  )
}

/** What to run, from which seed on, and for how long. */
export interface FuzzOptions {
  /** A script that calls `fuzzMain` with its arguments. */
  readonly script: URL
  /** Name of the target among those of the script. */
  readonly target: string
  /** Of the first case; each later one has the next number. */
  readonly seed: number
  /** How long to go on; 0 runs one case. */
  readonly millis: number
  /** Limit of the JavaScript heap, 64 by default: room for the modules and for a small multiple of an input. */
  readonly heapMegabytes?: number
  /** Arguments behind those of `fuzzMain`. */
  readonly args?: ReadonlyArray<string>
}

/** Time beyond `millis` after which the case that runs counts as endless. */
const patience = 60_000

/** Fuzzes in a process. Fails with the seed to replay and what happened. */
export const fuzz = (options: FuzzOptions): Effect.Effect<FuzzReport, string> =>
  Effect.acquireUseRelease(
    Effect.sync(() => mkdtempSync(join(tmpdir(), "fuzz-"))),
    (folder) =>
      Effect.gen(function* () {
        const seedFile = join(folder, "seed")
        const { code, output } = yield* runProcess(options, seedFile)
        const report = Schema.decodeResult(reportCodec)(output.trim().split("\n").at(-1) ?? "")
        if (code !== 0 || Result.isFailure(report)) {
          const seed = Result.getOrElse(
            Result.try(() => readFileSync(seedFile, "utf8").trim()),
            () => "none"
          )
          return yield* Effect.fail(
            `${options.target}: the process ended with ${code} in the case of seed ${seed}.\n${output.slice(-4000)}`
          )
        }
        const { fault } = report.success
        if (fault === null) return report.success
        return yield* Effect.fail(`${options.target}: seed ${fault.seed}: ${fault.detail}\nInput: ${fault.input}`)
      }),
    (folder) => Effect.sync(() => rmSync(folder, { recursive: true, force: true }))
  )

const runProcess = (options: FuzzOptions, seedFile: string) =>
  Effect.callback<{ readonly code: number | string; readonly output: string }>((resume) => {
    const child = spawn(
      process.execPath,
      [
        `--max-old-space-size=${options.heapMegabytes ?? 64}`,
        fileURLToPath(options.script),
        options.target,
        String(options.seed),
        String(options.millis),
        seedFile,
        ...(options.args ?? [])
      ],
      { stdio: ["ignore", "pipe", "pipe"], timeout: options.millis + patience, killSignal: "SIGKILL" }
    )
    let output = ""
    const keep = (chunk: Buffer): void => {
      output = (output + chunk.toString("utf8")).slice(-100_000)
    }
    child.stderr.on("data", keep)
    child.stdout.on("data", keep)
    child.on("close", (code, signal) => resume(Effect.succeed({ code: code ?? signal ?? "no code", output })))
    child.on("error", (error) => resume(Effect.succeed({ code: error.message, output })))
    return Effect.sync(() => child.kill("SIGKILL"))
  })
