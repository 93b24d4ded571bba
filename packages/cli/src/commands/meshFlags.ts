// SPDX-License-Identifier: Apache-2.0
/**
 * Flags that state a transfer between device meshes, and how they exclude those of parallel layouts.
 *
 * Invariant: a command gets one kind of layout, whole. Every flag that would do nothing is refused.
 */
import { DType, dtypes } from "@tensorferry/core/base/DType"
import { SourceChoice } from "@tensorferry/core/ir/M2MMap"
import { parseMeshLayout } from "@tensorferry/core/layout/MeshText"
import type { MeshLayout } from "@tensorferry/core/layout/Placement"
import { modelError } from "@tensorferry/model/ModelError"
import * as CliError from "effect/cli/CliError"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { MeshChoice } from "../model/MeshChoice.ts"

const meshFlag = (name: string) =>
  Flag.mapEffect(Flag.String(name), (value) =>
    Result.match(parseMeshLayout(value), {
      onSuccess: Effect.succeed,
      onFailure: ({ detail, remedy, ranks }) => {
        const where = ranks.length === 0 ? "" : ` (rank ${ranks.join(", ")})`
        const expected = `${remedy} ${detail}${where}`
        return Effect.fail(new CliError.InvalidValue({ option: name, value, expected, kind: "flag" }))
      }
    })
  )

const sizes = /^(\d{1,16}(x\d{1,16})*|scalar)$/

const shapeFlag = Flag.mapEffect(Flag.String("shape"), (value) => {
  const shape = value === "scalar" ? [] : value.split("x").map(Number)
  return sizes.test(value) && shape.every(Number.isSafeInteger)
    ? Effect.succeed(shape)
    : Effect.fail(
        new CliError.InvalidValue({
          option: "shape",
          value,
          expected: "lengths as in 4096x1024, or scalar",
          kind: "flag"
        })
      )
})

const dtypeFlag = (name: string) =>
  Flag.mapEffect(Flag.String(name), (value) =>
    Schema.is(DType)(value)
      ? Effect.succeed(value)
      : Effect.fail(
          new CliError.InvalidValue({ option: name, value, expected: `one of ${dtypes.join(", ")}`, kind: "flag" })
        )
  )

export const meshConfig = {
  fromMesh: meshFlag("from-mesh").pipe(
    Flag.withDescription(
      "Source mesh and placements, as in 2x4:S0,R: R replicate, S0 shard dimension 0, SS(0,2) strided, P(sum) partial"
    ),
    Flag.optional
  ),
  toMesh: meshFlag("to-mesh").pipe(
    Flag.withDescription(
      "Destination mesh; ranks count up from 0 on both sides unless stated, as in 8@8:S1 or 4@3,1,0,2:R"
    ),
    Flag.optional
  ),
  sourceChoice: Flag.Literals("source-choice", SourceChoice.literals).pipe(
    Flag.withDescription("Which of several ranks that hold a shard sends to whom (balanced by default)"),
    Flag.optional
  ),
  bucketBytes: Flag.Int("bucket-bytes").pipe(
    Flag.withDescription(
      "Most bytes of a bucket with more than one chunk (by default 32 MiB in plans; in transfers, what free memory and the link suggest)"
    ),
    Flag.withSchema(Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 2 ** 40 }))),
    Flag.optional
  )
}

export const meshTensorConfig = {
  shape: shapeFlag.pipe(
    Flag.withDescription("Shape of the whole tensor on the meshes, as in 4096x4096"),
    Flag.optional
  ),
  dtype: dtypeFlag("dtype").pipe(
    Flag.withDescription("Element type of the tensor on the meshes (bfloat16 by default)"),
    Flag.optional
  ),
  toDtype: dtypeFlag("to-dtype").pipe(
    Flag.withDescription("Element type of the destination on the meshes, where it is another"),
    Flag.optional
  )
}

export interface MeshFlags {
  readonly fromMesh: Option.Option<MeshLayout>
  readonly toMesh: Option.Option<MeshLayout>
  readonly sourceChoice: Option.Option<SourceChoice>
  readonly bucketBytes: Option.Option<number>
}

const nameOf = (key: string): string => `--${key.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`

/** Names of the flags that were given, among those of `config`. */
export const statedFlags = (config: object, flags: object): ReadonlyArray<string> =>
  Object.keys(config).flatMap((key) => {
    const value = (flags as Readonly<Record<string, unknown>>)[key]
    return Option.isOption(value) && Option.isSome(value) ? [nameOf(key)] : []
  })

export const usage = (detail: string, remedy: string) => modelError("InvalidUsage", { detail, remedy })

/** Both meshes, or which of them is missing. */
export const chooseMeshes = Effect.fnUntraced(function* (flags: MeshFlags) {
  if (Option.isNone(flags.fromMesh) || Option.isNone(flags.toMesh)) {
    return yield* usage(
      `No ${Option.isNone(flags.fromMesh) ? "--from-mesh" : "--to-mesh"} is stated.`,
      "Pass both, as in --from-mesh 2x4:S0,R --to-mesh 8:S1."
    )
  }
  return {
    from: flags.fromMesh.value,
    to: flags.toMesh.value,
    sourceChoice: Option.getOrElse(flags.sourceChoice, (): SourceChoice => "balanced"),
    ...(Option.isSome(flags.bucketBytes) ? { bucketBytes: flags.bucketBytes.value } : {})
  } satisfies MeshChoice
})
