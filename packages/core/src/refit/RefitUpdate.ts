// SPDX-License-Identifier: Apache-2.0
/**
 * What one open update has brought, and what speaks against it: names, shapes and forms when it comes, duplicates, and what
 * is missing at the end. Moves no bytes; refusals change nothing here.
 */
import * as Result from "effect/Result"
import type { Digest } from "../base/Digest.ts"
import { equalShapes, formatShape, type Region, regionShape } from "../base/Region.ts"
import { type AnyPlan, arrivals, opsOf } from "../planner/MeshOps.ts"
import { sliceTensor, type Tensor } from "../tensor/Tensor.ts"
import { describeMeeting, incomplete, RefitCoverage } from "./RefitCoverage.ts"
import { type RefitError, refitError } from "./RefitError.ts"
import { groupOf, type RefitSpec } from "./RefitSpec.ts"

/** Something odd about an update that does not keep it from being committed. */
export interface RefitWarning {
  readonly kind: "UnknownTensor" | "Repeated"
  readonly detail: string
}

/** What is to be done with a tensor that came. */
export type Admission =
  | { readonly _tag: "Copy"; readonly region: Region; readonly into: Tensor }
  /** An alias: compared at the end with what it stands for. */
  | { readonly _tag: "Compare" }
  | { readonly _tag: "Ignore" }

type Admitted<A> = Result.Result<A, RefitError>

const mismatch = (paramName: string, detail: string): Result.Result<never, RefitError> =>
  Result.fail(
    refitError("TensorMismatch", {
      paramName,
      detail,
      remedy: "Send what the session states: type, shape and wire form."
    })
  )

/** One update of a session, from its first byte to its commit or its end. */
export class RefitUpdate {
  readonly #spec: RefitSpec
  readonly #wire: ReadonlyMap<string, Tensor>
  readonly #added = new Map<string, RefitCoverage>()
  readonly #aliasDigests = new Map<string, Digest>()
  readonly #warnings: Array<RefitWarning> = []

  constructor(spec: RefitSpec, wire: ReadonlyMap<string, Tensor>) {
    this.#spec = spec
    this.#wire = wire
  }

  /** Tensors of which something came. */
  get names(): ReadonlyArray<string> {
    return [...this.#added.keys()]
  }

  get warnings(): ReadonlyArray<RefitWarning> {
    return this.#warnings
  }

  has(name: string): boolean {
    return this.#added.has(name)
  }

  cover(name: string, region: Region): void {
    const known = this.#added.get(name) ?? new RefitCoverage()
    known.add(region)
    this.#added.set(name, known)
  }

  noteAlias(name: string, digest: Digest): void {
    this.#aliasDigests.set(name, digest)
  }

  /** Refuses what was added before. */
  checkNew(name: string, region: Region): RefitError | undefined {
    const before = this.#added.get(name)?.meeting(region)
    if (before === undefined) return undefined
    return refitError("DuplicateRegion", {
      paramName: name,
      detail: describeMeeting(region, before),
      remedy: "Send every element once."
    })
  }

  admit(name: string, tensor: Tensor, region: Region | undefined, form: string | undefined): Admitted<Admission> {
    const aliased = this.#spec.aliases?.get(name)
    const target = this.#wire.get(aliased ?? name)
    if (target === undefined) {
      const detail = `The session has no tensor ${name}.`
      if (this.#spec.unknown === "warn") {
        this.#warnings.push({ kind: "UnknownTensor", detail })
        return Result.succeed({ _tag: "Ignore" })
      }
      const remedy = "Declare it as a tensor, or as an alias of the tensor that it is tied to."
      return Result.fail(refitError("UnknownTensor", { paramName: name, detail, remedy }))
    }
    if (form !== undefined && form !== "wire") {
      return mismatch(name, `It comes in the form ${form}; updates are written in wire form only.`)
    }
    const part = region ?? target.shape.map((length): readonly [number, number] => [0, length])
    const view = sliceTensor(target, part)
    if (Result.isFailure(view)) return mismatch(name, view.failure.detail)
    const wanted = { dtype: target.dtype, shape: regionShape(part) }
    if (tensor.dtype !== wanted.dtype || !equalShapes(tensor.shape, wanted.shape)) {
      const [came, travels] = [tensor, wanted].map(({ dtype, shape }) => `${dtype}${formatShape(shape)}`)
      return mismatch(name, `It came as ${came}; the session expects ${travels}.`)
    }
    if (aliased !== undefined) {
      return region === undefined
        ? Result.succeed({ _tag: "Compare" })
        : mismatch(name, `It is an alias of ${aliased}; send regions under that name.`)
    }
    const duplicate = this.checkNew(name, part)
    return duplicate === undefined
      ? Result.succeed({ _tag: "Copy", region: part, into: view.success })
      : Result.fail(duplicate)
  }

  /** Takes note of all that a plan brings, or says why it cannot come: before anything moves. */
  admitPlan(plan: AnyPlan): RefitError | undefined {
    const unknown = opsOf(plan).destinationTensors.find((tensor) => !this.#wire.has(tensor.name))
    if (unknown !== undefined) {
      return refitError("UnknownTensor", {
        paramName: unknown.name,
        detail: "The plan fills a tensor that the session does not have.",
        remedy: "Declare it."
      })
    }
    for (const { paramName, mySlice } of arrivals(plan)) {
      const duplicate = this.checkNew(paramName, mySlice)
      if (duplicate !== undefined) return duplicate
    }
    for (const { paramName, mySlice } of arrivals(plan)) this.cover(paramName, mySlice)
    return undefined
  }

  /** Refusals of a commit that more data may still answer. `found` has the digests of everything as it would be then. */
  lacking(kind: "full" | "patch", found: ReadonlyMap<string, Digest>): RefitError | undefined {
    if (this.#added.size === 0) {
      return refitError("EmptyUpdate", {
        detail: "The update is empty.",
        remedy: "Add tensors, or abort it."
      })
    }
    const brought = new Set(this.names.map((name) => groupOf(this.#spec.tensors.get(name)!)))
    const absent = this.#spec.groups?.find((group) => !brought.has(group))
    if (absent !== undefined) {
      return refitError("GroupMissing", {
        detail: `The update has no tensor of the group ${absent}.`,
        remedy: "Send every expected group."
      })
    }
    const shapes = [...this.#wire].map(([name, { shape }]) => [name, shape] as const)
    const missing = kind === "full" ? incomplete(shapes, this.#added) : []
    if (missing.length > 0) {
      const more = missing.length > 5 ? ` and ${missing.length - 5} more` : ""
      return refitError("IncompleteUpdate", {
        detail: `A full update covers everything; missing: ${missing.slice(0, 5).join(", ")}${more}.`,
        remedy: "Add the rest, or send it as a patch with its base."
      })
    }
    for (const [alias, digest] of this.#aliasDigests) {
      const target = this.#spec.aliases!.get(alias)!
      if (found.get(target) === digest) continue
      return refitError("AliasMismatch", {
        paramName: alias,
        detail: `It is an alias of ${target}, but came with other values.`,
        remedy: "Send both alike, or declare it as a tensor of its own."
      })
    }
    return undefined
  }
}
