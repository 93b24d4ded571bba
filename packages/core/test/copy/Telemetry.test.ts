// SPDX-License-Identifier: Apache-2.0
/** Spans and metrics of updates, as a collector gets them by OTLP, and as little as possible where nobody listens. */
import { createServer } from "node:http"
import type { AddressInfo } from "node:net"
import { assert, describe, it } from "@effect/vitest"
import { loopbackLayer, makeLoopbackNetwork } from "@tensorferry/testing/Loopback"
import { oracleModel } from "@tensorferry/testing/planning/oracle"
import { runCluster } from "@tensorferry/testing/VirtualCluster"
import * as Effect from "effect/Effect"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import * as Metric from "effect/Metric"
import * as Otlp from "effect/observability/Otlp"
import * as PrometheusMetrics from "effect/observability/PrometheusMetrics"
import * as Tracer from "effect/Tracer"
import { executeReshardPlan } from "../../src/reshard/executeReshardPlan.ts"
import { CopyDriver, type PeerTimes } from "../../src/service/CopyDriver.ts"
import { CopyService } from "../../src/service/CopyService.ts"
import { inSpan } from "../../src/service/Spans.ts"
import { TensorEngine } from "../../src/service/TensorEngine.ts"
import { makeTrace } from "../../src/trace/TraceFile.ts"
import { plansOf, rosterOf, sidesOf } from "../reshard/executeSupport.ts"

interface OtlpValue {
  readonly stringValue?: string
  readonly intValue?: number | string
  readonly doubleValue?: number
  readonly boolValue?: boolean
}
type OtlpAttributes = ReadonlyArray<{ readonly key: string; readonly value: OtlpValue }>
interface OtlpSpan {
  readonly name: string
  readonly spanId: string
  readonly parentSpanId?: string
  readonly attributes: OtlpAttributes
  readonly events: ReadonlyArray<{ readonly name: string; readonly attributes: OtlpAttributes }>
}
interface OtlpMetric {
  readonly name: string
  readonly sum?: {
    readonly dataPoints: ReadonlyArray<{
      readonly attributes: OtlpAttributes
      readonly asDouble?: number
      readonly asInt?: string | number
    }>
  }
  readonly histogram?: {
    readonly dataPoints: ReadonlyArray<{ readonly attributes: OtlpAttributes; readonly count: number | string }>
  }
}

const valueOf = (attributes: OtlpAttributes, key: string): string | number | boolean | undefined => {
  const value = attributes.find((one) => one.key === key)?.value
  if (value === undefined) return undefined
  return value.stringValue ?? value.boolValue ?? Number(value.intValue ?? value.doubleValue)
}

/** A collector on a port of this machine; keeps what arrives until its scope ends. */
const collector = Effect.acquireRelease(
  Effect.promise(async () => {
    const spans: Array<OtlpSpan> = []
    const metrics: Array<OtlpMetric> = []
    const server = createServer((request, response) => {
      let text = ""
      request.setEncoding("utf8")
      request.on("data", (chunk) => {
        text += chunk
      })
      request.on("end", () => {
        const body = JSON.parse(text)
        for (const resource of body.resourceSpans ?? [])
          for (const scope of resource.scopeSpans) spans.push(...scope.spans)
        for (const resource of body.resourceMetrics ?? [])
          for (const scope of resource.scopeMetrics) metrics.push(...scope.metrics)
        response.setHeader("content-type", "application/json").end("{}")
      })
    })
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve))
    return { spans, metrics, server, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` }
  }),
  ({ server }) =>
    Effect.promise(
      () =>
        new Promise<void>((resolve) => {
          server.closeAllConnections()
          server.close(() => resolve())
        })
    )
)

/** Metrics of one test alone. */
const freshMetrics = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.provideService(effect, Metric.MetricRegistry, new Map())

const source = rosterOf(2)
const destination = rosterOf(3, { dtype: "bfloat16" })
const plans = plansOf(source, destination, 3)
const model = oracleModel(source, destination)

/** Two updates of three ranks, with casts; the second one uses the program of the first. */
const updates = runCluster({ size: 3 }, (rank) =>
  Effect.gen(function* () {
    const sides = yield* sidesOf(model, rank)
    yield* executeReshardPlan(plans[rank]!, sides.source?.dict, sides.destination?.dict)
    return yield* executeReshardPlan(plans[rank]!, sides.source?.dict, sides.destination?.dict)
  })
)

describe("telemetry", () => {
  it.live("reaches a collector by OTLP: phases under their runs, metrics by peer", () =>
    freshMetrics(
      Effect.gen(function* () {
        const { spans, metrics, url } = yield* collector
        const exporting = Otlp.layerJson({ baseUrl: url, resource: { serviceName: "test" } }).pipe(
          Layer.provide(FetchHttpClient.layer)
        )
        // What was not sent yet is sent when the layer's scope closes.
        const reports = yield* updates.pipe(
          Effect.withSpan("training step"),
          Effect.provide(exporting, { local: true })
        )

        const byId = new Map(spans.map((span) => [span.spanId, span]))
        const parentOf = ({ parentSpanId }: OtlpSpan) => byId.get(parentSpanId ?? "")?.name
        const named = (name: string) => spans.filter((span) => span.name === name)
        for (const [name, parent, count] of [
          ["executeReshardPlan", "training step", 6],
          ["CopyService.run", "executeReshardPlan", 6],
          ["copy.handshake", "CopyService.run", 6],
          ["copy.wire", "CopyService.run", 6],
          ["copy.commit", "CopyService.run", 6],
          ["copy.prepare", "CopyService.run", undefined],
          ["reshard.cast", "executeReshardPlan", undefined]
        ] as const) {
          const found = named(name)
          assert.isNotEmpty(found, name)
          if (count !== undefined) assert.strictEqual(found.length, count, name)
          for (const span of found) assert.strictEqual(parentOf(span), parent, `parent of ${name}`)
        }
        for (const span of named("CopyService.run")) {
          const rank = Number(valueOf(span.attributes, "rank"))
          assert.strictEqual(valueOf(span.attributes, "backend"), "loopback")
          const run = Number(valueOf(span.attributes, "run"))
          assert.include([1, 2], run)
          if (run !== 2) continue
          assert.strictEqual(valueOf(span.attributes, "bytesReceived"), reports[rank]!.copy.remoteBytesReceived)
        }
        for (const span of named("copy.wire")) {
          const rank = Number(valueOf(span.attributes, "rank"))
          const told = span.events.map(({ attributes }) => ({
            peer: valueOf(attributes, "peer"),
            bytesSent: valueOf(attributes, "bytesSent"),
            bytesReceived: valueOf(attributes, "bytesReceived"),
            path: valueOf(attributes, "path")
          }))
          const expected = reports[rank]!.copy.peers.map(({ reason: _, ...peer }) => peer)
          assert.sameDeepMembers(told, expected)
        }

        const runs = metrics.filter(({ name }) => name === "tensorferry_copy_runs_total").at(-1)!
        assert.strictEqual(
          runs.sum!.dataPoints.reduce((sum, point) => sum + Number(point.asDouble ?? point.asInt), 0),
          6
        )
        const bytes = metrics.filter(({ name }) => name === "tensorferry_copy_bytes_total").at(-1)!
        for (const { rank, copy } of reports) {
          for (const { peer, bytesReceived } of copy.peers) {
            const point = bytes.sum!.dataPoints.find(
              ({ attributes }) =>
                valueOf(attributes, "rank") === String(rank) &&
                valueOf(attributes, "peer") === String(peer) &&
                valueOf(attributes, "direction") === "received"
            )
            assert.strictEqual(Number(point?.asDouble ?? point?.asInt), 2 * bytesReceived, `${peer} to ${rank}`)
          }
        }
        const seconds = metrics.filter(({ name }) => name === "tensorferry_copy_phase_seconds").at(-1)!
        const observed = seconds.histogram!.dataPoints.filter(
          ({ attributes }) => valueOf(attributes, "phase") === "wire"
        )
        assert.strictEqual(
          observed.reduce((sum, { count }) => sum + Number(count), 0),
          6
        )
      }).pipe(Effect.scoped)
    )
  )

  it.live("counts also without a tracer, in what Prometheus reads; failed runs too", () =>
    freshMetrics(
      Effect.gen(function* () {
        yield* runCluster({ size: 2 }, (rank) =>
          Effect.gen(function* () {
            const service = yield* CopyService
            const engine = yield* TensorEngine
            const tensor = yield* engine.allocate("uint8", [100])
            yield* rank === 0 ? service.submitSend(tensor, 1, 0) : service.submitRecv(tensor, 0, 0)
            yield* service.run()
            if (rank === 0) yield* service.submitSend(tensor, 1, 5)
            yield* Effect.flip(service.run())
          })
        )
        const lines = (yield* PrometheusMetrics.format()).split("\n")
        const value = (name: string, ...labels: ReadonlyArray<string>) =>
          lines.filter((line) => line.startsWith(`${name}{`) && labels.every((label) => line.includes(label)))
        const [sent] = value("tensorferry_copy_bytes_total", 'rank="0"', 'peer="1"', 'direction="sent"')
        assert.match(sent!, / 100$/)
        for (const outcome of ["ok", "failed"]) {
          for (const rank of [0, 1]) {
            const [runs] = value("tensorferry_copy_runs_total", `rank="${rank}"`, `outcome="${outcome}"`)
            assert.match(runs ?? "", / 1$/, `${outcome} on rank ${rank}`)
          }
        }
      })
    )
  )

  it.live("makes no spans and computes no attributes where no tracer is installed", () =>
    Effect.gen(function* () {
      let asked = 0
      const span = inSpan(Effect.option(Effect.currentSpan), "phase", () => {
        asked += 1
        return {}
      })
      assert.isTrue((yield* span)._tag === "None")
      assert.strictEqual(asked, 0)
      const trace = makeTrace({ processName: "test" })
      yield* span.pipe(Effect.withTracerEnabled(false), Effect.withTracer(trace.tracer))
      assert.strictEqual(asked, 0)
      assert.isTrue((yield* Effect.withTracer(span, trace.tracer))._tag === "Some")
      assert.strictEqual(asked, 1)
    })
  )

  it.live("has one span per phase, however many operations there are", () =>
    Effect.gen(function* () {
      const names: Array<string> = []
      const tracer = Tracer.make({
        span: (options) => {
          names.push(options.name)
          return new Tracer.NativeSpan(options)
        }
      })
      const spansOf = (count: number) =>
        Effect.map(
          runCluster({ size: 2 }, (rank) =>
            Effect.gen(function* () {
              const service = yield* CopyService
              const engine = yield* TensorEngine
              for (let task = 0; task < count; task++) {
                const tensor = yield* engine.allocate("uint8", [3])
                yield* rank === 0 ? service.submitSend(tensor, 1, task) : service.submitRecv(tensor, 0, task)
              }
              yield* service.run()
            })
          ).pipe(Effect.withTracer(tracer)),
          () => names.splice(0).sort().join()
        )
      const few = yield* spansOf(1)
      assert.strictEqual(yield* spansOf(40), few)
      assert.include(few, "copy.wire")
    })
  )

  it.live("reports device times by peer where the driver knows them, rounds added up", () =>
    Effect.gen(function* () {
      const network = makeLoopbackNetwork()
      const times = (peer: number): ReadonlyArray<PeerTimes> => [{ peer, pack: 0.25, wire: 0.5, unpack: 0.125 }]
      const timing = (rank: number) =>
        Layer.effect(
          CopyDriver,
          Effect.map(CopyDriver, (inner) => ({
            ...inner,
            start: (program: Parameters<typeof inner.start>[0]) =>
              Effect.map(inner.start(program), (inFlight) => ({
                ...inFlight,
                peerTimes: Effect.succeed(rank === 0 ? times(1) : [])
              }))
          }))
        ).pipe(Layer.provide(loopbackLayer(network, { gather: false, maxMessageBytes: 1000 })))
      const reports = yield* runCluster({ size: 2, driver: timing }, (rank) =>
        Effect.gen(function* () {
          const service = yield* CopyService
          const engine = yield* TensorEngine
          const tensor = yield* engine.allocate("uint8", [2500])
          yield* rank === 0 ? service.submitSend(tensor, 1, 0) : service.submitRecv(tensor, 0, 0)
          yield* service.run()
          yield* rank === 0 ? service.submitSend(tensor, 1, 0) : service.submitRecv(tensor, 0, 0)
          return yield* service.run()
        })
      )
      const rounds = reports[0]!.messages
      assert.isAbove(rounds, 1)
      assert.deepStrictEqual(reports[0]!.peers[0]!.seconds, {
        pack: 0.25 * rounds,
        wire: 0.5 * rounds,
        unpack: 0.125 * rounds
      })
      assert.isUndefined(reports[1]!.peers[0]!.seconds, "rank 1 knows none")
    })
  )
})
