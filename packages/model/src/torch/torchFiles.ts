// SPDX-License-Identifier: Apache-2.0
/** By which names files of torch are known, apart from what reads them: most models have none. */

/** What files of torch.save are called. */
export const isTorchFile = (name: string): boolean => /\.(bin|pt|pth)$/.test(name)

/** File that makes a folder a distributed checkpoint. */
export const distributedMetadataName = ".metadata"
