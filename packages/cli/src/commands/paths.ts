// SPDX-License-Identifier: Apache-2.0
/**
 * Flags and arguments that name a file or a folder, so that help and the completions of shells know it.
 *
 * Contract: the value is what was typed. It may have a prefix, as megatron:DIR, or name what is not there yet; whoever uses it
 * resolves it and says what is wrong with it.
 */
import type * as Argument from "effect/cli/Argument"
import type * as Flag from "effect/cli/Flag"
import * as Param from "effect/cli/Param"
import * as Primitive from "effect/cli/Primitive"
import * as Effect from "effect/Effect"

/** What a shell offers; "path" is files and folders. */
export type PathKind = "file" | "folder" | "path"

const shellTypes = { file: "file", folder: "directory", path: "either" } as const

const param = <Kind extends Param.ParamKind>(kind: Kind, name: string, what: PathKind) =>
  Param.makeSingle({
    kind,
    name,
    primitiveType: { ...Primitive.Path(shellTypes[what]), parse: (typed) => Effect.succeed(typed) },
    typeName: what
  })

export const pathFlag = (name: string, what: PathKind): Flag.Flag<string> => param(Param.flagKind, name, what)

export const pathArgument = (name: string, what: PathKind): Argument.Argument<string> =>
  param(Param.argumentKind, name, what)
