// SPDX-License-Identifier: Apache-2.0
/**
 * Ten lines of composition: every rank hands a tensor to the next one, over whatever backend the machine offers.
 *
 * Run it alone (`node ring.ts`) or under a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import { descriptors } from "@tensorferry/backend-torch-copy"
import { copyService } from "@tensorferry/core/backend/BackendLayer"
import { registryLayer } from "@tensorferry/core/backend/BackendRegistry"
import * as ProcessGroupEnvironment from "@tensorferry/core/group/ProcessGroupEnvironment"
import { CopyService } from "@tensorferry/core/service/CopyService"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"

const program = Effect.gen(function* () {
  const copy = yield* CopyService
  const engine = yield* TensorEngine
  const mine = yield* engine.allocate("float32", [1024, 1024])
  const theirs = yield* engine.allocate("float32", [1024, 1024])
  yield* engine.fill(mine, copy.rank + 1)
  yield* copy.submitSend(mine, (copy.rank + 1) % copy.worldSize, copy.rank)
  const previous = (copy.rank + copy.worldSize - 1) % copy.worldSize
  yield* copy.submitRecv(theirs, previous, previous)
  const report = yield* copy.run()
  yield* Console.log(
    `rank ${copy.rank}: byte ${theirs.storage.bytes?.[theirs.byteOffset]} from rank ${previous}, ${report.remoteBytesReceived} bytes over ${report.backend}`
  )
})

const services = copyService({ backend: "auto" }).pipe(
  Layer.provide(registryLayer(descriptors)),
  Layer.provide(ProcessGroupEnvironment.layer)
)

NodeRuntime.runMain(Effect.scoped(Effect.provide(program, services)))
