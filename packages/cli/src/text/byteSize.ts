// SPDX-License-Identifier: Apache-2.0
/** Sizes as people write them: `4096`, `64KiB`, `5GB`. */

const units: { readonly [unit: string]: number } = {
  "": 1,
  b: 1,
  kb: 1e3,
  mb: 1e6,
  gb: 1e9,
  tb: 1e12,
  kib: 2 ** 10,
  mib: 2 ** 20,
  gib: 2 ** 30,
  tib: 2 ** 40
}

/** The bytes that a text states, from 1 to `most`; undefined for anything else. */
export const parseByteSize = (text: string, most = 2 ** 50): number | undefined => {
  const match = /^(\d{1,12}) ?([kmgt]?i?b|)$/i.exec(text.trim())
  const unit = match === null ? undefined : units[match[2]!.toLowerCase()]
  const value = unit === undefined ? 0 : Number(match![1]) * unit
  return value >= 1 && value <= most ? value : undefined
}
