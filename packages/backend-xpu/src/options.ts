// SPDX-License-Identifier: Apache-2.0
/**
 * The options that users write for this backend. Unknown names are refused with their path: an option that does nothing is
 * an error.
 */
import { strictOptions } from "@tensorferry/core/backend/StrictOptions"
import * as Schema from "effect/Schema"
import { optionalCapabilities } from "./Addon.ts"

const Files = Schema.Union([Schema.String, Schema.Array(Schema.String)])

const Fields = Schema.Struct({
  driver: Schema.optionalKey(
    Schema.Literals(["auto", "level-zero", "opencl"]).annotate({
      description: 'By which library the device is reached; "auto" takes Level Zero where it has a device.',
      default: "auto"
    })
  ),
  device: Schema.optionalKey(
    Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 65_535 })).annotate({
      description: "Number of the device; by default the rank on this machine modulo the number of devices."
    })
  ),
  libraries: Schema.optionalKey(
    Schema.Struct({ levelZero: Schema.optionalKey(Files), openCl: Schema.optionalKey(Files) }).annotate({
      description: "Files of libraries; for a named library no other file is tried."
    })
  ),
  timing: Schema.optionalKey(
    Schema.Boolean.annotate({
      description:
        "Measures how long replay copies take on the device, where the driver can; by default what `ReplayTransferTiming` says."
    })
  ),
  forbid: Schema.optionalKey(
    Schema.Array(Schema.Literals(optionalCapabilities)).annotate({
      description: "Capabilities of the driver that the backend must not use."
    })
  )
})

/** Options of the XPU backend, checked: the values as a type, the schema as a value. */
export type XpuOptions = typeof Fields.Type

export const XpuOptions = strictOptions(Fields)

/** The names of all options, as messages list them. */
export const optionNames = Object.keys(Fields.fields)

/** Environment variables, as `process.env` holds them. */
export type Environment = { readonly [name: string]: string | undefined }

/** The number of this process among those of its machine, as launchers state it; 0 where none does. */
const localRankVariables = ["LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "RANK"]

/** The device that an option or the launcher's environment chooses among `count`. */
export const chooseOrdinal = (options: XpuOptions, count: number, environment: Environment = process.env): number => {
  if (options.device !== undefined) return options.device
  const launched = localRankVariables.map((name) => environment[name]).find((value) => /^\d{1,9}$/.test(value ?? ""))
  return launched === undefined ? 0 : Number(launched) % Math.max(1, count)
}
