// SPDX-License-Identifier: Apache-2.0
/**
 * One rank of the two-process bench: rank 0 sends, rank 1 receives, the same batch again and again, with a tracer where
 * the request says so, as `tensorferry reshard --trace` has it. Takes its place as JSON; then one line per request,
 * answered by one line.
 */
import { createInterface } from "node:readline"
import { CopyDriver, TensorEngine as HostEngine } from "@tensorferry/backend-torch-copy"
import { copyServiceLayer } from "@tensorferry/core/copy/CopyServiceLayer"
import * as ProcessGroupTcp from "@tensorferry/core/group/ProcessGroupTcp"
import { CopyService } from "@tensorferry/core/service/CopyService"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { makeTrace } from "@tensorferry/core/trace/TraceFile"
import { runPrinting } from "@tensorferry/testing/RankProcesses"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"

const { rank, port } = JSON.parse(process.argv[2]!) as { readonly rank: number; readonly port: number }

const print = (line: object) => Effect.sync(() => void process.stdout.write(`${JSON.stringify(line)}\n`))

const group = ProcessGroupTcp.layer({
  rank,
  size: 2,
  host: "127.0.0.1",
  port,
  onListening: (taken) => print({ port: taken })
})
const services = copyServiceLayer(CopyDriver.layer()).pipe(
  Layer.provideMerge(HostEngine.layer()),
  Layer.provideMerge(group)
)

const program = Effect.gen(function* () {
  const service = yield* CopyService
  const engine = yield* TensorEngine
  const members = yield* ProcessGroup
  const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
  let tensor: Tensor | undefined
  const newTrace = () =>
    makeTrace({ processName: `rank ${rank}`, pid: rank, track: "phases", host: "bench", limit: 1e6 })
  let trace = newTrace()
  yield* print({ joined: rank })
  while (true) {
    const line = yield* Effect.promise(() => lines.next())
    if (line.done === true) return
    const request = JSON.parse(line.value) as {
      readonly case?: number
      readonly isTraced?: boolean
      readonly countSpans?: boolean
    }
    if (request.case !== undefined) {
      tensor = yield* engine.allocate("uint8", [request.case])
      yield* engine.fill(tensor, rank)
      trace = newTrace()
      yield* print({ ready: request.case })
      continue
    }
    if (request.countSpans === true) {
      yield* print({ spans: (yield* trace.record).spans.length })
      continue
    }
    yield* members.barrier("bench")
    const begun = performance.now()
    yield* rank === 0 ? service.submitSend(tensor!, 1, 0) : service.submitRecv(tensor!, 0, 0)
    const run = service.run()
    const report = yield* request.isTraced === true ? Effect.withTracer(run, trace.tracer) : run
    const seconds = (performance.now() - begun) / 1000
    yield* print({ seconds, path: report.peers[0]?.path, phases: report.phases })
  }
})

await runPrinting(Effect.scoped(Effect.provide(program, services)))
