// SPDX-License-Identifier: Apache-2.0
/**
 * What `Storage.sharing` holds for device memory of this package: where it lies, and on which open device.
 */
import type { Device } from "@tensorferry/core/tensor/Device"
import type { NativeDevice } from "./Addon.ts"

/** The open device that a region lies on. */
export interface RegionDevice {
  readonly native: NativeDevice
  readonly device: Device
}

export class DeviceRegion {
  /** First byte, as a number: addresses are below 2^53. */
  readonly address: number
  readonly xpu: RegionDevice

  constructor(address: bigint, xpu: RegionDevice) {
    this.address = Number(address)
    this.xpu = xpu
  }
}
