// SPDX-License-Identifier: Apache-2.0
/** The degrees of parallelism that a structure bears, whole or one of its parts. */
import * as Result from "effect/Result"
import type { ModelStructure, Module, ModuleKind } from "../describe/ModelStructure.ts"
import { type CutChoice, moduleCuts } from "./cuts.ts"

/** Degrees that are looked at: all small ones, and what large machines use. */
const candidates: ReadonlyArray<number> = [
  ...Array.from({ length: 64 }, (_, at) => at + 1),
  72,
  80,
  96,
  128,
  144,
  160,
  192,
  256
]

/** One module of each kind: others of the kind are cut alike. */
export const kindsOf = (modules: ReadonlyArray<Module>): ReadonlyMap<ModuleKind, Module> => {
  const found = new Map<ModuleKind, Module>()
  for (const module of modules) if (!found.has(module.kind)) found.set(module.kind, module)
  return found
}

/** Degrees by which all of these modules can be cut. */
export const degreesOf = (modules: Iterable<Module>, choice: CutChoice): ReadonlyArray<number> => {
  const all = [...modules].filter(
    ({ kind }) => kind.form.uncut !== undefined || kind.runs.some((runs) => runs.length > 0)
  )
  return candidates.filter((degree) =>
    all.every(({ kind, tensors }) =>
      Result.isSuccess(
        moduleCuts(
          kind,
          tensors.map(({ shape }) => shape),
          degree,
          choice
        )
      )
    )
  )
}

/** Degrees of each kind of parallelism that a model bears, and what limits them. */
export interface LegalDegrees {
  /** Of everything that is not an expert. */
  readonly tp: ReadonlyArray<number>
  /** Of one expert; empty where there are none. */
  readonly etp: ReadonlyArray<number>
}

/** Degrees that the whole model bears. */
export const legalDegrees = (structure: ModelStructure, choice: CutChoice): LegalDegrees => {
  const kinds = [...kindsOf(structure.modules).values()]
  const isExpert = ({ expert, kind }: Module): boolean => expert !== undefined || kind.expertDim !== undefined
  const experts = kinds.filter(isExpert)
  return {
    tp: degreesOf(
      kinds.filter((module) => !isExpert(module)),
      choice
    ),
    etp: experts.length === 0 ? [] : degreesOf(experts, choice)
  }
}

const mostShown = 16

/** `1, 2, 4, 8`; long lists end with dots. */
export const formatDegrees = (degrees: ReadonlyArray<number>, most = mostShown): string =>
  degrees.length === candidates.length
    ? "any degree"
    : degrees.slice(0, most).join(", ") + (degrees.length > most ? ", ..." : "")
