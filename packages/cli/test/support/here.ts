// SPDX-License-Identifier: Apache-2.0
/**
 * Runs the command within this process: what it prints and its exit code, without the second that a process takes to start.
 * For what ends before ranks start; the process itself, its signals and its ranks are those of `command.ts`.
 */
import * as Cause from "effect/Cause"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import { makeProgram } from "../../src/program.ts"
import type { Ended } from "./command.ts"

/** One call at a time: exit code and folder are the process's. */
export const runHere = async (args: ReadonlyArray<string>, cwd = process.cwd()): Promise<Ended> => {
  const [stdout, stderr]: [Array<string>, Array<string>] = [[], []]
  const keepIn =
    (lines: Array<string>) =>
    (...said: ReadonlyArray<unknown>): void =>
      void lines.push(`${said.join(" ")}\n`)
  const captured: Console.Console = { ...globalThis.console, log: keepIn(stdout), error: keepIn(stderr) }
  const [exitCode, folder] = [process.exitCode, process.cwd()]
  process.exitCode = undefined
  try {
    process.chdir(cwd)
    const program = Effect.provideService(await makeProgram(args), Console.Console, captured)
    const exit = await Effect.runPromiseExit(program)
    if (Exit.isFailure(exit)) stderr.push(Cause.pretty(exit.cause))
    const code = Exit.isFailure(exit) ? 1 : Number(process.exitCode ?? 0)
    return { code, signal: null, stdout: stdout.join(""), stderr: stderr.join("") }
  } finally {
    process.exitCode = exitCode
    process.chdir(folder)
  }
}

/** Runs commands one after another; how each ended, in order. */
export const runAllHere = async (all: ReadonlyArray<ReadonlyArray<string>>): Promise<ReadonlyArray<Ended>> => {
  const ended: Array<Ended> = []
  for (const args of all) ended.push(await runHere(args))
  return ended
}
