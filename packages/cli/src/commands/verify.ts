// SPDX-License-Identifier: Apache-2.0
/** `tensorferry verify`: are two models the same, whatever layouts hold them? */
import { createHash } from "node:crypto"
import { byteLengthOf } from "@tensorferry/core/base/DType"
import { elementCount, equalShapes, formatShape, fullRegion } from "@tensorferry/core/base/Region"
import { formatElementDigest } from "@tensorferry/core/tensor/ElementDigest"
import { boundedRegions } from "@tensorferry/model/BoundedRegions"
import { distanceOf } from "@tensorferry/model/compareValues"
import { readQuantizationHint } from "@tensorferry/model/inputs/ConfigFile"
import { type LogicalTensor, logicalTensors } from "@tensorferry/model/LogicalTensors"
import type { Model } from "@tensorferry/model/Model"
import { modelError } from "@tensorferry/model/ModelError"
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type { DeviceChoice } from "../device/DeviceChoice.ts"
import { requireDevices } from "../device/requireDevices.ts"
import { withFailures } from "../output/CliFailure.ts"
import { makeProgressBar, progressFlag, progressMode } from "../output/ProgressBar.ts"
import { quiet } from "../output/quiet.ts"
import { counted, formatBytes, table } from "../text/Table.ts"
import { print, printText } from "../text/terminal.ts"
import { usage } from "./meshFlags.ts"
import { pathArgument } from "./paths.ts"
import { device, inputConfig, json, noteAbsent, openPlain } from "./shared.ts"

interface Verdict {
  readonly name: string
  readonly equal: boolean
  readonly detail: string
  readonly bytes: number
  /** Of the first model's tensor: SHA-256 over its dense bytes, or the digest of a device that was to compare them. */
  readonly digest: string
}

type Tensors = ReadonlyMap<string, Model["tensors"][number]>

const different = (name: string, detail: string): Verdict => ({ name, equal: false, detail, bytes: 0, digest: "" })

/** What differs without a look at bytes. */
const unlike = (
  [a, lefts]: readonly [Model, Tensors],
  [b, rights]: readonly [Model, Tensors],
  name: string
): Verdict | undefined => {
  const [left, right] = [lefts.get(name), rights.get(name)]
  if (left === undefined) return different(name, `only in ${b.path}`)
  if (right === undefined) return different(name, `only in ${a.path}`)
  return left.dtype === right.dtype && equalShapes(left.shape, right.shape)
    ? undefined
    : different(name, `${left.dtype}${formatShape(left.shape)} and ${right.dtype}${formatShape(right.shape)}`)
}

const differentByte = (name: string, at: number, one: number, two: number): Verdict =>
  different(name, `byte ${at} is ${one} and ${two}`)

const compareTensor = Effect.fnUntraced(function* (
  [a, lefts]: readonly [Model, Tensors],
  [b, rights]: readonly [Model, Tensors],
  name: string,
  onBytes: (bytes: number) => Effect.Effect<void> = () => Effect.void
) {
  const early = unlike([a, lefts], [b, rights], name)
  if (early !== undefined) return early
  const left = lefts.get(name)!
  const hash = createHash("sha256")
  let bytes = 0
  for (const piece of boundedRegions(left.dtype, fullRegion(left.shape))) {
    const [one, two] = [new Uint8Array(piece.end - piece.start), new Uint8Array(piece.end - piece.start)]
    yield* a.readRegion(name, piece.region, one)
    yield* b.readRegion(name, piece.region, two)
    if (Buffer.compare(one, two) !== 0) {
      const at = one.findIndex((byte, index) => byte !== two[index])
      return differentByte(name, piece.start + at, one[at]!, two[at]!)
    }
    hash.update(one)
    bytes += one.length
    yield* onBytes(bytes)
  }
  const verdict: Verdict = { name, equal: true, detail: "", bytes, digest: hash.digest("hex") }
  return verdict
})

/** Values instead of bytes: types may differ, and blocks with scales are the values that they stand for. */
const compareValues = Effect.fnUntraced(function* (
  [a, lefts]: readonly [Model, ReadonlyMap<string, LogicalTensor>],
  [b, rights]: readonly [Model, ReadonlyMap<string, LogicalTensor>],
  name: string,
  tolerance: number,
  compareStored: (name: string) => ReturnType<typeof compareTensor>
) {
  const [left, right] = [lefts.get(name), rights.get(name)]
  if (left === undefined) return different(name, `only in ${b.path}`)
  if (right === undefined) return different(name, `only in ${a.path}`)
  if (!equalShapes(left.shape, right.shape)) {
    return different(name, `${left.form}${formatShape(left.shape)} and ${right.form}${formatShape(right.shape)}`)
  }
  if (left.read === undefined || right.read === undefined) {
    // Codes that nobody here understands are equal only as bytes.
    const isSame = left.parts.join() === right.parts.join()
    const verdicts = isSame ? yield* Effect.forEach(left.parts, (part) => compareStored(part)) : []
    if (isSame && verdicts.every(({ equal }) => equal)) {
      const bytes = verdicts.reduce((sum, one) => sum + one.bytes, 0)
      return { name, equal: true, detail: "bit-identical codes", bytes, digest: "" } satisfies Verdict
    }
    return yield* modelError("Unsupported", {
      paramName: name,
      op: "verify",
      detail: `The values of ${left.form} and of ${right.form} cannot be compared.`,
      remedy: "Compare bytes without --tolerance, or dequantize both with the tool that quantized them."
    })
  }
  let [farthest, bytes] = [0, 0]
  for (const piece of boundedRegions("float32", fullRegion(left.shape))) {
    const [one, two] = [yield* left.read(piece.region), yield* right.read(piece.region)]
    const row = piece.region.length === 0 ? 1 : piece.region.at(-1)![1] - piece.region.at(-1)![0]
    const { relative, at } = distanceOf(one, two, row)
    if (relative > tolerance) {
      const place = piece.start / 4 + at
      return different(
        name,
        `element ${place} is ${one[at]} and ${two[at]}, ${relative.toPrecision(3)} of its block apart`
      )
    }
    farthest = Math.max(farthest, relative)
    bytes += one.byteLength
  }
  const verdict: Verdict = { name, equal: true, detail: `at most ${farthest.toPrecision(3)} apart`, bytes, digest: "" }
  return verdict
})

/** All tensors by digests of a device. */
const compareAllOnDevice = Effect.fnUntraced(function* (
  [a, lefts]: readonly [Model, Tensors],
  [b, rights]: readonly [Model, Tensors],
  choice: DeviceChoice
) {
  // Backends take long to load, for who compares on the host.
  const [{ compareOnDevice }, { deviceEngine }] = yield* Effect.promise(() =>
    Promise.all([import("../job/compareOnDevice.ts"), import("../job/deviceEngine.ts")])
  )
  const names = [...new Set([...lefts.keys(), ...rights.keys()])]
  const early = names.map((name) => unlike([a, lefts], [b, rights], name))
  const alike = names.filter((_, at) => early[at] === undefined).map((name) => lefts.get(name)!)
  const compared = yield* Effect.provide(compareOnDevice(a, b, alike), deviceEngine(choice))
  const found = new Map(alike.map(({ name }, at) => [name, compared[at]!]))
  return names.map((name, at): Verdict => {
    const one = found.get(name)
    if (one === undefined) return early[at]!
    const { bytes, difference, digest } = one
    return difference === undefined
      ? { name, equal: true, detail: "", bytes, digest: formatElementDigest(digest) }
      : differentByte(name, difference.at, difference.one, difference.two)
  })
})

const flags = {
  a: pathArgument("A", "path").pipe(
    Argument.withDescription("A model in any form that reshard reads: a .safetensors file, a folder of them, shards")
  ),
  b: pathArgument("B", "path").pipe(
    Argument.withDescription("The model that it is compared with, in the same or another form")
  ),
  ...inputConfig,
  tolerance: Flag.Finite("tolerance").pipe(
    Flag.withDescription(
      "Compare values, not bytes: types may differ, quantized weights are read by their scales, and values may differ by this fraction of the largest value in their block of 32"
    ),
    Flag.withSchema(Schema.Finite.check(Schema.isBetween({ minimum: 0, maximum: 1 }))),
    Flag.optional
  ),
  device: device.pipe(
    Flag.withDescription(
      "Compare by digests that this device makes of bytes in pinned memory, as cuda:0: faster than the host where files are"
    )
  ),
  progress: progressFlag,
  quiet,
  json
}

/** Compares tensors one after the other, and shows how many of their bytes it has passed. */
const compareAll = <E, R>(
  flags: Parameters<typeof progressMode>[0],
  [a, b]: readonly [Tensors, Tensors],
  compare: (name: string, onBytes: (bytes: number) => Effect.Effect<void>) => Effect.Effect<Verdict, E, R>
) =>
  Effect.suspend(() => {
    const bar = makeProgressBar({ size: 1, phases: ["verify"], mode: progressMode(flags) })
    const bytesOf = (name: string): number => {
      const tensor = a.get(name)
      return tensor === undefined ? 0 : byteLengthOf(tensor.dtype, elementCount(tensor.shape))
    }
    const names = [...new Set([...a.keys(), ...b.keys()])]
    const total = names.reduce((sum, name) => sum + bytesOf(name), 0)
    let passed = 0
    const show = (within: number) => bar.update({ rank: 0, phase: "verify", done: passed + within, total })
    const one = (name: string) =>
      Effect.tap(compare(name, show), () => {
        passed += bytesOf(name)
        return show(0)
      })
    return Effect.ensuring(Effect.andThen(show(0), Effect.forEach(names, one)), bar.clear)
  })

export const verify = Command.make("verify", flags, (flags) =>
  withFailures(
    flags,
    Effect.scoped(
      Effect.gen(function* () {
        if (Option.isSome(flags.device)) {
          if (Option.isSome(flags.tolerance))
            return yield* usage("Values are compared by the host.", "Leave --device or --tolerance out.")
          yield* requireDevices(flags.device.value)
        }
        const a = yield* openPlain(flags.a, flags)
        const b = yield* openPlain(flags.b, flags)
        yield* Effect.forEach([a, b], noteAbsent)
        const [lefts, rights] = [a, b].map((model) => new Map(model.tensors.map((tensor) => [tensor.name, tensor])))
        const compareStored = (name: string, onBytes?: (bytes: number) => Effect.Effect<void>) =>
          compareTensor([a, lefts!], [b, rights!], name, onBytes)
        const byBytes = Option.match(flags.device, {
          onNone: () => compareAll(flags, [lefts!, rights!], compareStored),
          onSome: (choice) => compareAllOnDevice([a, lefts!], [b, rights!], choice)
        })
        const byValues = (tolerance: number) =>
          Effect.gen(function* () {
            const [lefts, rights] = [
              logicalTensors(a, yield* readQuantizationHint(a)),
              logicalTensors(b, yield* readQuantizationHint(b))
            ]
            const names = new Set([...lefts.keys(), ...rights.keys()])
            return yield* Effect.forEach(names, (name) =>
              compareValues([a, lefts], [b, rights], name, tolerance, compareStored)
            )
          })
        const verdicts = yield* Option.match(flags.tolerance, { onNone: () => byBytes, onSome: byValues })
        // Replicas beyond the first were not compared.
        for (const model of [a, b]) yield* model.checkFiles
        const differing = verdicts.filter((verdict) => !verdict.equal)
        if (differing.length > 0) {
          yield* Effect.sync(() => {
            process.exitCode = 1
          })
        }
        if (flags.json) {
          yield* print(JSON.stringify({ ok: differing.length === 0, a: a.path, b: b.path, tensors: verdicts }, null, 2))
          return
        }
        if (differing.length > 0) {
          yield* printText(
            table(
              ["tensor", "difference"],
              differing.map(({ name, detail }) => [name, detail])
            )
          )
          yield* printText(`\n${differing.length} of ${counted(verdicts.length, "tensor")} differ`)
          return
        }
        const bytes = verdicts.reduce((sum, verdict) => sum + verdict.bytes, 0)
        const how = Option.match(flags.tolerance, {
          onNone: () => (Option.isNone(flags.device) ? "bit-identical" : "bit-identical by digests of the device"),
          onSome: (tolerance) => `equal within ${tolerance} of each block's largest value`
        })
        yield* printText(`${counted(verdicts.length, "tensor")}, ${formatBytes(bytes)}: ${how}`)
      })
    )
  )
).pipe(
  Command.withExamples([
    { command: "tensorferry verify model.safetensors shards/", description: "A file and its shards" },
    {
      command: "tensorferry verify model.safetensors fp8/ --tolerance 0.07",
      description: "Before and after quantizing"
    },
    { command: "tensorferry verify model/ shards/ --device cuda", description: "By digests of a GPU" }
  ])
)
