/**
 * What `Storage.sharing` holds for device memory of this package: where it lies, and on which open device.
 */
import type { Xpu } from "./Xpu.ts"

export class DeviceRegion {
  /** First byte, as a number: addresses are below 2^53. */
  readonly address: number
  readonly xpu: Xpu

  constructor(address: bigint, xpu: Xpu) {
    this.address = Number(address)
    this.xpu = xpu
  }
}
