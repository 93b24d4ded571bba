// SPDX-License-Identifier: Apache-2.0
/** What `reshard` says at its end: for people as tables, for machines as one document. */
import { type ConversionNote, describeNote } from "@tensorferry/model/values/conversionNotes"
import { formatDevices } from "../device/DeviceChoice.ts"
import { type AnyJobSpec, isMeshJob, type RankReport } from "../job/JobSpec.ts"
import { formatMeshChoice } from "../job/meshPlans.ts"
import { jobPhases, phaseNames } from "../job/phases.ts"
import { sideText } from "../text/sideText.ts"
import { counted, formatBytes, formatRate, formatSeconds, table } from "../text/Table.ts"
import { plainLine } from "../text/terminal.ts"

const sum = (reports: ReadonlyArray<RankReport>, of: (report: RankReport) => number): number =>
  reports.reduce((total, report) => total + of(report), 0)

const most = (reports: ReadonlyArray<RankReport>, of: (report: RankReport) => number): number =>
  Math.max(0, ...reports.map(of))

const titleOf = (spec: AnyJobSpec, size: number): string =>
  isMeshJob(spec)
    ? `${formatMeshChoice(spec.mesh)}, ${counted(size, "rank")}, tensor ${plainLine(spec.tensor)}`
    : `${sideText(spec.from, spec.names?.from.convention)} → ${sideText(spec.to, spec.names?.to.convention)}, ${counted(size, "rank")} (${spec.ranks})`

/** How the update was cut, where it was. */
const describeWaves = (reports: ReadonlyArray<RankReport>): ReadonlyArray<string> => {
  const [waves, bytes] = [most(reports, (report) => report.waves), most(reports, (report) => report.bufferBytes)]
  return bytes === 0
    ? []
    : [`${waves} wave${waves === 1 ? "" : "s"}, at most ${formatBytes(bytes)} of buffers on a rank`]
}

/** A job's conversion in words; empty where it has none. */
export const conversionOf = (spec: AnyJobSpec): string => {
  if (isMeshJob(spec) || spec.conversion === undefined) return ""
  const { dtype, quantize, transform } = spec.conversion
  const isNarrow = transform !== null || quantize !== undefined
  const parts = [
    ...(transform === null ? [] : [`mxfp8 by ${transform.rule}, quantized by the ${transform.side}`]),
    ...(quantize === undefined ? [] : [`${quantize.form} by ${quantize.rule}, quantized where it is read`]),
    ...(dtype === null ? [] : [`${isNarrow ? "else " : ""}${dtype}`])
  ]
  return parts.join(", ")
}

const describeConversion = (spec: AnyJobSpec): string => {
  const text = conversionOf(spec)
  return text === "" ? "" : ` as ${text}`
}

/** What ranks took of devices. */
const describeDevices = (reports: ReadonlyArray<RankReport>): ReadonlyArray<string> =>
  [
    ...Map.groupBy(
      reports.flatMap(({ device, rank }) => (device === undefined ? [] : [{ ...device, rank }])),
      ({ id }) => id
    ).values()
  ].map((ranks) => {
    const needed = ranks.reduce((total, one) => total + one.needed, 0)
    const free = Math.min(...ranks.map((one) => one.free))
    return `${ranks[0]!.name}: ${counted(ranks.length, "rank")}, ${formatBytes(needed)} for tensors and buffers of ${formatBytes(free)} that were free`
  })

/** How much was traced to its place by what the tensors mean. */
const describeTrace = (reports: ReadonlyArray<RankReport>): ReadonlyArray<string> => {
  const tensors = sum(reports, (report) => report.tensorsTraced)
  const elements = sum(reports, (report) => report.elementsTraced)
  return tensors === 0
    ? []
    : [
        `traced: ${counted(elements, "element")} of ${counted(tensors, "shard")} lie where the structure of the model has them`
      ]
}

/** Phases that took less, together a trifle, have no row. */
const leastSeconds = 5e-4

const copySteps = ["handshake", "prepare", "pack", "local", "transfer", "unpack", "writeback", "outcome"] as const

type BytesOf = Readonly<Record<string, number | undefined>>

const row = (name: string, slowest: number, bytes: number | undefined): ReadonlyArray<string> => [
  name,
  formatSeconds(slowest),
  ...(bytes === undefined || bytes === 0 ? ["", ""] : [formatBytes(bytes), formatRate(bytes, slowest)])
]

/** Steps of the copy that happened. */
const stepsOf = (reports: ReadonlyArray<RankReport>, bytesOf: BytesOf): ReadonlyArray<ReadonlyArray<string>> =>
  copySteps.flatMap((step) => {
    const slowest = most(reports, (report) => report.copy.phases[step])
    return slowest === 0 ? [] : [row(`  ${step}`, slowest, bytesOf[step])]
  })

/** What happened, for people; `seconds` is what the whole command took. */
export const describeReshard = (
  spec: AnyJobSpec,
  reports: ReadonlyArray<RankReport>,
  notes: ReadonlyArray<ConversionNote>,
  seconds: number
): string => {
  const [first] = reports
  /** Bytes of a phase that does nothing but move them; a copy also agrees and prepares. */
  const bytesOf: BytesOf = {
    load: sum(reports, (report) => report.sourceBytes),
    verify: sum(reports, (report) => report.destinationBytes),
    write: sum(reports, (report) => report.destinationBytes),
    local: sum(reports, (report) => report.copy.localBytes),
    transfer: sum(reports, (report) => report.copy.remoteBytesReceived)
  }
  const phases = jobPhases.flatMap((phase) => {
    const slowest = most(reports, (report) => report.seconds[phase] ?? 0)
    const own = slowest < leastSeconds ? [] : [row(phaseNames[phase], slowest, bytesOf[phase])]
    return phase === "copy" ? [row("copy", slowest, undefined), ...stepsOf(reports, bytesOf)] : own
  })
  const peers = reports.flatMap((report) => [
    ...(report.copy.localBytes === 0
      ? []
      : [[`${report.rank}`, `${report.rank}`, formatBytes(report.copy.localBytes), "local copy", "same rank"]]),
    ...report.copy.peers
      .filter((peer) => peer.bytesReceived > 0)
      .map((peer) => [`${peer.peer}`, `${report.rank}`, formatBytes(peer.bytesReceived), peer.path, peer.reason])
  ])
  const verified = sum(reports, (report) => report.bytesVerified)
  return [
    `${titleOf(spec, reports.length)}, backend ${first?.copy.backend} (${first?.backendReason})`,
    "",
    table(
      ["phase", "slowest rank", "bytes", "rate"],
      [...phases, row("whole command", seconds, undefined)],
      ["left", "right", "right", "right"]
    ),
    "",
    peers.length === 0
      ? "nothing moved"
      : table(["from", "to", "bytes", "path", "why"], peers, ["right", "right", "right"]),
    "",
    ...describeDevices(reports),
    ...describeWaves(reports),
    ...notes.map((note) => plainLine(describeNote(note))),
    spec.verify
      ? `verified: ${counted(
          sum(reports, (report) => report.tensorsVerified),
          "shard"
        )}, ${formatBytes(verified)}, bit-identical to ${spec.checkpoint}${describeConversion(spec)}${spec.device === undefined ? "" : ", by digests of the device"}`
      : "not verified (--no-verify)",
    ...describeTrace(reports),
    ...(spec.out === null ? [] : [`written: ${spec.out.folder}`])
  ].join("\n")
}

/** The same for machines. */
export const reshardFacts = (
  spec: AnyJobSpec,
  reports: ReadonlyArray<RankReport>,
  notes: ReadonlyArray<ConversionNote>
) => ({
  ok: true,
  checkpoint: spec.checkpoint,
  ...(isMeshJob(spec)
    ? { tensor: spec.tensor, ...spec.mesh, ranks: reports.length }
    : {
        from: spec.from,
        to: spec.to,
        ...(spec.names === undefined ? {} : { names: spec.names }),
        ranks: reports.length,
        placement: spec.ranks
      }),
  backend: reports[0]?.copy.backend,
  ...(spec.device === undefined ? {} : { device: formatDevices(spec.device) }),
  out: spec.out?.folder ?? null,
  verified: spec.verify,
  conversion: notes,
  traced: {
    tensors: sum(reports, (report) => report.tensorsTraced),
    elements: sum(reports, (report) => report.elementsTraced)
  },
  bytes: {
    source: sum(reports, (report) => report.sourceBytes),
    destination: sum(reports, (report) => report.destinationBytes),
    local: sum(reports, (report) => report.copy.localBytes),
    remote: sum(reports, (report) => report.copy.remoteBytesReceived)
  },
  // What was noted for a trace or a record is in there.
  reports: reports.map(({ observed: _, trace: __, ...report }) => report)
})
