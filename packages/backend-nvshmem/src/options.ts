// SPDX-License-Identifier: Apache-2.0
/**
 * The options that users write for this backend. Unknown names are refused with their path: an option that does nothing is
 * an error.
 */
import { strictOptions } from "@tensorferry/core/backend/StrictOptions"
import { Bytes, defaultCopyEngineBytes, Files, type GpuOptions, gpuFields } from "@tensorferry/gpu/options"
import * as Schema from "effect/Schema"

/** The ways over which regions may be put. */
export const pathPreferences = ["auto", "put", "direct"] as const
/** One of the ways over which regions may be put. */
export type PathPreference = (typeof pathPreferences)[number]

const Fields = Schema.Struct({
  ...gpuFields,
  libraries: Schema.optionalKey(
    Schema.Struct({
      runtime: Schema.optionalKey(Files),
      driver: Schema.optionalKey(Files),
      compiler: Schema.optionalKey(Files),
      nvshmem: Schema.optionalKey(Files)
    }).annotate({ description: "Files of libraries; for a named library no other file is tried." })
  ),
  path: Schema.optionalKey(
    Schema.Literals(pathPreferences).annotate({
      description:
        'How batches get into slots of a peer: by kernels, where the peer\'s memory is mapped here ("direct"), by the library\'s puts ("put"), or as it comes ("auto", the default).',
      default: "auto"
    })
  ),
  slotBytes: Schema.optionalKey(
    Bytes(4096).annotate({
      description:
        "Bytes of a slot; 64 MiB by default, less where the device has little memory left. The smallest of all ranks counts."
    })
  ),
  slots: Schema.optionalKey(
    Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 64 })).annotate({
      description:
        "Slots, so the number of batches that may arrive at one time; 4 by default. The smallest of all ranks counts.",
      default: 4
    })
  )
})

/** Options of the NVSHMEM backend, checked: the values as a type, the schema as a value. */
export type NvshmemOptions = typeof Fields.Type

export const NvshmemOptions = strictOptions(Fields)

/** The names of all options, as messages list them. */
export const optionNames = Object.keys(Fields.fields)

/** What the device and its engine take. */
export const deviceOptions = ({
  path: _path,
  slotBytes: _slotBytes,
  slots: _slots,
  libraries = {},
  ...rest
}: NvshmemOptions): GpuOptions => {
  const { nvshmem: _nvshmem, ...files } = libraries
  return { ...rest, vendor: "cuda", libraries: { ...files, collectives: [] } }
}

const defaultSlotBytes = 64 * 2 ** 20
const defaultSlots = 4
/** Slots in which batches are packed before they are put. */
export const sendSlots = 2

/** Sizes that the options set, in bytes, and the number of slots, with their defaults. */
export const exchangeSizes = (options: NvshmemOptions) => ({
  slotBytes: options.slotBytes ?? defaultSlotBytes,
  slots: options.slots ?? defaultSlots,
  copyEngineBytes: options.copyEngineBytes ?? defaultCopyEngineBytes
})
