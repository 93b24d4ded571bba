// SPDX-License-Identifier: Apache-2.0
/**
 * What lies in this process's symmetric heaps for tensors, by device: the library knows one job per process, so what one
 * driver allocated is symmetric for every other driver of the process too, for one that a service built anew for instance.
 */

export interface SymmetricTensor {
  readonly address: number
  readonly byteLength: number
}

const tensors = new Map<number, Set<SymmetricTensor>>()

/** Known until what is returned is called. */
export const addSymmetric = (ordinal: number, tensor: SymmetricTensor): (() => void) => {
  const known = tensors.get(ordinal) ?? new Set()
  tensors.set(ordinal, known.add(tensor))
  return () => known.delete(tensor)
}

/** Whether a piece of memory lies in a symmetric tensor. */
export const isSymmetric = (ordinal: number, address: number, byteLength: number): boolean =>
  [...(tensors.get(ordinal) ?? [])].some(
    (tensor) => address >= tensor.address && address + byteLength <= tensor.address + tensor.byteLength
  )
