// SPDX-License-Identifier: Apache-2.0
/**
 * The options that every backend on a GPU has: which device, which libraries, how its engine works. Packages add their own
 * fields to them.
 */
import * as path from "node:path"
import * as Schema from "effect/Schema"

/** A number of bytes from `minimum` on. */
export const Bytes = (minimum: number) =>
  Schema.Int.check(Schema.isBetween({ minimum, maximum: Number.MAX_SAFE_INTEGER }))

/** Files of a library, each the only one tried. */
export const Files = Schema.Union([Schema.String, Schema.Array(Schema.String)])

/** Fields of the options of every backend on a GPU. */
export const gpuFields = {
  device: Schema.optionalKey(
    Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 65_535 })).annotate({
      description: "Number of the device; by default the rank on this machine modulo the number of devices."
    })
  ),
  copyEngineBytes: Schema.optionalKey(
    Bytes(1).annotate({ description: "Length in bytes from which the copy engine moves a region; 8 MiB by default." })
  ),
  arenaBytes: Schema.optionalKey(
    Bytes(2 ** 16).annotate({ description: "Device memory that small tensors share at a time; 64 MiB by default." })
  ),
  kernelCache: Schema.optionalKey(
    Schema.String.check(Schema.isMinLength(1)).annotate({ description: "Folder for compiled kernels." })
  ),
  blocks: Schema.optionalKey(
    Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 65_535 })).annotate({
      description:
        "Blocks of a kernel that moves bytes; by default one for each of three quarters of the device's processors."
    })
  )
}

/** Fields of the options by which a vendor and its libraries are chosen. */
export const vendorFields = {
  vendor: Schema.optionalKey(
    Schema.Literals(["cuda", "rocm"]).annotate({
      description: "Vendor whose libraries are used; by default the first of the two with a device."
    })
  ),
  libraries: Schema.optionalKey(
    Schema.Struct({
      runtime: Schema.optionalKey(Files),
      driver: Schema.optionalKey(Files),
      compiler: Schema.optionalKey(Files),
      collectives: Schema.optionalKey(Files)
    }).annotate({ description: "Files of libraries; for a named library no other file is tried." })
  )
}

const Fields = Schema.Struct({ ...gpuFields, ...vendorFields })

/** What the device and its engine take. */
export type GpuOptions = typeof Fields.Type

/** Regions from this length on are left to the copy engine where no option says otherwise. */
export const defaultCopyEngineBytes = 8 * 2 ** 20

type Environment = { readonly [name: string]: string | undefined }

/** Where compiled kernels are kept: the user's cache folder, unless there is none. */
export const kernelCacheFolder = (options: GpuOptions, environment: Environment = process.env): string | undefined => {
  if (options.kernelCache !== undefined) return options.kernelCache
  const cache = environment.XDG_CACHE_HOME
  if (cache !== undefined && path.isAbsolute(cache)) return path.join(cache, "tensorferry")
  const home = environment.HOME
  return home !== undefined && path.isAbsolute(home) ? path.join(home, ".cache", "tensorferry") : undefined
}

/** The number of this process among those of its machine, as launchers state it; 0 where none does. */
const localRankVariables = ["LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "RANK"]

/** The device that an option or the launcher's environment chooses among `count`. */
export const chooseOrdinal = (options: GpuOptions, count: number, environment: Environment = process.env): number => {
  if (options.device !== undefined) return options.device
  const launched = localRankVariables.map((name) => environment[name]).find((value) => /^\d{1,9}$/.test(value ?? ""))
  return launched === undefined ? 0 : Number(launched) % Math.max(1, count)
}
