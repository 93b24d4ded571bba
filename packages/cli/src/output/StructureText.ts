// SPDX-License-Identifier: Apache-2.0
/** A model's structure as tables for people, and as a document for machines. */
import type { ModelStructure, Stack } from "@tensorferry/model/describe/ModelStructure"
import { formatDegrees } from "@tensorferry/model/placement/legalDegrees"
import type { AxisSummary, ModelSummary, StructureSummary } from "@tensorferry/model/placement/structureSummary"
import { axes } from "@tensorferry/model/structure/Roles"
import { counted, table } from "../text/Table.ts"
import { plainLine } from "../text/terminal.ts"

/** `0-27, 30`: runs of layers. */
const formatRuns = (numbers: ReadonlyArray<number>): string => {
  const runs: Array<[number, number]> = []
  for (const number of numbers) {
    const last = runs.at(-1)
    if (last !== undefined && last[1] + 1 === number) last[1] = number
    else runs.push([number, number])
  }
  return runs.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(", ")
}

const stagesText = ({ kind }: Stack): string =>
  kind === "language" || kind === "encoder" ? "over all stages" : kind === "mtp" ? "last stage" : "first stage"

const several = (numbers: ReadonlyArray<number>): string =>
  numbers.length <= 2 ? numbers.join(" or ") : `${numbers[0]} to ${numbers.at(-1)}`

/** Lengths are named before their number, counts behind it. */
const axisText = ({ axis, counts }: AxisSummary): string =>
  axis === "width" || axis === "vocabulary" ? `${axis} ${several(counts)}` : `${several(counts)} ${axes[axis].label}`

const unitsText = (one: StructureSummary): string =>
  [...(one.experts.length === 0 ? [] : [`${several(one.experts)} experts`]), ...one.axes.map(axisText)].join(", ")

/** Degrees that one row of a table names. */
const mostDegrees = 8

const degreesText = ({ degrees, experts }: StructureSummary): string => {
  if (degrees === undefined) return "whole on every rank"
  return `${experts.length === 0 ? "tp" : "etp"} ${formatDegrees(degrees, mostDegrees)}`
}

/** Tensors that a table names before it counts. */
const shown = 5

/** What is known of a model, in tables. */
export const describeStructure = (structure: ModelStructure, summary: ModelSummary): string => {
  const { stacks, modules, unknown, quantization } = structure
  const counts = stacks.map((_, at) => modules.filter(({ stack }) => stack === at))
  const { tp, etp, mostEp, mostPp } = summary.degrees
  const tensorCount = modules.reduce((sum, { tensors }) => sum + tensors.length, 0) + unknown.length
  return [
    `model_type ${plainLine(structure.modelType)} (family ${structure.family.name}), quantization ${plainLine(quantization?.method ?? "none")}, ${counted(tensorCount, "tensor")}`,
    "",
    table(
      ["stack", "names", "layers", "stages", "modules"],
      stacks.map((stack, at) => [
        stack.kind,
        `${stack.prefix}*`,
        formatRuns(stack.layers),
        stagesText(stack),
        String(counts[at]!.length)
      ]),
      ["left", "left", "left", "left", "right"]
    ),
    "",
    table(
      ["structure", "stack", "units", "grain", "degrees"],
      summary.structures.map((one) => [
        one.structure,
        one.stack ?? "",
        unitsText(one),
        one.degrees === undefined ? "" : String(one.grain),
        degreesText(one)
      ]),
      ["left", "left", "left", "right", "left"]
    ),
    "",
    table(
      ["form", "modules", "parts", "of"],
      summary.forms.map(({ form, modules: count, parts, structures }) => [
        form,
        String(count),
        parts.join(", "),
        structures.join(", ")
      ]),
      ["left", "right", "left", "left"]
    ),
    "",
    `degrees that the model bears: tp ${formatDegrees(tp)}${etp.length === 0 ? "" : `; etp ${formatDegrees(etp)}; ep up to ${mostEp}`}; pp up to ${mostPp}`,
    ...structure.aliases.map(({ name, of }) => `${plainLine(name)} is ${plainLine(of)}`),
    unknown.length === 0
      ? "unknown tensors: none"
      : [
          `unknown tensors: ${unknown.length}`,
          ...unknown
            .slice(0, shown)
            .map(({ tensor, why }) => `  ${plainLine(tensor)}${why === undefined ? "" : `: ${plainLine(why)}`}`),
          ...(unknown.length > shown ? [`  and ${unknown.length - shown} more; --json lists all`] : [])
        ].join("\n")
  ].join("\n")
}

/** The same for machines. */
export const structureDocument = (structure: ModelStructure, summary: ModelSummary): object => ({
  ok: true,
  modelType: structure.modelType,
  family: structure.family.name,
  quantization: structure.quantization ?? null,
  numbers: structure.numbers,
  stacks: structure.stacks,
  ...summary,
  aliases: structure.aliases,
  unknown: structure.unknown.map(({ tensor, why }) => ({ tensor, why: why ?? null }))
})
