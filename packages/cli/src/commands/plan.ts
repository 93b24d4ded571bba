// SPDX-License-Identifier: Apache-2.0
/** `tensorferry plan`: what a reshard would move, before anything moves; and checks of saved plans. */
import * as path from "node:path"
import { byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, formatShape } from "@tensorferry/core/base/Region"
import type { ReshardPlan } from "@tensorferry/core/ir/ReshardPlan"
import { estimatePlans, hostLinkSpeeds, type PlanEstimate } from "@tensorferry/core/planner/Estimate"
import { jobLayouts } from "@tensorferry/model/layouts"
import type { ModelError } from "@tensorferry/model/ModelError"
import { type NamedLayouts, namedLayouts } from "@tensorferry/model/names/namedLayouts"
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type { DeviceChoice } from "../device/DeviceChoice.ts"
import { jobMemory } from "../device/jobMemory.ts"
import { planFleet, readTopology } from "../fleet/planFleet.ts"
import { toFailure } from "../job/JobSpec.ts"
import { conversionEstimate } from "../job/ModelJob.ts"
import { formatMeshChoice, meshPlans } from "../job/meshPlans.ts"
import { countOps, faultsOf, readPlans, savePlans } from "../job/planFile.ts"
import { reportFailure, withFailures } from "../output/CliFailure.ts"
import { describeExplanation, type Explanation, explainPlan, type TensorOf } from "../output/Explanation.ts"
import { describeEstimate, type RankMemory } from "../output/PlanText.ts"
import { checkTarget } from "../report/runFiles.ts"
import { sideText } from "../text/sideText.ts"
import { counted } from "../text/Table.ts"
import { printEither } from "../text/terminal.ts"
import { chooseConversion, conversionConfig, convertModel } from "./conversionFlags.ts"
import { chooseMeshes, type MeshFlags, meshConfig, meshTensorConfig, statedFlags, usage } from "./meshFlags.ts"
import { pathArgument, pathFlag } from "./paths.ts"
import {
  checkpoint,
  chooseLayouts,
  chooseNames,
  device,
  type InputFlags,
  inputConfig,
  json,
  type LayoutFlags,
  layoutConfig,
  noteAbsent,
  noteUnrecorded,
  openStated,
  unrecordedOf,
  withNotes
} from "./shared.ts"

const check = Command.make(
  "check",
  { file: pathArgument("FILE", "file").pipe(Argument.withDescription("What plan --save wrote")), json },
  (flags) =>
    withFailures(
      flags,
      Effect.gen(function* () {
        const file = path.resolve(flags.file)
        const set = yield* readPlans(file)
        const faults = faultsOf(set)
        if (faults.length > 0)
          return yield* reportFailure(
            faults.map((fault) => ({ failure: toFailure(fault) })),
            flags.json
          )
        const [ranks, operations] = [set.plans.length, countOps(set)]
        yield* printEither(
          flags.json,
          () => ({ ok: true, ranks, operations }),
          () =>
            `${file}: ${counted(ranks, "rank")}, ${counted(operations, "operation")}: every element is written exactly once and both ends agree`
        )
      })
    )
).pipe(Command.withDescription("Prove a saved plan: coverage, regions, and agreement of both ends"))

/** What is printed: the figures of all ranks, or one rank's part in words. */
interface Output {
  readonly head: string
  /** For machines. */
  readonly facts: object
  readonly estimate?: object
  readonly memory?: ReadonlyArray<RankMemory>
  readonly fanOut?: object
  readonly text: string
  readonly explanation: Explanation | undefined
}

const printOutput = ({ head, facts, estimate, memory, fanOut, text, explanation }: Output, asJson: boolean) =>
  printEither(
    asJson,
    () => ({
      ok: true,
      ...facts,
      ...(estimate === undefined ? {} : { estimate }),
      ...(memory === undefined ? {} : { memory }),
      ...(fanOut === undefined ? {} : { fanOut }),
      ...(explanation === undefined ? {} : { explanation })
    }),
    () => `${head}\n\n${explanation === undefined ? text : describeExplanation(explanation)}`
  )

interface PlanFlags extends LayoutFlags, MeshFlags, InputFlags {
  readonly checkpoint: Option.Option<string>
  readonly shape: Option.Option<ReadonlyArray<number>>
  readonly dtype: Option.Option<DType>
  readonly toDtype: Option.Option<DType>
  readonly save: Option.Option<string>
  readonly explain: Option.Option<number>
  readonly fleet: Option.Option<string>
  readonly transform: Option.Option<string>
  readonly device: Option.Option<DeviceChoice>
}

/** The plan to explain, of those that there are. */
const explainedPlan = <P extends { readonly rank: number }>(
  flags: PlanFlags,
  plans: ReadonlyArray<P>
): Effect.Effect<P | undefined, ModelError> => {
  if (Option.isNone(flags.explain)) return Effect.succeed(undefined)
  const rank = flags.explain.value
  const found = plans.find((plan) => plan.rank === rank)
  return found === undefined
    ? Effect.fail(
        usage(
          `Rank ${rank} of --explain takes no part.`,
          `Name one of the ${counted(plans.length, "rank")}, such as ${plans[0]?.rank ?? 0} or ${plans.at(-1)?.rank ?? 0}.`
        )
      )
    : Effect.succeed(found)
}

/** A fan-out is of all ranks, and is no plan that could be saved. */
const fanOutFault = ({ explain, save }: PlanFlags): string | undefined =>
  Option.isSome(explain) ? "--explain" : Option.isSome(save) ? "--save" : undefined

/** What ranks take whose tensors lie on devices, as far as plans show it. */
const memoryOf = (
  plans: ReadonlyArray<ReshardPlan>,
  { ranks }: PlanEstimate,
  isConverted: boolean
): ReadonlyArray<RankMemory> =>
  plans.map(({ destinationTensors, rank, sourceTensors }, at) => {
    const { bufferBytes, destinationBytes, transformBytes } = ranks[at]!
    const lengthsOf = (tensors: ReshardPlan["sourceTensors"]) =>
      tensors.map(({ dtype, shape }) => byteLengthOf(dtype, elementCount(shape)))
    const into = lengthsOf(destinationTensors)
    // A transform stores them in another form than the plan has.
    const share =
      destinationBytes /
      Math.max(
        1,
        into.reduce((sum, bytes) => sum + bytes, 0)
      )
    const tensors = [...lengthsOf(sourceTensors), ...into.map((bytes) => Math.ceil(bytes * share))]
    return { rank, ...jobMemory({ tensors, buffers: bufferBytes + transformBytes, isConverted }) }
  })

/** A checkpoint between parallel layouts. */
const planCheckpoint = Effect.fnUntraced(function* (stated: string, flags: PlanFlags) {
  const fault = Option.isSome(flags.fleet) ? fanOutFault(flags) : undefined
  if (fault !== undefined) return yield* usage("--fleet shows a fan-out of all ranks.", `Leave ${fault} out.`)
  const topology = Option.isNone(flags.fleet) ? undefined : yield* readTopology(path.resolve(flags.fleet.value))
  const opened = yield* openStated(stated, flags)
  yield* noteAbsent(opened.model)
  const conversion = yield* chooseConversion({ ...flags, type: [], dtype: Option.none() })
  const { model } = yield* convertModel(opened.model, conversion)
  const sides = yield* withNotes(stated, flags)
  const choice = yield* chooseLayouts(model, sides)
  const names = yield* chooseNames(model, choice, sides)
  if (names !== undefined && conversion !== undefined) {
    return yield* usage(
      "Types are converted between the checkpoint's own names only.",
      "Leave --transform out, or the convention."
    )
  }
  const named = names === undefined ? undefined : yield* Effect.fromResult(namedLayouts(model.tensors, names))
  const unrecorded = named === undefined ? [] : unrecordedOf(named.structure, [names!.from, names!.to])
  if (named !== undefined) yield* noteUnrecorded(named.structure, [names!.from, names!.to])
  const converted = conversion === undefined ? choice : { ...choice, conversion }
  const own = named === undefined ? yield* Effect.fromResult(jobLayouts(model.tensors, converted)) : undefined
  const layouts: Planned = own ?? namedPlans(named!)
  const head = `${sideText(choice.from, names?.from.convention)} → ${sideText(choice.to, names?.to.convention)}, ${counted(layouts.size, "rank")} (${choice.ranks}), ${counted(model.tensors.length, "tensor")}`
  const facts = { ...choice, ...(names === undefined ? {} : { names, unrecorded }), size: layouts.size }
  if (topology !== undefined) {
    const { document, text } = yield* Effect.fromResult(planFleet((own ?? named!).index, topology))
    return { head, facts, fanOut: document, text, explanation: undefined } satisfies Output
  }
  const plans = Array.from({ length: layouts.size }, (_, rank) => layouts.planFor(rank))
  const estimate = estimatePlans(
    plans,
    hostLinkSpeeds,
    own === undefined ? {} : conversionEstimate(conversion, own, model)
  )
  const isConverted = conversion !== undefined || names !== undefined
  const memory = Option.isNone(flags.device) ? undefined : memoryOf(plans, estimate, isConverted)
  const explained = yield* explainedPlan(flags, plans)
  if (Option.isSome(flags.save)) {
    yield* savePlans(path.resolve(flags.save.value), { format: "tensorferry.reshard-plan-set", version: 1, plans })
  }
  return {
    head,
    facts,
    estimate,
    ...(memory === undefined ? {} : { memory }),
    text: describeEstimate(estimate, memory),
    explanation: explained === undefined ? undefined : explainPlan(explained, layouts.tensorOf)
  } satisfies Output
})

/** Plans of all ranks, and where a parameter lies on each. */
interface Planned {
  readonly size: number
  readonly planFor: (rank: number) => ReshardPlan
  readonly tensorOf?: TensorOf
}

const namedPlans = ({ size, planFor, source, destination }: NamedLayouts): Planned => {
  const known = new Map<string, ReadonlyMap<string, string>>()
  return {
    size,
    planFor,
    tensorOf: (side, rank, paramName) => {
      const key = `${side} ${rank}`
      const layout = side === "source" ? source : destination
      const names =
        known.get(key) ?? new Map(layout.parametersOf(rank).map(({ metadata, view }) => [metadata.name, view.tensor]))
      known.set(key, names)
      return names.get(paramName)
    }
  }
}

/** One tensor between meshes. */
const planMeshes = Effect.fnUntraced(function* (flags: PlanFlags) {
  const choice = yield* chooseMeshes(flags)
  if (Option.isNone(flags.shape)) {
    return yield* usage("No --shape is stated.", "Pass the shape of the whole tensor, as in --shape 4096x4096.")
  }
  const shape = flags.shape.value
  const sourceDtype = Option.getOrElse(flags.dtype, (): DType => "bfloat16")
  const targetDtype = Option.getOrElse(flags.toDtype, () => sourceDtype)
  const planned = yield* Effect.fromResult(meshPlans({ name: "tensor", shape, sourceDtype, targetDtype }, choice))
  const plans = planned.ranks.map(planned.planFor)
  const estimate = estimatePlans(plans)
  const explained = yield* explainedPlan(flags, plans)
  if (Option.isSome(flags.save)) {
    yield* savePlans(path.resolve(flags.save.value), { format: "tensorferry.mesh-plan-set", version: 1, plans })
  }
  const types = sourceDtype === targetDtype ? sourceDtype : `${sourceDtype} → ${targetDtype}`
  return {
    head: `${formatMeshChoice(choice)}, ${counted(plans.length, "rank")}, ${types}${formatShape(shape)}, sources ${choice.sourceChoice}`,
    facts: { ...choice, shape, dtype: sourceDtype, toDtype: targetDtype, size: plans.length },
    estimate,
    text: describeEstimate(estimate),
    explanation: explained === undefined ? undefined : explainPlan(explained)
  } satisfies Output
})

/** Exactly one of a checkpoint with parallel layouts, and meshes. */
const choosePlan = Effect.fnUntraced(function* (flags: PlanFlags) {
  if (Option.isSome(flags.save)) yield* checkTarget(path.resolve(flags.save.value))
  const meshes = statedFlags({ ...meshConfig, ...meshTensorConfig }, flags)
  const layouts = statedFlags({ ...layoutConfig, transform: null, device: null, fleet: null }, flags)
  if (Option.isSome(flags.checkpoint)) {
    if (meshes.length === 0) return yield* planCheckpoint(flags.checkpoint.value, flags)
    return yield* usage(
      `A checkpoint is planned between parallel layouts, and ${meshes.join(", ")} ${meshes.length === 1 ? "is" : "are"} for meshes.`,
      "Leave the checkpoint out and pass --shape, or pass --to; one tensor of a checkpoint is moved between meshes by reshard --tensor."
    )
  }
  if (meshes.length === 0) {
    return yield* usage(
      "Neither CHECKPOINT nor meshes are stated.",
      "Pass a checkpoint and --to, or --from-mesh, --to-mesh and --shape."
    )
  }
  if (layouts.length > 0) {
    return yield* usage(
      `${layouts.join(", ")} ${layouts.length === 1 ? "does" : "do"} nothing between meshes.`,
      "State one kind of layout."
    )
  }
  return yield* planMeshes(flags)
})

export const plan = Command.make(
  "plan",
  {
    checkpoint: checkpoint.pipe(Argument.optional),
    ...inputConfig,
    ...layoutConfig,
    ...meshConfig,
    ...meshTensorConfig,
    transform: conversionConfig.transform,
    device,
    save: pathFlag("save", "file").pipe(Flag.withDescription("Write all ranks' plans to this file"), Flag.optional),
    explain: Flag.Int("explain").pipe(
      Flag.withDescription(
        "Say in words what this rank sends, receives and copies, instead of the figures of all ranks"
      ),
      Flag.withSchema(Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 2 ** 31 - 1 }))),
      Flag.optional
    ),
    fleet: Flag.String("fleet").pipe(
      Flag.withDescription(
        "Topology of a fleet (JSON): show how an update fans out over its hosts, tree by tree, and the bytes of each link"
      ),
      Flag.optional
    ),
    json
  },
  (flags) =>
    withFailures(flags, Effect.scoped(Effect.flatMap(choosePlan(flags), (output) => printOutput(output, flags.json))))
).pipe(
  Command.withExamples([
    { command: "tensorferry plan llama/ --preset llama --from tp=8 --to tp=4,pp=2", description: "Traffic matrix" },
    {
      command: "tensorferry plan llama/ --preset llama --to tp=4 --save plan.json",
      description: "Save all ranks' plans"
    },
    {
      command: "tensorferry plan hf:llama/ --from megatron:tp=2 --to vllm:tp=8 --explain 0",
      description: "From a trainer's tensors to an engine's"
    },
    {
      command: "tensorferry plan --from-mesh 2x4:S0,R --to-mesh 8@8:S1 --shape 4096x4096",
      description: "A tensor from one device mesh to another"
    },
    {
      command: "tensorferry plan --from-mesh '2x4:P(sum),S0' --to-mesh 8:S1 --shape 4096x4096 --explain 3",
      description: "What rank 3 does, in words"
    },
    {
      command: "tensorferry plan llama/ --from tp=8 --to tp=8,dp=255 --ranks disjoint --fleet topology.json",
      description: "How an update reaches 255 engines"
    },
    { command: "tensorferry plan check plan.json", description: "Prove a saved plan" }
  ]),
  // A checkpoint that is called "check" is named ./check.
  Command.withSubcommands([check])
)
