// SPDX-License-Identifier: Apache-2.0
/**
 * One rank of the benches of tcp and ucx: rank 0 sends, rank 1 receives, the same program again and again. Takes its place as JSON;
 * then one line per request, answered by one line. Times are of the machine's clock, which both ranks read.
 */
import { CopyDriver as TcpDriver } from "@tensorferry/backend-tcp"
import { TensorEngine as HostEngine } from "@tensorferry/backend-torch-copy"
import { CopyDriver as UcxDriver } from "@tensorferry/backend-ucx"
import { rowMajorStrides } from "@tensorferry/core/base/Region"
import type { Message } from "@tensorferry/core/ir/Message"
import { CopyDriver, type Program } from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { tensorByteLength, tensorView } from "@tensorferry/core/tensor/Tensor"
import { runPrinting } from "@tensorferry/testing/RankProcesses"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import { groupOf, type RankPlace, seconds, serve } from "./rank.ts"

/** Where a rank of the bench finds the others, and what of the driver's options is set. */
export interface TcpRankInput extends RankPlace {
  readonly driver: "tcp" | "ucx"
  readonly options: object
}

/** Rows of so many bytes, `pitch` bytes apart; also the other way where messages are to go back and forth. */
export interface TensorRequest {
  readonly rows: number
  readonly rowBytes: number
  readonly pitch: number
  readonly isPingPong?: boolean
}

/** What the bench asks of a rank. */
export type TcpRankRequest =
  | { readonly prepare: TensorRequest }
  | { readonly run: true }
  | { readonly pingPong: number }

const input = JSON.parse(process.argv[2]!) as TcpRankInput
const { driver: chosen, rank, options } = input

const services = (chosen === "tcp" ? TcpDriver : UcxDriver)
  .layer(options)
  .pipe(Layer.provideMerge(HostEngine.layer()), Layer.provideMerge(groupOf(input)))

const program = Effect.gen(function* () {
  const driver = yield* CopyDriver
  const engine = yield* TensorEngine
  const group = yield* ProcessGroup
  const peer = 1 - rank

  const prepare = Effect.fnUntraced(function* (rows: number, rowBytes: number, pitch: number, sender: number) {
    const { storage } = yield* engine.allocate("uint8", [rows, pitch])
    yield* engine.fill(Result.getOrThrow(tensorView(storage, "uint8", [rows, pitch])), rank + 1)
    const shape = [rows, rowBytes]
    const strides = rowBytes === pitch ? rowMajorStrides(shape) : [pitch, 1]
    const tensor = Result.getOrThrow(tensorView(storage, "uint8", shape, { strides }))
    const message: Message = {
      direction: rank === sender ? "send" : "recv",
      peer,
      index: 0,
      byteLength: tensorByteLength(tensor),
      parts: [{ taskId: 0, part: 0, tensor }]
    }
    return yield* driver.prepare([message])
  })

  const run = (prepared: Program) => Effect.flatMap(driver.start(prepared), (moving) => moving.await)

  let there: Program | undefined
  let back: Program | undefined
  const pingPong = Effect.fnUntraced(function* (rounds: number) {
    if (rank === 0) {
      for (let round = 0; round < rounds; round++) {
        // The answer's memory waits before the question leaves.
        const answer = yield* driver.start(back!)
        const asking = yield* driver.start(there!)
        yield* answer.await
        yield* asking.await
      }
    } else {
      let question = yield* driver.start(there!)
      for (let round = 0; round < rounds; round++) {
        yield* question.await
        const answering = yield* driver.start(back!)
        if (round + 1 < rounds) question = yield* driver.start(there!)
        yield* answering.await
      }
    }
  })

  yield* serve(
    rank,
    Effect.fnUntraced(function* (request: TcpRankRequest) {
      if ("prepare" in request) {
        const { rows, rowBytes, pitch, isPingPong } = request.prepare
        there = yield* prepare(rows, rowBytes, pitch, 0)
        back = isPingPong === true ? yield* prepare(rows, rowBytes, pitch, 1) : undefined
        return { prepared: true }
      }
      yield* group.barrier("bench")
      const before = process.cpuUsage()
      const begun = seconds()
      yield* "run" in request ? run(there!) : pingPong(request.pingPong)
      const ended = seconds()
      const { user, system } = process.cpuUsage(before)
      return { begun, ended, processor: (user + system) / 1e6 }
    })
  )
})

await runPrinting(Effect.scoped(Effect.provide(program, services)))
