// SPDX-License-Identifier: Apache-2.0
/**
 * The options that users write for the backends of this package. Unknown names are refused with their path: an option that
 * does nothing is an error.
 */
import { strictOptions } from "@tensorferry/core/backend/StrictOptions"
import { Bytes, defaultCopyEngineBytes, gpuFields, vendorFields } from "@tensorferry/gpu/options"
import * as Schema from "effect/Schema"
import { directionPreferences } from "./planning/direction.ts"

const Fields = Schema.Struct({
  ...vendorFields,
  ...gpuFields,
  stagingBytes: Schema.optionalKey(
    Bytes(2 ** 16).annotate({
      description: "Total device memory in which messages are packed; 1 GiB by default, less where less is needed."
    })
  ),
  directBytes: Schema.optionalKey(
    Bytes(1).annotate({ description: "Length in bytes from which parts are sent without packing; 32 MiB by default." })
  ),
  direction: Schema.optionalKey(
    Schema.Literals(directionPreferences).annotate({
      description: "Which end moves bytes between memories of one host; see CopyDriver."
    })
  ),
  timing: Schema.optionalKey(
    Schema.Boolean.annotate({
      description: "Times replay copies on the device; by default what `ReplayTransferTiming` says."
    })
  )
})

/** Options of the CUDA and HIP backends, checked: the values as a type, the schema as a value. */
export type CudaOptions = typeof Fields.Type

export const CudaOptions = strictOptions(Fields)

/** The names of all options, as messages list them. */
export const optionNames = Object.keys(Fields.fields)

const defaultStagingBytes = 2 ** 30
const defaultDirectBytes = 32 * 2 ** 20

/** The sizes that a copy driver works with. */
export const transferSizes = (options: CudaOptions) => ({
  stagingBytes: options.stagingBytes ?? defaultStagingBytes,
  directBytes: options.directBytes ?? defaultDirectBytes,
  copyEngineBytes: options.copyEngineBytes ?? defaultCopyEngineBytes
})
