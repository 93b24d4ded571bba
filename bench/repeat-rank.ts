// SPDX-License-Identifier: Apache-2.0
/**
 * One rank of the bench of repetitions: ranks 0 and 1 exchange a tensor, the others have nothing to do. Takes its place as
 * JSON; then one line per request, answered by one line.
 */
import { createInterface } from "node:readline"
import { CopyDriver, TensorEngine as HostEngine } from "@tensorferry/backend-torch-copy"
import { copyServiceLayer } from "@tensorferry/core/copy/CopyServiceLayer"
import * as ProcessGroupTcp from "@tensorferry/core/group/ProcessGroupTcp"
import { CopyService } from "@tensorferry/core/service/CopyService"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { runPrinting } from "@tensorferry/testing/RankProcesses"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"

interface Place {
  readonly rank: number
  readonly size: number
  readonly port: number
  readonly agreement: "always" | "new"
}

const { rank, size, port, agreement } = JSON.parse(process.argv[2]!) as Place

const print = (line: object) => Effect.sync(() => void process.stdout.write(`${JSON.stringify(line)}\n`))

const group = ProcessGroupTcp.layer({
  rank,
  size,
  host: "127.0.0.1",
  port,
  onListening: (taken) => (rank === 0 ? print({ port: taken }) : Effect.void)
})
const services = copyServiceLayer(CopyDriver.layer(), { agreement }).pipe(
  Layer.provideMerge(HostEngine.layer()),
  Layer.provideMerge(group)
)

const program = Effect.gen(function* () {
  const service = yield* CopyService
  const engine = yield* TensorEngine
  const tensor = yield* engine.allocate("uint8", [4096])
  const run = Effect.gen(function* () {
    if (rank === 0) yield* service.submitSend(tensor, 1, 0)
    if (rank === 1) yield* service.submitRecv(tensor, 0, 0)
    return yield* service.run()
  })
  yield* run
  yield* print({ joined: rank })
  const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
  while (true) {
    const line = yield* Effect.promise(() => lines.next())
    if (line.done === true) return
    const { rounds } = JSON.parse(line.value) as { readonly rounds: number }
    const micros: Array<number> = []
    for (let round = 0; round < rounds; round++) {
      const begun = performance.now()
      yield* run
      micros.push((performance.now() - begun) * 1000)
    }
    yield* print({ micros })
  }
})

await runPrinting(Effect.scoped(Effect.provide(program, services)))
