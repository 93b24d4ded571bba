// SPDX-License-Identifier: Apache-2.0
/** What the ranks of benches between two hosts share: their group, their lines, and the machine's clock, which both read. */
import { createInterface } from "node:readline"
import * as ProcessGroupTcp from "@tensorferry/core/group/ProcessGroupTcp"
import * as Effect from "effect/Effect"

/** Where a rank finds the other one. */
export interface RankPlace {
  readonly rank: number
  readonly host: string
  readonly port: number
}

export const print = (line: object) => Effect.sync(() => void process.stdout.write(`${JSON.stringify(line)}\n`))
export const seconds = () => Number(process.hrtime.bigint()) / 1e9

/** A group of two whose rank 0 says at which port it listens. */
export const groupOf = ({ rank, host, port }: RankPlace) =>
  ProcessGroupTcp.layer({
    rank,
    size: 2,
    host,
    port,
    token: "bench",
    deadline: "60 seconds",
    onListening: (taken) => print({ port: taken })
  })

/** Says that the rank has joined, and answers each request by a line until there are no more. */
export const serve = <Request, E, R>(rank: number, answer: (request: Request) => Effect.Effect<object, E, R>) =>
  Effect.gen(function* () {
    const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
    yield* print({ joined: rank })
    while (true) {
      const line = yield* Effect.promise(() => lines.next())
      if (line.done === true) return
      yield* print(yield* answer(JSON.parse(line.value)))
    }
  })
