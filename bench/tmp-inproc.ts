import { CopyDriver, TensorEngine as HostEngine } from "@tensorferry/backend-torch-copy"
import { copyServiceLayer } from "@tensorferry/core/copy/CopyServiceLayer"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import { CopyService } from "@tensorferry/core/service/CopyService"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
const N = Number(process.argv[2] ?? 5000)
const program = Effect.gen(function* () {
  const groups = yield* makeInProcessGroups(2)
  const rank = (g: any) => Effect.gen(function* () {
    const service = yield* CopyService
    const engine = yield* TensorEngine
    const tensor = yield* engine.allocate("uint8", [4096])
    const run = Effect.gen(function* () {
      if (g.rank === 0) yield* service.submitSend(tensor, 1, 0)
      else yield* service.submitRecv(tensor, 0, 0)
      return yield* service.run()
    })
    const t: number[] = []
    for (let i = 0; i < N; i++) { const b = performance.now(); yield* run; t.push((performance.now() - b) * 1000) }
    return t
  }).pipe(Effect.provide(copyServiceLayer(CopyDriver.layer()).pipe(Layer.provideMerge(HostEngine.layer()), Layer.provideMerge(Layer.succeed(ProcessGroup, g)))))
  const all = yield* Effect.all(groups.map(rank), { concurrency: "unbounded" })
  const s = all[0]!.slice(N / 2).sort((a, b) => a - b)
  console.log("both ranks in one process us: min", s[0], "p25", s[s.length >> 2], "med", s[s.length >> 1])
})
await Effect.runPromise(Effect.scoped(program))
