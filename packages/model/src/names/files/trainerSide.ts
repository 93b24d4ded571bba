// SPDX-License-Identifier: Apache-2.0
/**
 * The side that a trainer's own notes state: degrees, stages and the convention of its modules, by the names that
 * Megatron-Core gives its options. What would move layers to other places and is not understood is refused. Pure.
 */
import * as Result from "effect/Result"
import { checkConfig, type ParallelConfig } from "../../layout/ParallelConfig.ts"
import type { Placement } from "../../placement/Placement.ts"
import type { TrainerArgs } from "../../torch/MegatronArgs.ts"
import type { NamedSide } from "../NamedSide.ts"

/** Options by the name of a command's argument, and by the name of the model's configuration where that is another. */
const names = {
  tp: ["tensor_model_parallel_size"],
  pp: ["pipeline_model_parallel_size"],
  cp: ["context_parallel_size"],
  ep: ["expert_model_parallel_size"],
  etp: ["expert_tensor_parallel_size"],
  dp: ["data_parallel_size"],
  world: ["world_size"],
  virtual: ["virtual_pipeline_model_parallel_size"],
  layers: ["num_layers"],
  first: ["decoder_first_pipeline_num_layers", "num_layers_in_first_pipeline_stage"],
  last: ["decoder_last_pipeline_num_layers", "num_layers_in_last_pipeline_stage"],
  rows: ["padded_vocab_size"],
  divisor: ["make_vocab_size_divisible_by"]
} as const satisfies Readonly<Record<string, ReadonlyArray<string>>>

/** Options that lay ranks or layers out in ways of their own. */
const foreign = [
  "pipeline_model_parallel_layout",
  "pipeline_model_parallel_split_rank",
  "account_for_embedding_in_pipeline_split",
  "account_for_loss_in_pipeline_split",
  "use_tp_pp_dp_mapping"
]

const most = 2 ** 20

/** Rows of the vocabulary that each rank has, or a number that they are a multiple of. */
const vocabularyOf = (
  args: TrainerArgs,
  tp: number,
  rows: number | undefined,
  divisor: number | undefined
): Result.Result<number | undefined, string> => {
  if (rows === undefined) return Result.succeed(args.get("should_pad_vocab") === false ? undefined : divisor)
  return rows % tp === 0
    ? Result.succeed(rows / tp)
    : Result.fail(`padded_vocab_size ${rows} does not divide by tp=${tp}`)
}

/** Layers of each stage, where the first or the last has a number of its own. */
const stagesOf = (
  pp: number,
  layers: number | undefined,
  first: number | undefined,
  last: number | undefined
): Result.Result<ReadonlyArray<number> | undefined, string> => {
  if ((first === undefined && last === undefined) || pp === 1) return Result.succeed(undefined)
  const inner = pp - (first === undefined ? 0 : 1) - (last === undefined ? 0 : 1)
  const rest = (layers ?? Number.NaN) - (first ?? 0) - (last ?? 0)
  const each = inner === 0 ? 0 : rest / inner
  if (!Number.isInteger(each) || each < 0 || (inner === 0 && rest !== 0))
    return Result.fail(`${layers ?? "an unknown number of"} layers do not divide over the stages between`)
  return Result.succeed([
    ...(first === undefined ? [] : [first]),
    ...Array.from({ length: inner }, () => each),
    ...(last === undefined ? [] : [last])
  ])
}

/** Reads the side; fails with what in the options cannot be one. */
export const trainerSide = (args: TrainerArgs): Result.Result<NamedSide, string> =>
  Result.gen(function* () {
    const wrong: Array<string> = []
    const read = (which: keyof typeof names): number | undefined => {
      const name = names[which].find((one) => (args.get(one) ?? null) !== null)
      const value = name === undefined ? undefined : args.get(name)
      if (value === undefined) return undefined
      if (typeof value === "number" && Number.isInteger(value) && value >= 1 && value <= most) return value
      wrong.push(`${name} is ${JSON.stringify(value).slice(0, 40)}`)
      return undefined
    }
    const tp = read("tp")
    const [pp = 1, cp = 1, ep = 1, virtual = 1] = [read("pp"), read("cp"), read("ep"), read("virtual")]
    const [etp = tp ?? 1, world, layers] = [read("etp"), read("world"), read("layers")]
    const [first, last, rows, divisor] = [read("first"), read("last"), read("rows"), read("divisor")]
    // Ranks that share a sequence hold the same weights: to them they are replicas.
    const dp = world === undefined ? (read("dp") ?? 1) * cp : world / ((tp ?? 1) * pp)
    if (wrong.length > 0) return yield* Result.fail(`${wrong.join(", ")}`)
    if (tp === undefined) return yield* Result.fail("tensor_model_parallel_size is not stated")
    if (!Number.isInteger(dp)) return yield* Result.fail(`world_size ${world} is no multiple of tp=${tp} x pp=${pp}`)
    const other = foreign.find((name) => ![undefined, null, false, ""].includes(args.get(name) as never))
    if (other !== undefined) return yield* Result.fail(`${other} lays it out in a way that is not known`)
    const stages = yield* stagesOf(pp, layers, first, last)
    if (stages !== undefined && virtual > 1)
      return yield* Result.fail("stages of their own length and virtual stages are not known together")
    const isMoe = ep > 1 || (etp !== tp && (args.get("num_experts") ?? null) !== null)
    const config: ParallelConfig = { tp, pp, dp, ...(isMoe ? { ep, etp } : {}) }
    yield* Result.mapError(checkConfig(config), ({ message }) => message)
    const multipleOf = yield* vocabularyOf(args, tp, rows, divisor)
    const placement: Placement = {
      ...(stages === undefined ? {} : { stages }),
      ...(virtual === 1 ? {} : { virtual }),
      ...(multipleOf === undefined ? {} : { vocabulary: { multipleOf, of: "share" } })
    }
    return {
      convention: args.get("transformer_impl") === "local" ? "megatron-local" : "megatron",
      config,
      ...(Object.keys(placement).length === 0 ? {} : { placement })
    }
  })
