// SPDX-License-Identifier: Apache-2.0
/**
 * Ranks of a test as processes: both ends of the lines that they print, and the conformance kit over them. A rank takes
 * its place in the job from its last argument and prints one JSON line per event; the first rank's first line is the port
 * that the others join at.
 *
 * Invariant: a rank that ends early fails the cases that it did not report.
 */
import { type ChildProcess, spawn } from "node:child_process"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import * as ProcessGroupTcp from "@tensorferry/core/group/ProcessGroupTcp"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Logger from "effect/Logger"
import type { RankOutcome } from "./Conformance.ts"
import { type RankRun, runConformanceRank } from "./ConformanceRank.ts"

/** A rank's place in its job. */
export interface RankPlace {
  readonly rank: number
  readonly size: number
  /** Where the first rank listens; 0 for itself. */
  readonly port: number
  /** The address of the first rank; loopback where it is not given. Any other needs a token. */
  readonly host?: string
  readonly token?: string
}

/** Starts the process of a rank, where it is not to run beside the test. */
export type LaunchRank = (
  rank: number,
  command: string,
  values: ReadonlyArray<string>,
  options: { readonly stdio: ["ignore", "pipe", "pipe"] }
) => ChildProcess

/** What one rank printed, and how its process ended. */
export interface EndedRank<Line> {
  readonly lines: ReadonlyArray<Line>
  readonly end: string
}

interface PortLine {
  readonly event: "port"
  readonly port: number
}

type ConformanceLine =
  | { readonly event: "case"; readonly name: string; readonly outcome: RankOutcome }
  | { readonly event: "end"; readonly faults: ReadonlyArray<string> }

const running = new Set<ChildProcess>()

/** Kills what is left of jobs. */
export const killRankProcesses = (): void => {
  for (const child of running) child.kill("SIGKILL")
  running.clear()
}

const launchHere: LaunchRank = (_, command, values, options) => spawn(command, values, options)

const startRank = <Line extends { readonly event: string }>(script: URL, input: RankPlace, launch: LaunchRank) => {
  const values = [fileURLToPath(script), JSON.stringify(input)]
  const child = launch(input.rank, process.execPath, values, { stdio: ["ignore", "pipe", "pipe"] })
  running.add(child)
  const lines: Array<Line> = []
  let stderr = ""
  child.stderr!.on("data", (chunk) => {
    stderr += String(chunk)
  })
  const port = Promise.withResolvers<number>()
  const ended = Promise.withResolvers<EndedRank<Line>>()
  createInterface({ input: child.stdout! }).on("line", (text) => {
    if (!text.startsWith("{")) return
    const line: Line | PortLine = JSON.parse(text)
    if (line.event === "port") port.resolve((line as PortLine).port)
    else lines.push(line as Line)
  })
  child.once("close", (code, signal) => {
    running.delete(child)
    port.resolve(0)
    ended.resolve({ lines, end: `process ended with ${code ?? signal}: ${stderr.slice(-2000)}` })
  })
  return { port: port.promise, ended: ended.promise }
}

/** Runs a script as all ranks of a job, each with its place and what is `shared`; what each printed, by rank. */
export const runRankProcesses = async <Line extends { readonly event: string }>(
  script: URL,
  size: number,
  shared: object = {},
  launch: LaunchRank = launchHere
): Promise<ReadonlyArray<EndedRank<Line>>> => {
  const first = startRank<Line>(script, { ...shared, rank: 0, size, port: 0 }, launch)
  const port = await first.port
  const others = Array.from({ length: size - 1 }, (_, at) =>
    startRank<Line>(script, { ...shared, rank: at + 1, size, port }, launch)
  )
  return Promise.all([first, ...others].map(({ ended }) => ended))
}

/** In a rank's process: its place in the job, with what all ranks share. */
export const rankPlace = <Shared = object>(): RankPlace & Shared => JSON.parse(process.argv.at(-1)!)

/** In a rank's process: prints a line for the test. */
export const printLine = (line: object): Effect.Effect<void> =>
  Effect.sync(() => void process.stdout.write(`${JSON.stringify(line)}\n`))

/** In a rank's process: runs to the end what prints lines for the test. What is logged beside goes to standard error. */
export const runPrinting = <A, E>(program: Effect.Effect<A, E>): Promise<A> =>
  Effect.runPromise(Effect.provideService(program, Logger.LogToStderr, true))

/** In a rank's process: joins the job's group. */
export const joinRanks = ({ rank, size, port, host = "127.0.0.1", token }: RankPlace, deadline: Duration.Input) =>
  ProcessGroupTcp.make({
    rank,
    size,
    host,
    port,
    deadline,
    ...(token === undefined ? {} : { token }),
    onListening: (listening) => printLine({ event: "port", port: listening })
  })

/**
 * In a rank's process: every case for the job's size, each with services of its own. `faults` says at the end what the
 * rank's devices objected to or hold.
 */
export const runConformanceProcess = <E>(
  place: RankPlace,
  services: Pick<RankRun<E>, "engine" | "driver" | "stated">,
  faults: () => ReadonlyArray<string> = () => []
): Promise<void> =>
  runPrinting(
    Effect.scoped(
      Effect.gen(function* () {
        yield* runConformanceRank({
          ...services,
          group: yield* joinRanks(place, "10 seconds"),
          caseDeadline: "30 seconds",
          onOutcome: (name, outcome) => printLine({ event: "case", name, outcome })
        })
        yield* printLine({ event: "end", faults: faults() })
      })
    )
  )

/** How the ranks of a job judged, by rank. */
export interface ConformanceJob {
  /** What each rank found in a case, by rank. */
  readonly outcomesOf: (caseName: string) => ReadonlyArray<RankOutcome>
  /** A rank that did not get to its end says so. */
  readonly faults: ReadonlyArray<ReadonlyArray<string>>
}

/** Runs a script that calls `runConformanceProcess` as all ranks of a job. */
export const runConformanceJob = async (
  script: URL,
  size: number,
  shared: object = {},
  launch: LaunchRank = launchHere
): Promise<ConformanceJob> => {
  const ranks = await runRankProcesses<ConformanceLine>(script, size, shared, launch)
  return {
    outcomesOf: (name) =>
      ranks.map(({ lines, end }, rank) => {
        const line = lines.find((each) => each.event === "case" && each.name === name)
        return line?.event === "case" ? line.outcome : { rank, status: "failed", detail: `no outcome; ${end}` }
      }),
    faults: ranks.map(({ lines, end }) => {
      const last = lines.at(-1)
      return last?.event === "end" ? last.faults : [`the process did not get to its end; ${end}`]
    })
  }
}
