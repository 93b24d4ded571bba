// SPDX-License-Identifier: Apache-2.0
/** The backends that the command knows: those shipped with it and those of packages that the user names. */
import { descriptors as cuda } from "@tensorferry/backend-cuda/descriptor"
import { descriptors as nvshmem } from "@tensorferry/backend-nvshmem/descriptor"
import { descriptors as tcp } from "@tensorferry/backend-tcp/descriptor"
import { descriptors as torchCopy } from "@tensorferry/backend-torch-copy/descriptor"
import { descriptors as ucx } from "@tensorferry/backend-ucx/descriptor"
import { descriptors as xpu } from "@tensorferry/backend-xpu/descriptor"
import type { BackendDescriptor, BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { loaderLayer } from "@tensorferry/core/backend/BackendLoader"
import type { BackendRegistry } from "@tensorferry/core/backend/BackendRegistry"
import type * as Layer from "effect/Layer"

/** The packages that the command comes with, and what each offers. */
export const shippedPackages: ReadonlyArray<readonly [name: string, descriptors: ReadonlyArray<BackendDescriptor>]> = [
  ["@tensorferry/backend-torch-copy", torchCopy],
  ["@tensorferry/backend-cuda", cuda],
  ["@tensorferry/backend-nvshmem", nvshmem],
  ["@tensorferry/backend-xpu", xpu],
  ["@tensorferry/backend-tcp", tcp],
  ["@tensorferry/backend-ucx", ucx]
]

export const shippedDescriptors = shippedPackages.flatMap(([, descriptors]) => descriptors)

export const backendRegistry = (
  packages: ReadonlyArray<string>,
  from: string
): Layer.Layer<BackendRegistry, BackendError> => loaderLayer({ packages, from, descriptors: shippedDescriptors })
