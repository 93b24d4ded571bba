// SPDX-License-Identifier: Apache-2.0
/**
 * Which addresses a rank uses, and the ways from it to a peer.
 *
 * Invariant: without a token, nothing but loopback is ever listened at.
 */
import { isIP } from "node:net"
import { type NetworkInterfaceInfo, networkInterfaces } from "node:os"
import * as Result from "effect/Result"

/** What decides about addresses; as in the options. */
export interface AddressChoice {
  readonly interfaces?: ReadonlyArray<string>
  readonly addresses?: ReadonlyArray<string>
  readonly hasToken: boolean
}

type Interfaces = Readonly<Record<string, ReadonlyArray<NetworkInterfaceInfo> | undefined>>

/** An address at which a rank listens. */
export interface Listening {
  readonly host: string
  readonly port: number
}

/** From an address of this host, or from any where the text is empty, to one of the peer's. */
export interface Way {
  readonly from: string
  readonly to: Listening
}

/** Ways to one peer that are worth having. */
const mostWays = 64

export const isLoopback = (host: string): boolean =>
  /^127\./.test(host) || host === "::1" || host.toLowerCase().startsWith("::ffff:127.")

/** Addresses that say nothing to other hosts without the name of an interface there. */
const isLinkLocal = (host: string): boolean => /^fe[89ab]/i.test(host)

const addressesOf = (infos: ReadonlyArray<NetworkInterfaceInfo>): ReadonlyArray<string> =>
  infos.map(({ address }) => address).filter((address) => !isLinkLocal(address))

const ofInterfaces = (
  names: ReadonlyArray<string>,
  known: Interfaces
): Result.Result<ReadonlyArray<string>, string> => {
  const found: Array<string> = []
  for (const name of names) {
    const addresses = addressesOf(known[name] ?? [])
    if (addresses.length === 0) {
      const why = known[name] === undefined ? "There is no interface" : "There is no address that peers could use at"
      return Result.fail(`${why} ${name}; this host has ${Object.keys(known).join(", ") || "none"}.`)
    }
    found.push(...addresses)
  }
  return Result.succeed(found)
}

/** The addresses to listen at, or what is wrong with the choice. */
export const chooseAddresses = (
  choice: AddressChoice,
  known: Interfaces = networkInterfaces()
): Result.Result<ReadonlyArray<string>, string> => {
  const { addresses, interfaces, hasToken } = choice
  const wrong = addresses?.find((address) => isIP(address) === 0)
  if (wrong !== undefined) return Result.fail(`${wrong} is no address of IPv4 or IPv6.`)
  const chosen =
    addresses !== undefined
      ? Result.succeed(addresses)
      : interfaces !== undefined
        ? ofInterfaces(interfaces, known)
        : Result.succeed(hasToken ? addressesOf(Object.values(known).flatMap((infos) => infos ?? [])) : [])
  return Result.flatMap(chosen, (found) => {
    const isChosen = addresses !== undefined || interfaces !== undefined
    const used = isChosen ? found : found.filter((address) => !isLoopback(address))
    const open = used.find((address) => !isLoopback(address))
    if (open !== undefined && !hasToken) {
      return Result.fail(`${open} is not a loopback address, and there is no token to keep strangers out.`)
    }
    return Result.succeed([...new Set(used.length === 0 ? ["127.0.0.1"] : used)])
  })
}

/**
 * The ways from a rank that uses `own` to a peer that listens at `theirs`. Every address of either takes part in one of them
 * where families allow it.
 */
export const waysTo = (own: ReadonlyArray<string>, theirs: ReadonlyArray<Listening>): ReadonlyArray<Way> => {
  const ways: Array<Way> = []
  for (const family of [4, 6]) {
    const to = theirs.filter(({ host }) => isIP(host) === family)
    for (const near of [false, true]) {
      const targets = to.filter(({ host }) => isLoopback(host) === near)
      // From loopback nothing reaches another host, and from another address nothing reaches loopback.
      const sources = own.filter((host) => isIP(host) === family && isLoopback(host) === near)
      for (let at = 0; at < Math.max(targets.length, targets.length > 0 ? sources.length : 0); at++) {
        ways.push({ from: near ? "" : (sources[at % sources.length] ?? ""), to: targets[at % targets.length]! })
      }
    }
  }
  return ways.slice(0, mostWays)
}
