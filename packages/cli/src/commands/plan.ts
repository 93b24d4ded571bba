/** `tensorferry plan`: what a reshard would move, before anything moves; and checks of saved plans. */
import { readFile, writeFile } from "node:fs/promises"
import * as path from "node:path"
import { ReshardPlanSet } from "@tensorferry/core/ir/ReshardPlan"
import { formatParallelConfig } from "@tensorferry/core/layout/ModelLayout"
import { estimatePlans, type PlanEstimate } from "@tensorferry/core/planner/Estimate"
import { checkPlans } from "@tensorferry/core/planner/PlanCheck"
import * as Console from "effect/Console"
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { toFailure } from "../job/JobSpec.ts"
import { jobLayouts } from "../job/layouts.ts"
import { openModel, resolveModel } from "../model/Model.ts"
import { modelError } from "../model/ModelError.ts"
import { reportFailure, withFailures } from "../output/CliFailure.ts"
import { formatBytes, formatSeconds, table } from "../output/Table.ts"
import { chooseLayouts, json, layoutConfig } from "./shared.ts"

/** Largest matrix that is drawn; larger jobs list their busiest pairs. */
const drawnRanks = 16

const trafficMatrix = (estimate: PlanEstimate): string => {
  const ranks = estimate.ranks.map(({ rank }) => rank)
  if (ranks.length > drawnRanks) {
    const busiest = [...estimate.traffic].sort((a, b) => b.bytes - a.bytes).slice(0, drawnRanks)
    return table(
      ["from", "to", "bytes", "ops"],
      busiest.map(({ from, to, bytes, ops }) => [`${from}`, `${to}`, formatBytes(bytes), `${ops}`]),
      ["right", "right", "right", "right"]
    )
  }
  const cell = new Map(estimate.traffic.map(({ from, to, bytes }) => [`${from}/${to}`, bytes]))
  return table(
    ["from \\ to", ...ranks.map(String)],
    ranks.map((from) => [
      String(from),
      ...ranks.map((to) => {
        const bytes = cell.get(`${from}/${to}`)
        return bytes === undefined ? "·" : formatBytes(bytes)
      })
    ]),
    ["right", ...ranks.map(() => "right" as const)]
  )
}

const describe = (estimate: PlanEstimate): string =>
  [
    trafficMatrix(estimate),
    "",
    table(
      ["rank", "source", "destination", "sends", "receives", "local", "peak memory"],
      estimate.ranks.map((rank) => [
        `${rank.rank}`,
        formatBytes(rank.sourceBytes),
        formatBytes(rank.destinationBytes),
        formatBytes(rank.sentBytes),
        formatBytes(rank.receivedBytes),
        formatBytes(rank.localBytes),
        formatBytes(rank.peakBytes)
      ]),
      Array.from({ length: 7 }, () => "right" as const)
    ),
    "",
    `${estimate.ops} operations, ${formatBytes(estimate.totalBytes)} in all, ${formatBytes(estimate.remoteBytes)} between ranks`,
    `predicted time ${formatSeconds(estimate.seconds)} on one host (4 GB/s per rank between processes, 8 GB/s within one)`
  ].join("\n")

const planSet = Schema.fromJsonString(ReshardPlanSet)

const fileFailed = (file: string, what: string) => (cause: unknown) =>
  modelError("FileFailed", {
    file,
    detail: `Cannot ${what}: ${cause instanceof Error ? cause.message : String(cause)}.`,
    remedy: "Check the path and its permissions."
  })

/** Plans are text; more than this is not one of ours. */
const mostPlanBytes = 1024 ** 3

const check = Command.make(
  "check",
  { file: Argument.String("FILE").pipe(Argument.withDescription("What plan --save wrote")), json },
  (flags) =>
    withFailures(
      flags.json,
      Effect.gen(function* () {
        const file = path.resolve(flags.file)
        const bytes = yield* Effect.tryPromise({ try: () => readFile(file), catch: fileFailed(file, "read the plan") })
        const decoded =
          bytes.length > mostPlanBytes
            ? undefined
            : Schema.decodeResult(planSet, { onExcessProperty: "error" })(bytes.toString("utf8"))
        if (decoded === undefined || Result.isFailure(decoded)) {
          return yield* modelError("InvalidPlan", {
            file,
            detail: decoded === undefined ? `It has ${bytes.length} bytes.` : decoded.failure.message,
            remedy: "Save it again with tensorferry plan --save."
          })
        }
        const faults = checkPlans(decoded.success.plans)
        if (faults.length > 0)
          return yield* reportFailure(
            faults.map((fault) => ({ failure: toFailure(fault) })),
            flags.json
          )
        const { plans } = decoded.success
        const ops = plans.reduce((sum, plan) => sum + plan.recvOps.length, 0)
        yield* Console.log(
          flags.json
            ? JSON.stringify({ ok: true, ranks: plans.length, operations: ops }, null, 2)
            : `${file}: ${plans.length} ranks, ${ops} operations: every element is written exactly once and both ends agree`
        )
      })
    )
).pipe(Command.withDescription("Prove a saved plan: coverage, regions, and agreement of both ends"))

export const plan = Command.make(
  "plan",
  {
    ...layoutConfig,
    save: Flag.String("save").pipe(Flag.withDescription("Write all ranks' plans to this file"), Flag.optional),
    json
  },
  (flags) =>
    withFailures(
      flags.json,
      Effect.scoped(
        Effect.gen(function* () {
          const model = yield* openModel(resolveModel(flags.checkpoint))
          const choice = yield* chooseLayouts(model, flags)
          const layouts = yield* Effect.fromResult(jobLayouts(model.tensors, choice))
          const plans = Array.from({ length: layouts.size }, (_, rank) => layouts.planFor(rank))
          const estimate = estimatePlans(plans)
          if (Option.isSome(flags.save)) {
            const file = path.resolve(flags.save.value)
            const text = yield* Effect.orDie(
              Schema.encodeEffect(planSet)({ format: "tensorferry.reshard-plan-set", version: 1, plans })
            )
            yield* Effect.tryPromise({ try: () => writeFile(file, text), catch: fileFailed(file, "write the plan") })
          }
          const head = `${formatParallelConfig(choice.from)} → ${formatParallelConfig(choice.to)}, ${layouts.size} ranks (${choice.ranks}), ${model.tensors.length} tensors`
          yield* Console.log(
            flags.json
              ? JSON.stringify({ ok: true, ...choice, size: layouts.size, estimate }, null, 2)
              : `${head}\n\n${describe(estimate)}`
          )
        })
      )
    )
).pipe(
  Command.withDescription("Show what a reshard would move: traffic matrix, bytes, memory and predicted time"),
  Command.withExamples([
    { command: "tensorferry plan llama/ --preset llama --from tp=8 --to tp=4,pp=2", description: "Traffic matrix" },
    {
      command: "tensorferry plan llama/ --preset llama --to tp=4 --save plan.json",
      description: "Save all ranks' plans"
    },
    { command: "tensorferry plan check plan.json", description: "Prove a saved plan" }
  ]),
  // A checkpoint that is called "check" is named ./check.
  Command.withSubcommands([check])
)
