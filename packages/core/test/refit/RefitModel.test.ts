// SPDX-License-Identifier: Apache-2.0
/**
 * The session against a model of a few variables, over random sequences of commands: what is refused, what is in use, what
 * it holds, and that a refusal changes nothing.
 */

import { assert, describe, it } from "@effect/vitest"
import { make } from "@tensorferry/testing/ReferenceEngine"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import fc from "fast-check"
import type { RefitError } from "../../src/refit/RefitError.ts"
import { makeRefitSession, type RefitSession } from "../../src/refit/RefitSession.ts"
import { TensorEngine, type TensorEngineShape, type TensorError } from "../../src/service/TensorEngine.ts"
import type { Tensor } from "../../src/tensor/Tensor.ts"
import { floats, smallWeights, valuesOf } from "./refitSupport.ts"

interface Content {
  readonly a: ReadonlyArray<number>
  readonly b: ReadonlyArray<number>
}

interface Update {
  readonly id: string
  readonly label: string
  readonly kind: "full" | "patch"
  /** What a patch was begun upon: it stays, in wire form, also where the weights in use are dropped meanwhile. */
  readonly base: Content | undefined
  /** Elements of a and b as they would be, undefined where they did not come. */
  readonly a: Array<number | undefined>
  readonly b: Array<number | undefined>
}

interface Model {
  /** Values in use, by content; undefined where nothing is usable. */
  current: (Content & { readonly label: string }) | undefined
  asleep: "no" | "kept" | "dropped"
  open: Update | undefined
  commits: number
}

interface Real {
  readonly engine: TensorEngineShape
  readonly session: RefitSession
  readonly scope: Scope.Closeable
  refreshes: number
  works: boolean
}

const run = <A>(real: Real, effect: Effect.Effect<A, RefitError | TensorError, TensorEngine | Scope.Scope>) =>
  Effect.runPromise(Effect.result(Effect.provideService(Scope.provide(effect, real.scope), TensorEngine, real.engine)))

type Command = fc.AsyncCommand<Model, Real>

const tagOf = (result: Result.Result<unknown, RefitError | TensorError>): string =>
  Result.isSuccess(result) ? "done" : result.failure.reason._tag

/** What is in use is what the model says, after every command. */
const expectSame = async (model: Model, real: Real): Promise<void> => {
  const used = await run(
    real,
    real.session.use(({ version, weights }) =>
      Effect.sync(() => ({
        label: version.label,
        a: valuesOf(weights.tensors.get("a") as Tensor),
        b: valuesOf(weights.tensors.get("b") as Tensor)
      }))
    )
  )
  const isUsable = model.current !== undefined && model.asleep === "no"
  assert.strictEqual(tagOf(used), isUsable ? "done" : "NotReady")
  if (isUsable && Result.isSuccess(used)) assert.deepStrictEqual(used.success.value, model.current)
  const state = await run(real, real.session.state)
  assert.strictEqual(Result.isSuccess(state) && state.success.open?.id, model.open?.id ?? undefined)
  assert.strictEqual(real.refreshes, model.commits)
}

const command = (name: string, act: (model: Model, real: Real) => Promise<void>): Command => ({
  check: () => true,
  toString: () => name,
  run: async (model, real) => {
    await act(model, real)
    await expectSame(model, real)
  }
})

const begin = (label: string, kind: "full" | "patch", isRightBase: boolean) =>
  command(`begin ${kind} ${label}${isRightBase ? "" : " of a strange base"}`, async (model, real) => {
    const state = await run(real, real.session.state)
    const weights = Result.isSuccess(state) ? state.success.weights : undefined
    const here = weights !== undefined && "version" in weights ? weights.version.id : "none"
    const base = kind === "patch" ? { base: isRightBase ? here : "strange" } : {}
    const begun = await run(real, real.session.begin({ label, kind, ...base }))
    if (model.open !== undefined) return assert.strictEqual(tagOf(begun), "AlreadyOpen")
    const hasBase = model.current !== undefined && model.asleep !== "dropped" && isRightBase
    if (kind === "patch" && !hasBase) return assert.strictEqual(tagOf(begun), "WrongBase")
    assert.strictEqual(tagOf(begun), "done")
    const id = Result.isSuccess(begun) ? begun.success.id : ""
    const upon = kind === "patch" ? model.current : undefined
    model.open = { id, label, kind, base: upon, a: Array(4).fill(undefined), b: Array(3).fill(undefined) }
  })

const add = (name: "a" | "b", from: number, length: number, value: number) =>
  command(`add ${name}[${from}..${from + length}] = ${value}`, async (model, real) => {
    const size = name === "a" ? 4 : 3
    const to = Math.min(from + length, size)
    const values = Array.from({ length: Math.max(to - from, 0) }, () => value)
    if (values.length === 0) return
    const added = await run(
      real,
      Effect.flatMap(floats(real.engine, values), (tensor) => real.session.add(name, tensor, { region: [[from, to]] }))
    )
    if (model.open === undefined) return assert.strictEqual(tagOf(added), "NotOpen")
    const known = model.open[name]
    if (known.slice(from, to).some((element) => element !== undefined)) {
      return assert.strictEqual(tagOf(added), "DuplicateRegion")
    }
    assert.strictEqual(tagOf(added), "done")
    known.fill(value, from, to)
  })

const merged = (update: ReadonlyArray<number | undefined>, base: ReadonlyArray<number> | undefined) =>
  update.map((element, at) => element ?? base?.[at] ?? Number.NaN)

const commit = (cachesWork: boolean) =>
  command(cachesWork ? "commit" : "commit, the cache fails", async (model, real) => {
    real.works = cachesWork
    const result = await run(real, real.session.commit())
    const { open, current } = model
    if (open === undefined) return assert.strictEqual(tagOf(result), "NotOpen")
    const came = [...open.a, ...open.b]
    if (came.every((element) => element === undefined)) return assert.strictEqual(tagOf(result), "EmptyUpdate")
    if (open.kind === "full" && came.includes(undefined)) return assert.strictEqual(tagOf(result), "IncompleteUpdate")
    const next = { label: open.label, a: merged(open.a, open.base?.a), b: merged(open.b, open.base?.b) }
    model.open = undefined
    const isSame =
      current !== undefined &&
      model.asleep === "no" &&
      JSON.stringify([current.a, current.b]) === JSON.stringify([next.a, next.b])
    if (isSame) {
      assert.strictEqual(tagOf(result), "done")
      assert.isFalse(Result.isSuccess(result) && result.success.changed)
      return
    }
    // The old version stays, asleep or not.
    if (!cachesWork) return assert.strictEqual(tagOf(result), "CommitFailed")
    assert.isTrue(Result.isSuccess(result) && result.success.changed)
    model.current = next
    model.asleep = "no"
    model.commits += 1
  })

const abort = command("abort", async (model, real) => {
  assert.strictEqual(tagOf(await run(real, real.session.abort())), model.open === undefined ? "NotOpen" : "done")
  model.open = undefined
})

const sleep = (drop: boolean) =>
  command(drop ? "sleep and drop" : "sleep", async (model, real) => {
    const isAwake = model.current !== undefined && model.asleep === "no"
    assert.strictEqual(tagOf(await run(real, real.session.sleep({ drop }))), isAwake ? "done" : "WrongState")
    if (isAwake) model.asleep = drop ? "dropped" : "kept"
  })

const wake = command("wake", async (model, real) => {
  const isAsleep = model.current !== undefined && model.asleep !== "no"
  assert.strictEqual(tagOf(await run(real, real.session.wake)), isAsleep ? "done" : "WrongState")
  if (!isAsleep) return
  if (model.asleep === "dropped") model.current = undefined
  model.asleep = "no"
})

const relabel = (label: string) =>
  command(`relabel ${label}`, async (model, real) => {
    const isAwake = model.current !== undefined && model.asleep === "no"
    assert.strictEqual(tagOf(await run(real, real.session.relabel(label))), isAwake ? "done" : "NotReady")
    if (isAwake && model.current !== undefined) model.current = { ...model.current, label }
  })

const whole = (value: number) => [add("a", 0, 4, value), add("b", 0, 3, value)]

/** Several commands as one, so that random sequences come far. */
const together = (...parts: ReadonlyArray<Command>): Command => ({
  check: () => true,
  toString: () => parts.map(String).join(", "),
  run: async (model, real) => {
    for (const part of parts) await part.run(model, real)
  }
})

const commands = fc.commands(
  [
    fc.nat(5).map((value) => together(begin("load", "full", true), ...whole(value), commit(true))),
    fc
      .tuple(fc.nat(3), fc.nat(5), fc.constantFrom(commit(true), abort))
      .map(([at, value, end]) => together(begin("patch", "patch", true), add("a", at, 1, value), end)),
    fc
      .tuple(fc.constantFrom("one", "two", "three"), fc.constantFrom("full" as const, "patch" as const), fc.boolean())
      .map(([label, kind, right]) => begin(label, kind, right || kind === "full")),
    fc
      .tuple(fc.constantFrom("a" as const, "b" as const), fc.nat(3), fc.integer({ min: 1, max: 4 }), fc.nat(2))
      .map((input) => add(...input)),
    fc.nat(1).map((value) => whole(value)[0]!),
    fc.nat(1).map((value) => whole(value)[1]!),
    fc.boolean().map((fails) => commit(!fails)),
    fc.constant(commit(true)),
    fc.constant(abort),
    fc.boolean().map(sleep),
    fc.constant(wake),
    fc.constantFrom("x", "y").map(relabel)
  ],
  { size: "+1" }
)

const start = async (): Promise<{ readonly model: Model; readonly real: Real }> => {
  const engine = make()
  const scope = Scope.makeUnsafe()
  const real: { -readonly [K in keyof Real]?: Real[K] } = { engine, scope, refreshes: 0, works: true }
  const made = Effect.gen(function* () {
    const { tensors } = yield* smallWeights(engine, true)
    return yield* makeRefitSession({
      tensors,
      publish: "exchange",
      caches: [
        {
          name: "derived",
          refresh: () =>
            Effect.suspend(() => {
              if (real.works !== true) return Effect.fail({ message: "it was made to fail" })
              real.refreshes = (real.refreshes ?? 0) + 1
              return Effect.void
            })
        }
      ]
    })
  })
  const session = await Effect.runPromise(Effect.provideService(Scope.provide(made, scope), TensorEngine, engine))
  return {
    model: { current: undefined, asleep: "no", open: undefined, commits: 0 },
    real: Object.assign(real, { session }) as Real
  }
}

describe("the session follows its states", () => {
  const runs = isSoak ? 2000 : 60
  it(`${runs} random sequences of commands`, async () => {
    await fc.assert(
      fc.asyncProperty(commands, async (sequence) => {
        const made = await start()
        await fc.asyncModelRun(() => made, sequence)
        await Effect.runPromise(Scope.close(made.real.scope, Exit.void))
      }),
      { numRuns: runs, seed: 7 }
    )
  })
})
