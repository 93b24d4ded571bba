/**
 * The options that users write for the backends of this package. Unknown names are refused with their path: an option that
 * does nothing is an error.
 */
import * as path from "node:path"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as SchemaTransformation from "effect/SchemaTransformation"
import { directionPreferences } from "./planning/direction.ts"

const Bytes = (minimum: number) => Schema.Int.check(Schema.isBetween({ minimum, maximum: Number.MAX_SAFE_INTEGER }))

const Files = Schema.Union([Schema.String, Schema.Array(Schema.String)])

const Fields = Schema.Struct({
  /** Whose libraries; by default the first of both with a device. */
  vendor: Schema.optionalKey(Schema.Literals(["cuda", "rocm"])),
  /** Number of the device; by default the rank on this machine, counted around. */
  device: Schema.optionalKey(Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 65_535 }))),
  /** Files of libraries, each the only one tried. */
  libraries: Schema.optionalKey(
    Schema.Struct({
      runtime: Schema.optionalKey(Files),
      driver: Schema.optionalKey(Files),
      compiler: Schema.optionalKey(Files),
      collectives: Schema.optionalKey(Files)
    })
  ),
  /** Device memory in which messages are packed, in all; 1 GiB by default, less where less is needed. */
  stagingBytes: Schema.optionalKey(Bytes(2 ** 16)),
  /** Parts from this length on are sent as they are; 32 MiB by default. */
  directBytes: Schema.optionalKey(Bytes(1)),
  /** Regions from this length on are left to the copy engine; 8 MiB by default. */
  copyEngineBytes: Schema.optionalKey(Bytes(1)),
  /** Device memory that small tensors share at a time; 64 MiB by default. */
  arenaBytes: Schema.optionalKey(Bytes(2 ** 16)),
  /** Which end moves bytes between memories of one host; see CopyDriver. */
  direction: Schema.optionalKey(Schema.Literals(directionPreferences)),
  /** Keeps the device's own time of replay copies; by default what `ReplayTransferTiming` says. */
  timing: Schema.optionalKey(Schema.Boolean),
  /** Folder for compiled kernels. */
  kernelCache: Schema.optionalKey(Schema.String.check(Schema.isMinLength(1))),
  /** Blocks of a kernel that moves; by default one for each of three quarters of the device's processors. */
  blocks: Schema.optionalKey(Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 65_535 })))
})

export type CudaOptions = typeof Fields.Type

export const CudaOptions = Schema.Unknown.pipe(
  Schema.decodeTo(
    Schema.toType(Fields),
    SchemaTransformation.transformEffect({
      decode: (input: unknown) =>
        Effect.mapError(
          Schema.decodeUnknownEffect(Fields, { onExcessProperty: "error" })(input),
          (error) => error.issue
        ),
      encode: (options: CudaOptions) => Effect.succeed<unknown>(options)
    })
  )
)

export const optionNames = Object.keys(Fields.fields)

const defaultStagingBytes = 2 ** 30
const defaultDirectBytes = 32 * 2 ** 20
const defaultCopyEngineBytes = 8 * 2 ** 20

/** The sizes that a copy driver works with. */
export const transferSizes = (options: CudaOptions) => ({
  stagingBytes: options.stagingBytes ?? defaultStagingBytes,
  directBytes: options.directBytes ?? defaultDirectBytes,
  copyEngineBytes: options.copyEngineBytes ?? defaultCopyEngineBytes
})

type Environment = { readonly [name: string]: string | undefined }

/** Where compiled kernels are kept: the user's cache folder, unless there is none. */
export const kernelCacheFolder = (options: CudaOptions, environment: Environment = process.env): string | undefined => {
  if (options.kernelCache !== undefined) return options.kernelCache
  const cache = environment.XDG_CACHE_HOME
  if (cache !== undefined && path.isAbsolute(cache)) return path.join(cache, "tensorferry")
  const home = environment.HOME
  return home !== undefined && path.isAbsolute(home) ? path.join(home, ".cache", "tensorferry") : undefined
}

/** The number of this process among those of its machine, as launchers tell it; 0 where none does. */
const localRankVariables = ["LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "RANK"]

/** The device that an option or the launcher's environment chooses among `count`. */
export const chooseOrdinal = (options: CudaOptions, count: number, environment: Environment = process.env): number => {
  if (options.device !== undefined) return options.device
  const told = localRankVariables.map((name) => environment[name]).find((value) => /^\d{1,9}$/.test(value ?? ""))
  return told === undefined ? 0 : Number(told) % Math.max(1, count)
}
