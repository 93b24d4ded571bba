// SPDX-License-Identifier: Apache-2.0
/**
 * Refit sessions: versions bound to content, aliases, groups, caches, forms, pauses, readers, two places; each kind of fault
 * that updates of running models are known for.
 */
import { assert, describe, it } from "@effect/vitest"
import { make } from "@tensorferry/testing/ReferenceEngine"
import { runCluster } from "@tensorferry/testing/VirtualCluster"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as Scope from "effect/Scope"
import type { RefitError, RefitReason } from "../../src/refit/RefitError.ts"
import { makeRefitSession, type RefitSession } from "../../src/refit/RefitSession.ts"
import type { KernelForm, RefitSpec } from "../../src/refit/RefitSpec.ts"
import { executeReshardPlan } from "../../src/reshard/executeReshardPlan.ts"
import { TensorEngine, type TensorEngineShape, type TensorError, tensorError } from "../../src/service/TensorEngine.ts"
import { mxfp8Recipe, type QuantizedTensor } from "../../src/tensor/QuantizedTensor.ts"
import type { Tensor } from "../../src/tensor/Tensor.ts"
import { tensorDict } from "../../src/tensor/TensorDict.ts"
import { plansOf, rosterOf } from "../reshard/executeSupport.ts"
import { floats, setValues, smallWeights, valuesOf } from "./refitSupport.ts"

const withEngine = <A, E>(program: (engine: TensorEngineShape) => Effect.Effect<A, E, TensorEngine | Scope.Scope>) => {
  const engine = make()
  return Effect.scoped(Effect.provideService(program(engine), TensorEngine, engine))
}

const refused = <A, R>(effect: Effect.Effect<A, RefitError | TensorError, R>, tag: RefitReason["_tag"]) =>
  Effect.map(Effect.flip(effect), (error) => {
    assert.strictEqual(error.reason._tag, tag, error.message)
    return error.message
  })

const count = (more: () => number) => Effect.asVoid(Effect.sync(more))

/** An update of the small weights, committed. */
const commitWeights = (
  session: RefitSession,
  engine: TensorEngineShape,
  label: string,
  a: ReadonlyArray<number>,
  b: ReadonlyArray<number>
) =>
  Effect.gen(function* () {
    yield* session.begin({ label })
    yield* session.add("a", yield* floats(engine, a))
    yield* session.add("b", yield* floats(engine, b))
    return yield* session.commit()
  })

describe("content", () => {
  it.effect("a version is its content: the same again changes nothing, and is warned of when it goes on", () =>
    withEngine((engine) =>
      Effect.gen(function* () {
        const { a, b, tensors } = yield* smallWeights(engine)
        let refreshes = 0
        const session = yield* makeRefitSession({
          tensors,
          caches: [{ name: "prefix", refresh: () => count(() => refreshes++) }]
        })
        const update = (label: string, first: number, pieces: number) =>
          Effect.gen(function* () {
            yield* session.begin({ label })
            const values = [first, 2, 3, 4]
            for (let at = 0; at < 4; at += 4 / pieces) {
              const part = values.slice(at, at + 4 / pieces)
              yield* session.add("a", yield* floats(engine, part), { region: [[at, at + part.length]] })
            }
            yield* session.add("b", yield* floats(engine, [5, 6, 7]))
            return yield* session.commit()
          })
        const one = yield* update("1", 1, 1)
        assert.isTrue(one.changed)
        assert.deepStrictEqual(
          [valuesOf(a), valuesOf(b)],
          [
            [1, 2, 3, 4],
            [5, 6, 7]
          ]
        )
        a.storage.bytes!.fill(0x11, 0, 4)
        const same = yield* update("2", 1, 4)
        // Nothing was touched, not even what somebody else wrote.
        assert.deepStrictEqual(
          [same.changed, same.published, same.caches, same.version],
          [false, "nothing", [], one.version]
        )
        assert.strictEqual(a.storage.bytes![0], 0x11)
        assert.strictEqual(refreshes, 1)
        assert.deepStrictEqual(same.warnings, [])
        const third = yield* update("3", 1, 2)
        assert.deepStrictEqual(
          third.warnings.map(({ kind }) => kind),
          ["Repeated"]
        )
        const changed = yield* update("4", 9, 2)
        assert.deepStrictEqual([changed.changed, changed.warnings, refreshes], [true, [], 2])
        assert.notStrictEqual(changed.version.id, one.version.id)
        assert.strictEqual((yield* update("5", 1, 4)).version.id, one.version.id)
      })
    )
  )

  it.effect("a patch names its base, and a version that was never committed is refused as base", () =>
    withEngine((engine) =>
      Effect.gen(function* () {
        const { a, tensors } = yield* smallWeights(engine)
        const session = yield* makeRefitSession({ tensors })
        yield* refused(session.begin({ label: "0", kind: "patch", base: "nothing" }), "WrongBase")
        yield* session.begin({ label: "1" })
        yield* session.add("a", yield* floats(engine, [0, 0, 0, 0]))
        yield* session.add("b", yield* floats(engine, [0, 0, 0]))
        const base = (yield* session.commit()).version.id
        const patch = (label: string, from: string, at: number, value: number) =>
          Effect.gen(function* () {
            yield* session.begin({ label, kind: "patch", base: from })
            yield* session.add("a", yield* floats(engine, [value]), { region: [[at, at + 1]] })
          })
        // The second is dropped on its way; the third was made on top of it.
        yield* patch("2", base, 1, 8)
        yield* session.abort()
        yield* refused(patch("3", "the second", 3, 9), "WrongBase")
        assert.deepStrictEqual(valuesOf(a), [0, 0, 0, 0])
        yield* patch("3", base, 3, 9)
        const third = yield* session.commit()
        // Of the aborted one nothing is left.
        assert.deepStrictEqual(valuesOf(a), [0, 0, 0, 9])
        yield* session.begin({ label: "full" })
        yield* session.add("b", yield* floats(engine, [1, 1, 1]))
        const message = yield* refused(session.commit(), "IncompleteUpdate")
        assert.match(message, /a \(0 of 4 elements\)/)
        const state = yield* session.state
        assert.isTrue(state.weights._tag === "Ready" && state.weights.version.id === third.version.id)
        yield* session.add("a", yield* floats(engine, [1, 1]), { region: [[0, 2]] })
        assert.match(yield* refused(session.commit(), "IncompleteUpdate"), /a \(2 of 4 elements\)/)
        yield* session.add("a", yield* floats(engine, [1, 1]), { region: [[2, 4]] })
        yield* refused(session.commit({ expected: "something else" }), "DigestMismatch")
        assert.deepStrictEqual(valuesOf(a), [0, 0, 0, 9])
        yield* session.commit()
        assert.deepStrictEqual(valuesOf(a), [1, 1, 1, 1])
      })
    )
  )

  it.effect("an empty update is refused, and so are elements that come twice", () =>
    withEngine((engine) =>
      Effect.gen(function* () {
        const { tensors } = yield* smallWeights(engine)
        const session = yield* makeRefitSession({ tensors })
        yield* session.begin({ label: "1" })
        yield* refused(session.commit(), "EmptyUpdate")
        yield* session.add("a", yield* floats(engine, [1, 2]), { region: [[0, 2]] })
        yield* refused(session.add("a", yield* floats(engine, [1, 2]), { region: [[1, 3]] }), "DuplicateRegion")
        yield* refused(session.add("a", yield* floats(engine, [1, 2, 3])), "TensorMismatch")
        yield* refused(session.add("a", yield* engine.allocate("bfloat16", [4])), "TensorMismatch")
        yield* session.add("a", yield* floats(engine, [1, 2]), { region: [[2, 4]] })
        yield* session.add("b", yield* floats(engine, [1, 2, 3]))
        yield* session.commit()
      })
    )
  )
})

describe("commands that come twice or never", () => {
  it.effect("a second start names the open update and changes nothing; a label moves nothing", () =>
    withEngine((engine) =>
      Effect.gen(function* () {
        const { a, tensors } = yield* smallWeights(engine)
        const session = yield* makeRefitSession({ tensors })
        const { id } = yield* session.begin({ label: "1" })
        yield* session.add("a", yield* floats(engine, [1, 2, 3, 4]))
        const before = yield* session.state
        assert.include(yield* refused(session.begin({ label: "again" }), "AlreadyOpen"), id)
        assert.deepStrictEqual(yield* session.state, before)
        yield* refused(session.commit({ id: "other" }), "NotOpen")
        yield* session.add("b", yield* floats(engine, [1, 2, 3]), { id })
        const { version } = yield* session.commit({ id })
        const seen = yield* session.use(({ version: started, weights }) =>
          Effect.gen(function* () {
            yield* session.relabel("renamed")
            assert.strictEqual(weights.tensors.get("a"), a)
            return started
          })
        )
        assert.strictEqual(seen.value.label, "1")
        assert.deepStrictEqual(
          seen.versions.map(({ id: content }) => content),
          [version.id, version.id]
        )
        assert.deepStrictEqual(valuesOf(a), [1, 2, 3, 4])
        yield* refused(session.abort(), "NotOpen")
      })
    )
  )

  it.effect("weights that were dropped are not used before they were loaded", () =>
    withEngine((engine) =>
      Effect.gen(function* () {
        const { tensors } = yield* smallWeights(engine)
        const session = yield* makeRefitSession({ tensors })
        const use = session.use(({ version }) => Effect.succeed(version.label))
        yield* refused(use, "NotReady")
        yield* refused(session.wake, "WrongState")
        yield* refused(session.sleep({ drop: true }), "WrongState")
        const load = Effect.gen(function* () {
          yield* session.begin({ label: "1" })
          yield* session.add("a", yield* floats(engine, [1, 2, 3, 4]))
          yield* session.add("b", yield* floats(engine, [1, 2, 3]))
          return yield* session.commit()
        })
        yield* load
        yield* session.sleep({ drop: false })
        yield* refused(session.sleep({ drop: true }), "WrongState")
        yield* refused(use, "NotReady")
        yield* session.wake
        assert.strictEqual((yield* use).value, "1")
        yield* session.sleep({ drop: true })
        yield* session.wake
        yield* refused(use, "NotReady")
        yield* refused(session.wake, "WrongState")
        // The same content again: it is written all the same, for it was dropped.
        assert.isTrue((yield* load).changed)
        assert.strictEqual((yield* use).value, "1")
      })
    )
  )

  it.effect("a commit in the middle of a reading does not rename it", () =>
    withEngine((engine) =>
      Effect.gen(function* () {
        const { tensors } = yield* smallWeights(engine)
        const session = yield* makeRefitSession({ tensors })
        const load = (label: string, value: number) =>
          Effect.gen(function* () {
            yield* session.begin({ label })
            yield* session.add("a", yield* floats(engine, [value, 0, 0, 0]))
            yield* session.add("b", yield* floats(engine, [1, 2, 3]))
            yield* session.commit()
          })
        yield* load("7", 7)
        const { value, versions } = yield* session.use(({ version }) => Effect.as(load("8", 8), version.label))
        assert.strictEqual(value, "7")
        assert.deepStrictEqual(
          versions.map(({ label }) => label),
          ["7", "8"]
        )
      })
    )
  )
})

describe("names", () => {
  it.effect("a tied tensor with memory of its own follows the one that it is tied to", () =>
    withEngine((engine) =>
      Effect.gen(function* () {
        const [embed, head, extra] = [
          yield* floats(engine, [0, 0, 0, 0]),
          yield* floats(engine, [0, 0, 0, 0]),
          yield* floats(engine, [0])
        ]
        const entry = (live: Tensor) => ({ dtype: "float32" as const, shape: live.shape, live })
        const session = yield* makeRefitSession({
          tensors: new Map([
            ["embed", entry(embed)],
            ["lm_head", entry(head)],
            ["mtp.lm_head", entry(extra)]
          ]),
          aliases: new Map([["lm_head", "embed"]]),
          unknown: "warn"
        })
        yield* session.begin({ label: "1" })
        yield* session.add("embed", yield* floats(engine, [1, 2, 3, 4]))
        yield* session.add("lm_head", yield* floats(engine, [1, 2, 3, 4]))
        yield* session.add("mtp.lm_head", yield* floats(engine, [5]))
        const full = yield* session.commit()
        // Declared aliases raise no alarm.
        assert.deepStrictEqual(full.warnings, [])
        assert.deepStrictEqual([valuesOf(embed), valuesOf(head), valuesOf(extra)], [[1, 2, 3, 4], [1, 2, 3, 4], [5]])
        yield* session.begin({ label: "2", kind: "patch", base: full.version.id })
        yield* session.add("embed", yield* floats(engine, [9]), { region: [[3, 4]] })
        yield* session.add("visual.head", yield* floats(engine, [9]))
        const patched = yield* session.commit()
        assert.deepStrictEqual(
          [valuesOf(embed), valuesOf(head)],
          [
            [1, 2, 3, 9],
            [1, 2, 3, 9]
          ]
        )
        assert.deepStrictEqual(
          patched.warnings.map(({ kind, detail }) => `${kind} ${detail}`),
          ["UnknownTensor The session has no tensor visual.head."]
        )
        yield* session.begin({ label: "3", kind: "patch", base: patched.version.id })
        yield* session.add("embed", yield* floats(engine, [7, 7, 7, 7]))
        yield* session.add("lm_head", yield* floats(engine, [7, 7, 7, 8]))
        yield* refused(session.commit(), "AliasMismatch")
      })
    )
  )

  it.effect("an expected group that never comes is an error, as is a master copy left out", () =>
    withEngine((engine) =>
      Effect.gen(function* () {
        const live = () => floats(engine, [0, 0])
        const tensors: RefitSpec["tensors"] = new Map([
          ["w", { dtype: "float32", shape: [2], live: yield* live() }],
          ["w.master", { dtype: "float32", shape: [2], live: yield* live() }],
          ["w.lora", { dtype: "float32", shape: [2], live: yield* live(), group: "adapter" }]
        ])
        const session = yield* makeRefitSession({ tensors, groups: ["base", "adapter"] })
        yield* session.begin({ label: "1" })
        yield* session.add("w", yield* floats(engine, [1, 2]))
        assert.match(yield* refused(session.commit(), "GroupMissing"), /adapter/)
        yield* session.add("w.lora", yield* floats(engine, [3, 4]))
        assert.match(yield* refused(session.commit(), "IncompleteUpdate"), /w\.master/)
        yield* session.add("w.master", yield* floats(engine, [1, 2]))
        const { version } = yield* session.commit()
        // Only the frozen base, again and again: the adapter is what was to change.
        yield* session.begin({ label: "2", kind: "patch", base: version.id })
        yield* session.add("w", yield* floats(engine, [1, 2]))
        yield* refused(session.commit(), "GroupMissing")
        yield* refused(session.add("w.other", yield* floats(engine, [1, 2])), "UnknownTensor")
      })
    )
  )

  it.effect("sessions that cannot work are refused when they are made", () =>
    withEngine((engine) =>
      Effect.gen(function* () {
        const { tensors } = yield* smallWeights(engine)
        const specs: ReadonlyArray<RefitSpec> = [
          { tensors, caches: [{ name: "prefix" }] },
          { tensors, groups: ["adapter"] },
          { tensors, aliases: new Map([["head", "embed"]]) },
          { tensors, publish: "exchange" },
          { tensors: new Map([["a", { ...tensors.get("a")!, shape: [2, 2] }]]) }
        ]
        for (const spec of specs) yield* refused(makeRefitSession(spec), "InvalidSpec")
      })
    )
  )
})

/** Rows in halves that change places, as kernels like to have them. */
const swapped: KernelForm = {
  id: "halves swapped",
  pack: (wire, live) => halves(wire, live as Tensor),
  unpack: (live, wire) => halves(live as Tensor, wire)
}
const halves = (from: Tensor, to: Tensor) =>
  Effect.flatMap(TensorEngine, (engine) => {
    const half = from.shape[0]! / 2
    const part = (tensor: Tensor, at: number): Tensor => ({
      ...tensor,
      shape: [half],
      byteOffset: tensor.byteOffset + 4 * at
    })
    return engine.copy([
      { dst: part(to, 0), src: part(from, half) },
      { dst: part(to, half), src: part(from, 0) }
    ])
  })

describe("forms", () => {
  it.effect("a tensor in kernel form has the same bytes after every update, however it is cut", () =>
    withEngine((engine) =>
      Effect.gen(function* () {
        const live = yield* floats(engine, [0, 0, 0, 0])
        const address = live.storage.address
        const session = yield* makeRefitSession({
          tensors: new Map([["gate", { dtype: "float32", shape: [4], live, form: swapped }]])
        })
        for (let round = 0; round < 3; round++) {
          for (const pieces of [1, 2, 4]) {
            const values = [1, 2, 3, 4].map((value) => value + 10 * round + pieces)
            yield* session.begin({ label: `${round}` })
            const order = Array.from({ length: pieces }, (_, at) => at).sort((x, y) =>
              round % 2 === 0 ? x - y : y - x
            )
            for (const at of order) {
              const [from, to] = [(at * 4) / pieces, ((at + 1) * 4) / pieces]
              yield* session.add("gate", yield* floats(engine, values.slice(from, to)), { region: [[from, to]] })
            }
            yield* session.commit()
            assert.deepStrictEqual(valuesOf(live), [...values.slice(2), ...values.slice(0, 2)])
            assert.strictEqual(live.storage.address, address)
            // Compared by what it stands for, not by its bytes.
            const logical = yield* floats(engine, [0, 0, 0, 0])
            yield* session.readLogical("gate", logical)
            assert.deepStrictEqual(valuesOf(logical), values)
          }
        }
        // Bytes that are in kernel form already would skip the form: they are not taken.
        yield* session.begin({ label: "direct" })
        yield* refused(session.add("gate", yield* floats(engine, [1, 2, 3, 4]), { form: swapped.id }), "TensorMismatch")
        yield* session.abort()
      })
    )
  )

  it.effect("the type in use may differ from the one that travels, any number of times; quantized too", () =>
    withEngine((engine) =>
      Effect.gen(function* () {
        const live = yield* engine.allocate("bfloat16", [4])
        const data = yield* engine.allocate("float8_e4m3fn", [2, 64])
        const scale = yield* engine.allocate("float8_e8m0fnu", [512])
        const quantized: QuantizedTensor = {
          _tag: "QuantizedTensor",
          data,
          scale,
          recipe: mxfp8Recipe("rceil", "swizzled")
        }
        const session = yield* makeRefitSession({
          tensors: new Map([
            ["w", { dtype: "float32", shape: [4], live }],
            ["q", { dtype: "bfloat16", shape: [2, 64], live: quantized }]
          ])
        })
        const bytes: Array<string> = []
        for (let round = 0; round < 4; round++) {
          const wide = yield* engine.allocate("bfloat16", [2, 64])
          yield* engine.fill(wide, round % 2 === 0 ? 0x3c : 0x3d)
          yield* session.begin({ label: `${round}` })
          yield* session.add("w", yield* floats(engine, [1.0625, -2, 3, 4]))
          yield* session.add("q", wide)
          assert.isTrue((yield* session.commit()).changed)
          assert.strictEqual(live.dtype, "bfloat16")
          bytes.push(Buffer.concat([live.storage.bytes!, data.storage.bytes!, scale.storage.bytes!]).toString("hex"))
        }
        assert.strictEqual(bytes[0], bytes[2])
        assert.strictEqual(bytes[1], bytes[3])
        assert.notStrictEqual(bytes[0], bytes[1])
      })
    )
  )
})

describe("caches", () => {
  it.effect(
    "are rebuilt once per commit, after the last of what they are made of, whatever the cutting and order",
    () =>
      withEngine((engine) =>
        Effect.gen(function* () {
          const { a, b, tensors } = yield* smallWeights(engine)
          const derived: Array<number> = []
          const session = yield* makeRefitSession({
            tensors,
            caches: [
              {
                name: "a + b",
                refresh: ({ tensors: weights }) =>
                  Effect.sync(() => {
                    assert.strictEqual(weights.get("a"), a)
                    derived.push(valuesOf(a)[0]! + valuesOf(b)[0]!)
                  })
              }
            ]
          })
          let round = 0
          for (const order of [
            ["a", "b"],
            ["b", "a"]
          ] as const) {
            for (const pieces of [1, 3]) {
              round += 1
              yield* session.begin({ label: `${round}` })
              for (const name of order) {
                const values = name === "a" ? [round, 0, 0, 0] : [100 * round, 0, 0]
                for (let at = 0; at < values.length; at += Math.ceil(values.length / pieces)) {
                  const part = values.slice(at, at + Math.ceil(values.length / pieces))
                  yield* session.add(name, yield* floats(engine, part), { region: [[at, at + part.length]] })
                }
              }
              assert.strictEqual(derived.length, round - 1)
              yield* session.commit()
            }
          }
          assert.deepStrictEqual(derived, [101, 202, 303, 404])
        })
      )
  )
})

describe("failures", () => {
  it.effect("a pause that fails leaves the old version running, and the next round works", () =>
    withEngine((engine) =>
      Effect.gen(function* () {
        const { a, tensors } = yield* smallWeights(engine)
        const log: Array<string> = []
        let works = true
        const session = yield* makeRefitSession({
          tensors,
          pause: Effect.suspend(() => {
            log.push("pause")
            return works ? Effect.void : Effect.fail({ message: "requests do not end" })
          }),
          resume: Effect.sync(() => void log.push("resume"))
        })
        const update = (label: string, value: number) =>
          commitWeights(session, engine, label, [value, 0, 0, 0], [0, 0, 0])
        yield* update("1", 1)
        works = false
        assert.match(yield* refused(update("2", 2), "CommitFailed"), /requests do not end/)
        const state = yield* session.state
        assert.isTrue(state.open === undefined && state.weights._tag === "Ready" && state.weights.version.label === "1")
        assert.deepStrictEqual(valuesOf(a), [1, 0, 0, 0])
        works = true
        yield* update("3", 3)
        assert.deepStrictEqual(valuesOf(a), [3, 0, 0, 0])
        assert.deepStrictEqual(log, ["pause", "resume", "pause", "pause", "resume"])
      })
    )
  )

  for (const publish of ["copy", "exchange"] as const) {
    it.effect(`${publish}: a cache that cannot be rebuilt`, () =>
      withEngine((engine) =>
        Effect.gen(function* () {
          const { a, tensors } = yield* smallWeights(engine, true)
          let works = true
          let resumed = 0
          const session = yield* makeRefitSession({
            tensors,
            publish,
            resume: count(() => resumed++),
            caches: [
              { name: "graphs", refresh: () => (works ? Effect.void : Effect.fail({ message: "capture failed" })) }
            ]
          })
          const update = (label: string, value: number) =>
            commitWeights(session, engine, label, [value, 0, 0, 0], [0, 0, 0])
          const read = session.use(({ version, weights }) =>
            Effect.succeed([version.label, valuesOf(weights.tensors.get("a") as Tensor)[0]])
          )
          const first = yield* update("1", 1)
          assert.strictEqual(first.addressesChanged, publish === "exchange")
          works = false
          assert.match(yield* refused(update("2", 2), "CommitFailed"), /graphs.*capture failed/)
          assert.strictEqual(resumed, 2)
          if (publish === "exchange") assert.deepStrictEqual((yield* read).value, ["1", 1])
          else yield* refused(read, "NotReady")
          // A patch could not mend weights that were half written.
          if (publish === "copy") {
            yield* refused(session.begin({ label: "p", kind: "patch", base: first.version.id }), "WrongBase")
          }
          works = true
          yield* update("3", 3)
          assert.deepStrictEqual((yield* read).value, ["3", 3])
          if (publish === "copy") assert.deepStrictEqual(valuesOf(a), [3, 0, 0, 0])
        })
      )
    )
  }

  it.effect("an engine that fails while data arrives closes the update; the old version stays", () => {
    const reference = make()
    let works = true
    const engine: TensorEngineShape = {
      ...reference,
      copy: (moves) =>
        works
          ? reference.copy(moves)
          : Effect.fail(tensorError("DeviceFailure", { detail: "The device fell off.", remedy: "Put it back." }))
    }
    return Effect.scoped(
      Effect.gen(function* () {
        const { a, tensors } = yield* smallWeights(engine)
        const session = yield* makeRefitSession({ tensors })
        yield* session.begin({ label: "1" })
        yield* session.add("a", yield* floats(engine, [1, 2, 3, 4]))
        yield* session.add("b", yield* floats(engine, [1, 2, 3]))
        const { version } = yield* session.commit()
        yield* session.begin({ label: "2" })
        works = false
        yield* refused(session.add("a", yield* floats(engine, [9, 9, 9, 9])), "CommitFailed")
        works = true
        yield* refused(session.commit(), "NotOpen")
        assert.deepStrictEqual(valuesOf(a), [1, 2, 3, 4])
        // What the failed one may have written is no part of a patch.
        yield* session.begin({ label: "3", kind: "patch", base: version.id })
        yield* session.add("a", yield* floats(engine, [5]), { region: [[0, 1]] })
        yield* session.commit()
        assert.deepStrictEqual(valuesOf(a), [5, 2, 3, 4])
      })
    ).pipe(Effect.provideService(TensorEngine, engine))
  })
})

describe("two places", () => {
  it.live("readers keep theirs until they end; the next commit waits for them", () =>
    withEngine((engine) =>
      Effect.gen(function* () {
        const { tensors } = yield* smallWeights(engine, true)
        const session = yield* makeRefitSession({ tensors, publish: "exchange" })
        const update = (label: string, value: number) =>
          commitWeights(session, engine, label, [value, value, value, value], [value, value, value])
        yield* update("1", 1)
        const started = yield* Deferred.make<void>()
        const end = yield* Deferred.make<void>()
        const reader = yield* Effect.forkChild(
          session.use(({ weights }) =>
            Effect.gen(function* () {
              yield* Deferred.succeed(started, undefined)
              yield* Deferred.await(end)
              return valuesOf(weights.tensors.get("a") as Tensor)
            })
          )
        )
        yield* Deferred.await(started)
        yield* update("2", 2)
        const third = yield* Effect.forkChild(update("3", 3), { startImmediately: true })
        yield* Effect.yieldNow
        const state = yield* session.state
        assert.isTrue(state.weights._tag === "Ready" && state.weights.version.label === "2")
        yield* Deferred.succeed(end, undefined)
        const { value, versions } = yield* Fiber.join(reader)
        assert.deepStrictEqual(value, [1, 1, 1, 1])
        assert.deepStrictEqual(versions.map(({ label }) => label).slice(0, 2), ["1", "2"])
        yield* Fiber.join(third)
        const now = yield* session.use(({ weights }) => Effect.succeed(valuesOf(weights.tensors.get("b") as Tensor)))
        assert.deepStrictEqual(now.value, [3, 3, 3])
      })
    )
  )

  it.live("a reader that does not end makes the commit fail in time, and nothing else", () =>
    withEngine((engine) =>
      Effect.gen(function* () {
        const { tensors } = yield* smallWeights(engine, true)
        const session = yield* makeRefitSession({ tensors, publish: "exchange" }, { readerDeadline: "20 millis" })
        const update = (value: number) =>
          Effect.gen(function* () {
            yield* session.begin({ label: `${value}` })
            yield* session.add("a", yield* floats(engine, [value, 0, 0, 0]))
            yield* session.add("b", yield* floats(engine, [0, 0, 0]))
            return yield* session.commit()
          })
        yield* update(1)
        const { value } = yield* session.use(({ weights }) =>
          Effect.gen(function* () {
            yield* update(2)
            yield* refused(update(3), "DeadlineExceeded")
            return valuesOf(weights.tensors.get("a") as Tensor)[0]
          })
        )
        assert.strictEqual(value, 1)
        const after = yield* session.use(({ version }) => Effect.succeed(version.label))
        assert.strictEqual(after.value, "2")
        yield* update(4)
      })
    )
  )
})

describe("over a plan", () => {
  it.live("what ranks receive is committed as a whole, three rounds, and twice is refused", () => {
    const plans = plansOf(rosterOf(2), rosterOf(1, { firstRank: 2 }), 3)
    return runCluster({ size: 3 }, (rank) =>
      Effect.gen(function* () {
        const engine = yield* TensorEngine
        const plan = plans[rank]!
        const live = new Map<string, Tensor>()
        for (const { name, shape, dtype } of plan.destinationTensors)
          live.set(name, yield* engine.allocate(dtype, shape))
        const tensors: RefitSpec["tensors"] = new Map(
          plan.destinationTensors.map(({ name, shape, dtype }) => [name, { dtype, shape, live: live.get(name)! }])
        )
        const session = live.size === 0 ? undefined : yield* makeRefitSession({ tensors })
        for (let round = 0; round < 3; round++) {
          const entries: Array<readonly [string, Tensor]> = []
          for (const { name, shape, dtype } of plan.sourceTensors) {
            const tensor = yield* engine.allocate(dtype, shape)
            setValues(
              tensor,
              Array.from({ length: tensor.storage.byteLength / 4 }, (_, at) => at + round)
            )
            entries.push([name, tensor])
          }
          if (session === undefined) {
            yield* executeReshardPlan(plan, tensorDict(entries))
            continue
          }
          yield* session.begin({ label: `${round}` })
          yield* session.receive(plan)
          const again = yield* Effect.flip(session.receive(plan))
          assert.strictEqual(again.reason._tag, "DuplicateRegion")
          const { changed, tensors: written } = yield* session.commit()
          assert.isTrue(changed)
          assert.strictEqual(written.length, live.size)
          assert.strictEqual(valuesOf(live.get("norm.weight")!)[0], round)
        }
      })
    )
  })
})
