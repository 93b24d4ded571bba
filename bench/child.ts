// SPDX-License-Identifier: Apache-2.0
/**
 * Child processes that speak lines of JSON: one line of question, one line of answer. Also two of them, as ranks of one group,
 * on hosts of their own or on this one.
 */
import { type ChildProcess, spawn } from "node:child_process"
import { once } from "node:events"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import type { Host } from "@tensorferry/simulators/hosts"

export type Answer = Readonly<Record<string, unknown>>

export interface Child {
  /** The next line, without asking. */
  readonly next: () => Promise<Answer>
  readonly ask: (question: unknown) => Promise<Answer>
  /** Lets it end, and waits for that. */
  readonly close: () => Promise<unknown>
}

const settings = { stdio: ["pipe", "pipe", "inherit"] as ["pipe", "pipe", "inherit"] }

const speakWith = (child: ChildProcess, name: string): Child => {
  const lines = createInterface({ input: child.stdout! })[Symbol.asyncIterator]()
  const next = async (): Promise<Answer> => {
    const line = await lines.next()
    if (line.done === true) throw new Error(`${name} ended without an answer`)
    return JSON.parse(line.value)
  }
  return {
    next,
    ask: (question) => {
      child.stdin!.write(`${JSON.stringify(question)}\n`)
      return next()
    },
    close: () => {
      const ended = once(child, "close")
      child.stdin!.end()
      return ended
    }
  }
}

export const startChild = (command: string, values: ReadonlyArray<string>): Child =>
  speakWith(spawn(command, values, settings), `${command} ${values[0]}`)

/** Two hosts, or this one twice. */
export type Places = readonly [Host | undefined, Host | undefined]

/** Both ranks of a bench, joined. */
export interface Ranks<Request> {
  /** A question to both. */
  readonly ask: (request: Request) => Promise<ReadonlyArray<Answer>>
  readonly close: () => Promise<unknown>
}

/** Starts a script for each rank with its place as JSON: rank 0 answers with the port at which it listens, then both join. */
export const startRanks = async <Request>(
  places: Places,
  script: string,
  inputOf: (rank: number, port: number) => object
): Promise<Ranks<Request>> => {
  const file = fileURLToPath(new URL(script, import.meta.url))
  const start = (rank: 0 | 1, port: number): Child => {
    const values = [file, JSON.stringify(inputOf(rank, port))]
    const child = places[rank]?.start(process.execPath, values, settings) ?? spawn(process.execPath, values, settings)
    return speakWith(child, `rank ${rank}`)
  }
  const first = start(0, 0)
  const { port } = await first.next()
  const ranks = [first, start(1, Number(port))]
  await Promise.all(ranks.map(({ next }) => next()))
  return {
    ask: (request) => Promise.all(ranks.map((rank) => rank.ask(request))),
    close: () => Promise.all(ranks.map((rank) => rank.close()))
  }
}
