// SPDX-License-Identifier: Apache-2.0
/** Which addresses a rank uses, and which ways lead from it to a peer. */
import type { NetworkInterfaceInfo } from "node:os"
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import { chooseAddresses, waysTo } from "../src/addresses.ts"

const info = (address: string): NetworkInterfaceInfo =>
  ({
    address,
    family: address.includes(":") ? "IPv6" : "IPv4",
    internal: /^127|^::1/.test(address)
  }) as NetworkInterfaceInfo
const known = {
  lo: [info("127.0.0.1"), info("::1")],
  eth0: [info("10.0.0.1"), info("fd00::1"), info("fe80::1")],
  eth1: [info("10.1.0.1")],
  down0: [info("fe80::2")]
}
const choose = (choice: Parameters<typeof chooseAddresses>[0]) => chooseAddresses(choice, known)

describe("chooseAddresses", () => {
  it("uses loopback alone where there is no token", () => {
    assert.deepStrictEqual(Result.getOrThrow(choose({ hasToken: false })), ["127.0.0.1"])
  })

  it("uses all interfaces but loopback where there is a token", () => {
    assert.deepStrictEqual(Result.getOrThrow(choose({ hasToken: true })), ["10.0.0.1", "fd00::1", "10.1.0.1"])
    assert.deepStrictEqual(Result.getOrThrow(chooseAddresses({ hasToken: true }, { lo: known.lo })), ["127.0.0.1"])
  })

  it("uses the interfaces and addresses that are named", () => {
    const of = (choice: object) => Result.getOrThrow(choose({ hasToken: true, ...choice }))
    assert.deepStrictEqual(of({ interfaces: ["eth1"] }), ["10.1.0.1"])
    assert.deepStrictEqual(of({ interfaces: ["lo", "eth1", "eth1"] }), ["127.0.0.1", "::1", "10.1.0.1"])
    assert.deepStrictEqual(of({ addresses: ["192.0.2.1"] }), ["192.0.2.1"])
    assert.deepStrictEqual(Result.getOrThrow(choose({ hasToken: false, interfaces: ["lo"] })), ["127.0.0.1", "::1"])
  })

  it("refuses what is beyond loopback without a token", () => {
    for (const choice of [{ interfaces: ["eth0"] }, { addresses: ["::"] }, { addresses: ["127.0.0.1", "0.0.0.0"] }]) {
      assert.match(Result.getOrThrow(Result.flip(choose({ hasToken: false, ...choice }))), /there is no token/)
    }
  })

  it("names what does not exist", () => {
    const fault = (choice: object) => Result.getOrThrow(Result.flip(choose({ hasToken: true, ...choice })))
    assert.strictEqual(
      fault({ interfaces: ["eth7"] }),
      "There is no interface eth7; this host has lo, eth0, eth1, down0."
    )
    assert.match(fault({ interfaces: ["down0"] }), /no address that peers could use at down0/)
    assert.match(fault({ addresses: ["example.org"] }), /example.org is no address/)
  })
})

describe("waysTo", () => {
  const at = (host: string) => ({ host, port: 7 })
  const ways = (own: ReadonlyArray<string>, theirs: ReadonlyArray<string>) =>
    waysTo(own, theirs.map(at)).map(({ from, to }) => `${from}>${to.host}`)

  it("gives every address of either side a part", () => {
    assert.deepStrictEqual(ways(["10.0.0.1", "10.1.0.1"], ["10.0.0.2", "10.1.0.2"]), [
      "10.0.0.1>10.0.0.2",
      "10.1.0.1>10.1.0.2"
    ])
    assert.deepStrictEqual(ways(["10.0.0.1"], ["10.0.0.2", "10.1.0.2"]), ["10.0.0.1>10.0.0.2", "10.0.0.1>10.1.0.2"])
    assert.deepStrictEqual(ways(["10.0.0.1", "10.1.0.1"], ["10.0.0.2"]), ["10.0.0.1>10.0.0.2", "10.1.0.1>10.0.0.2"])
  })

  it("stays within a family, and with loopback to itself", () => {
    assert.deepStrictEqual(ways(["10.0.0.1", "fd00::1"], ["fd00::2", "10.0.0.2"]), [
      "10.0.0.1>10.0.0.2",
      "fd00::1>fd00::2"
    ])
    assert.deepStrictEqual(ways(["10.0.0.1"], ["127.0.0.1", "::1"]), [">127.0.0.1", ">::1"])
    assert.deepStrictEqual(ways(["127.0.0.1"], ["10.0.0.2"]), [">10.0.0.2"])
    assert.deepStrictEqual(ways(["10.0.0.1"], []), [])
  })

  it("is bounded, whatever a peer publishes", () => {
    const many = Array.from({ length: 256 }, (_, at) => `10.0.1.${at}`)
    assert.strictEqual(ways(["10.0.0.1"], many).length, 64)
  })
})
