// SPDX-License-Identifier: Apache-2.0
/** The network interfaces that a host's environment names for all wires: hosts of one job may name theirs differently. */

/** The variable, a list with commas. */
export const interfacesVariable = "TENSORFERRY_INTERFACES"

/** Names of interfaces to use; undefined where the environment leaves that to the wire. */
export const namedInterfaces = (environment: NodeJS.ProcessEnv = process.env): ReadonlyArray<string> | undefined => {
  const names = (environment[interfacesVariable] ?? "").split(",").flatMap((name) => name.trim() || [])
  return names.length === 0 ? undefined : [...new Set(names)]
}
