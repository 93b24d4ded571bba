// SPDX-License-Identifier: Apache-2.0
/**
 * Child processes that speak lines of JSON: one line of question, one line of answer.
 */
import { spawn } from "node:child_process"
import { createInterface } from "node:readline"

export type Answer = Readonly<Record<string, unknown>>

export interface Child {
  /** The next line, without asking. */
  readonly next: () => Promise<Answer>
  readonly ask: (question: unknown) => Promise<Answer>
  readonly close: () => void
}

export const startChild = (command: string, values: ReadonlyArray<string>): Child => {
  const child = spawn(command, values, { stdio: ["pipe", "pipe", "inherit"] })
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  const next = async (): Promise<Answer> => {
    const line = await lines.next()
    if (line.done === true) throw new Error(`${command} ${values[0]} ended without an answer`)
    return JSON.parse(line.value)
  }
  return {
    next,
    ask: (question) => {
      child.stdin.write(`${JSON.stringify(question)}\n`)
      return next()
    },
    close: () => {
      child.stdin.end()
    }
  }
}
