// SPDX-License-Identifier: Apache-2.0
/**
 * Runs every set of reference data under a folder that the product covers: `pnpm golden DIR`. One folder per set, as in
 * `golden/`. Prints one line per set and, last, `N passed, N failed`; sets that are not covered yet are named.
 */
import { readdirSync, readFileSync } from "node:fs"
import * as path from "node:path"
import { gunzipSync } from "node:zlib"
import { descriptor as torchCopy } from "@tensorferry/backend-torch-copy"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import {
  checkCommands,
  checkPayloads,
  type RecordedCommands,
  type RecordedPayloads
} from "@tensorferry/golden/busMessages"
import { checkCasts, RecordedCasts } from "@tensorferry/golden/dtypeCasts"
import { checkPacking, checkScales, type RecordedPacking, type RecordedScales } from "@tensorferry/golden/formCuts"
import { checkAdapters, type RecordedAdapters } from "@tensorferry/golden/loraAdapters"
import { checkMegatronCase, type MegatronCase } from "@tensorferry/golden/megatronPlans"
import { checkDtensorCase, type DtensorCase } from "@tensorferry/golden/meshLayouts"
import {
  checkEthaCase,
  checkRedistributeCase,
  type EthaCase,
  type RedistributeCase
} from "@tensorferry/golden/meshTransfers"
import { checkMxfp8, RecordedMxfp8 } from "@tensorferry/golden/mxfp8"
import { checkNames, type RecordedNames } from "@tensorferry/golden/nameMappings"
import { checkRefusals, type RecordedRefusals } from "@tensorferry/golden/nameRefusals"
import { checkTransfers } from "@tensorferry/golden/nameTransfers"
import { checkScheduleCase, type ScheduleCase } from "@tensorferry/golden/nvshmemSchedules"
import { checkPackedValues } from "@tensorferry/golden/packedValues"
import { checkFp8Block, checkMxfp4, checkNvfp4, checkRecasts } from "@tensorferry/golden/quantizedValues"
import {
  checkFp8Quantizers,
  checkMxfp4Quantizers,
  checkMxfp8Quantizers,
  checkMxfp8Rules,
  checkNvfp4Quantizers
} from "@tensorferry/golden/quantizers"
import { checkRecastBytes } from "@tensorferry/golden/recasts"
import { checkPackedPowers, checkRoundings, checkTiles } from "@tensorferry/golden/scaleLayouts"
import { checkTransformers, type RecordedTransformers } from "@tensorferry/golden/transformersNames"
import { checkTransformersRefusals, type RecordedFaults } from "@tensorferry/golden/transformersRefusals"
import { checkWaysBack, type RecordedWaysBack } from "@tensorferry/golden/waysBack"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"

interface Verdict {
  readonly name: string
  readonly fault: string | undefined
}

/** Judges a file; the others of its kind are there too, in its folder and in those whose names begin alike. */
type Judge = (data: unknown, others: ReadonlyArray<unknown>) => Promise<ReadonlyArray<Verdict>>

const casesBy =
  <Case>(check: (recorded: Case) => string | undefined, nameOf: (recorded: Case) => string): Judge =>
  async (data) =>
    (data as { readonly cases: ReadonlyArray<Case> }).cases.map((recorded) => ({
      name: nameOf(recorded),
      fault: check(recorded)
    }))

/** Adapters are recorded without families. */
const hasFamilies = ({ families }: Partial<RecordedNames>): boolean => families !== undefined

/** The element maps, every layout moved for real, and what is to be refused. */
const namesAndTransfers: Judge = async (data, others) => [
  ...checkNames(data as RecordedNames),
  ...(await Effect.runPromise(checkTransfers(data as RecordedNames))),
  ...checkRefusals(data as RecordedRefusals, (others as ReadonlyArray<RecordedNames>).filter(hasFamilies))
]

const byTitle = ({ id, title }: { readonly id: string; readonly title: string }) => `${id} ${title}`
const byTags = ({ id, tags }: { readonly id: string; readonly tags: ReadonlyArray<string> }) =>
  `${id} ${tags.join(", ")}`

/** By the reference and by the engine that ships. */
const onEngines =
  <Recorded>(
    schema: Schema.Codec<Recorded, unknown>,
    check: (engine: TensorEngineShape, recorded: Recorded) => Effect.Effect<ReadonlyArray<Verdict>, unknown>
  ): Judge =>
  (data) => {
    const recorded = Schema.decodeUnknownSync(schema)(data)
    const run = Effect.gen(function* () {
      const reference = yield* check(ReferenceEngine.make(), recorded)
      const native = yield* Effect.provide(
        Effect.flatMap(TensorEngine, (engine) => check(engine, recorded)),
        torchCopy.tensorEngine!({})
      )
      return [
        ...reference.map(({ name, fault }) => ({ name: `reference ${name}`, fault })),
        ...native.map(({ name, fault }) => ({ name: `torch-copy ${name}`, fault }))
      ]
    })
    return Effect.runPromise(run)
  }

const all =
  (...judges: ReadonlyArray<Judge>): Judge =>
  async (data, others) =>
    (await Promise.all(judges.map((judge) => judge(data, others)))).flat()

const sets: Readonly<Record<string, Judge>> = {
  megatron_plans: casesBy<MegatronCase>(checkMegatronCase, byTitle),
  dtensor_layouts: casesBy<DtensorCase>(checkDtensorCase, byTags),
  redistribute_values: casesBy<RedistributeCase>(checkRedistributeCase, byTags),
  etha_m2m: casesBy<EthaCase>(checkEthaCase, byTitle),
  nvshmem_schedules: casesBy<ScheduleCase>(checkScheduleCase, byTitle),
  wire_commands: async (data) => checkCommands(data as RecordedCommands),
  bus_payloads: async (data) => checkPayloads(data as RecordedPayloads),
  recast: all(
    async (data) => checkRecasts(data),
    async (data) => checkRecastBytes(data)
  ),
  // By engines, and by the rules as they are written down.
  mxfp8: all(onEngines(RecordedMxfp8, checkMxfp8), async (data) => checkMxfp8Rules(data as RecordedMxfp8)),
  packed_int: all(casesBy<RecordedPacking>(checkPacking, byTitle), async (data) => checkPackedValues(data)),
  // Where they may be cut, the values that they stand for, and the codes and scales that each rule makes.
  fp8_block: all(
    casesBy<RecordedScales>(checkScales("fp8_block"), byTitle),
    async (data) => checkFp8Block(data),
    async (data) => checkFp8Quantizers(data),
    async (data) => checkPackedPowers(data)
  ),
  nvfp4: all(
    casesBy<RecordedScales>(checkScales("nvfp4"), byTitle),
    async (data) => checkNvfp4(data),
    async (data) => checkNvfp4Quantizers(data),
    async (data) => checkTiles(data)
  ),
  mxfp4: all(
    casesBy<RecordedScales>(checkScales("mxfp4"), byTitle),
    async (data) => checkMxfp4(data),
    async (data) => checkMxfp4Quantizers(data)
  ),
  mxfp8_ct: async (data) => checkMxfp8Quantizers(data),
  // Which element of the checkpoint is which element of which parameter, rank by rank.
  names_vllm: namesAndTransfers,
  names_megatron: all(namesAndTransfers, async (data) => checkWaysBack(data as RecordedWaysBack)),
  names_transformers: all(
    async (data) => checkTransformers(data as RecordedTransformers),
    async (data) => checkTransformersRefusals(data as RecordedFaults)
  ),
  // What an adapter adds to which tensors of its base, and which adapters are refused.
  names_lora: async (data) => checkAdapters(data as RecordedAdapters),
  dtype_casts: all(onEngines(RecordedCasts, checkCasts), async (data) => checkRoundings(data as RecordedCasts))
}

const read = (file: string): unknown => {
  const bytes = readFileSync(file)
  return JSON.parse((file.endsWith(".gz") ? gunzipSync(bytes) : bytes).toString("utf8"))
}

/** Ends with one line, as wrong usage. */
const refuse = (line: string): never => {
  console.error(line)
  process.exit(2)
}

const entriesOf = (folder: string) => {
  try {
    return readdirSync(folder, { withFileTypes: true }).sort((a, b) => a.name.localeCompare(b.name))
  } catch (cause) {
    const code = (cause as NodeJS.ErrnoException).code
    return refuse(`${folder} cannot be listed (${code}). Name a folder with one folder per set, such as golden.`)
  }
}

const folder = process.argv[2] ?? refuse("usage: pnpm golden DIR")
/** Files of all sets of names: models of one are models of the others. */
const nameFiles = entriesOf(folder)
  .filter((entry) => entry.isDirectory() && entry.name.startsWith("names_"))
  .flatMap(({ name }) =>
    readdirSync(path.join(folder, name))
      .filter((file) => /\.json(\.gz)?$/.test(file))
      .map((file) => path.join(folder, name, file))
  )
let passed = 0
let failed = 0
const shownFaults = 5
for (const entry of entriesOf(folder)) {
  if (!entry.isDirectory()) continue
  const files = readdirSync(path.join(folder, entry.name)).filter((file) => /\.json(\.gz)?$/.test(file))
  if (files.length === 0) continue
  const check = sets[entry.name]
  if (check === undefined) {
    console.log(`${entry.name}: not covered yet`)
    continue
  }
  const verdicts: Array<Verdict> = []
  const siblings = entry.name.startsWith("names_") ? nameFiles : []
  for (const file of files) {
    try {
      const others = siblings.flatMap((other) => (other === path.join(folder, entry.name, file) ? [] : [read(other)]))
      verdicts.push(...(await check(read(path.join(folder, entry.name, file)), others)))
    } catch (cause) {
      verdicts.push({ name: file, fault: cause instanceof Error ? cause.message : String(cause) })
    }
  }
  const faults = verdicts.filter((verdict) => verdict.fault !== undefined)
  passed += verdicts.length - faults.length
  failed += faults.length
  const shown = faults.slice(0, shownFaults).map(({ name, fault }) => `\n  ${name}: ${fault}`)
  const more = faults.length > shownFaults ? `\n  and ${faults.length - shownFaults} more` : ""
  console.log(`${entry.name}: ${verdicts.length - faults.length} right, ${faults.length} wrong${shown.join("")}${more}`)
}
console.log(`${passed} passed, ${failed} failed`)
process.exitCode = failed > 0 ? 1 : 0
