/** `tensorferry verify`: are two models the same, whatever layouts hold them? */
import { createHash } from "node:crypto"
import { equalShapes, formatShape, fullRegion } from "@tensorferry/core/base/Region"
import * as Console from "effect/Console"
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Effect from "effect/Effect"
import { type Model, openModel, resolveModel } from "../model/Model.ts"
import { piecesOf } from "../model/pieces.ts"
import { withFailures } from "../output/CliFailure.ts"
import { formatBytes, table } from "../output/Table.ts"
import { json } from "./shared.ts"

interface Verdict {
  readonly name: string
  readonly equal: boolean
  readonly detail: string
  readonly bytes: number
  /** SHA-256 over the dense bytes of the first model's tensor. */
  readonly digest: string
}

type Tensors = ReadonlyMap<string, Model["tensors"][number]>

const compareTensor = Effect.fnUntraced(function* (
  [a, lefts]: readonly [Model, Tensors],
  [b, rights]: readonly [Model, Tensors],
  name: string
) {
  const [left, right] = [lefts.get(name), rights.get(name)]
  const different = (detail: string): Verdict => ({ name, equal: false, detail, bytes: 0, digest: "" })
  if (left === undefined) return different(`only in ${b.path}`)
  if (right === undefined) return different(`only in ${a.path}`)
  if (left.dtype !== right.dtype || !equalShapes(left.shape, right.shape)) {
    return different(`${left.dtype}${formatShape(left.shape)} and ${right.dtype}${formatShape(right.shape)}`)
  }
  const hash = createHash("sha256")
  let bytes = 0
  for (const piece of piecesOf(left.dtype, fullRegion(left.shape))) {
    const [one, two] = [new Uint8Array(piece.end - piece.start), new Uint8Array(piece.end - piece.start)]
    yield* a.readRegion(name, piece.region, one)
    yield* b.readRegion(name, piece.region, two)
    if (Buffer.compare(one, two) !== 0) {
      const at = one.findIndex((byte, index) => byte !== two[index])
      return different(`byte ${piece.start + at} is ${one[at]} and ${two[at]}`)
    }
    hash.update(one)
    bytes += one.length
  }
  const verdict: Verdict = { name, equal: true, detail: "", bytes, digest: hash.digest("hex") }
  return verdict
})

export const verify = Command.make("verify", { a: Argument.String("A"), b: Argument.String("B"), json }, (flags) =>
  withFailures(
    flags.json,
    Effect.scoped(
      Effect.gen(function* () {
        const a = yield* openModel(resolveModel(flags.a))
        const b = yield* openModel(resolveModel(flags.b))
        const [lefts, rights] = [a, b].map((model) => new Map(model.tensors.map((tensor) => [tensor.name, tensor])))
        const names = new Set([...lefts!.keys(), ...rights!.keys()])
        const verdicts = yield* Effect.forEach(names, (name) => compareTensor([a, lefts!], [b, rights!], name))
        // Replicas beyond the first were not compared.
        for (const model of [a, b]) yield* model.checkFiles
        const differing = verdicts.filter((verdict) => !verdict.equal)
        if (differing.length > 0) {
          yield* Effect.sync(() => {
            process.exitCode = 1
          })
        }
        if (flags.json) {
          yield* Console.log(
            JSON.stringify({ ok: differing.length === 0, a: a.path, b: b.path, tensors: verdicts }, null, 2)
          )
          return
        }
        if (differing.length > 0) {
          yield* Console.log(
            table(
              ["tensor", "difference"],
              differing.map(({ name, detail }) => [name, detail])
            )
          )
          yield* Console.log(`\n${differing.length} of ${verdicts.length} tensors differ`)
          return
        }
        const bytes = verdicts.reduce((sum, verdict) => sum + verdict.bytes, 0)
        yield* Console.log(`${verdicts.length} tensors, ${formatBytes(bytes)}: bit-identical`)
      })
    )
  )
).pipe(
  Command.withDescription(
    "Compare two models tensor by tensor, bit by bit, whatever their layouts; exit code 1 where they differ"
  ),
  Command.withExamples([
    { command: "tensorferry verify model.safetensors shards/", description: "A file and its shards" }
  ])
)
