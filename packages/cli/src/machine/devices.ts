// SPDX-License-Identifier: Apache-2.0
/**
 * Graphics processors, from what their drivers publish in /proc and /sys; no vendor's program or library is asked.
 *
 * Invariant: a device is listed once, under its address on the bus, whatever number of drivers' files name it.
 */
import { type Fact, fact } from "./Fact.ts"
import { type Access, parseFields, type SystemFiles } from "./SystemFiles.ts"

const vendors: Readonly<Record<string, { readonly name: string; readonly family: string }>> = {
  "0x10de": { name: "NVIDIA", family: "cuda" },
  "0x1002": { name: "AMD", family: "rocm" },
  "0x8086": { name: "Intel", family: "xpu" }
}

export interface DeviceFile {
  readonly file: string
  readonly access: Access
}

export interface FoundDevice {
  /** Address on the bus, as 0000:65:00.0. */
  readonly address: string
  readonly vendor: string
  /** Device family of tensors on it; undefined for vendors that no backend is for. */
  readonly family: string | undefined
  readonly model: string
  readonly driver: string | undefined
  readonly files: ReadonlyArray<DeviceFile>
}

interface Sighting {
  readonly address: string
  readonly vendorId: string
  readonly model?: string
  readonly driver?: string
  readonly files: ReadonlyArray<string>
}

/** The version in the first line of /proc/driver/nvidia/version. */
export const parseNvidiaVersion = (text: string): string | undefined => /\s(\d+\.\d+(?:\.\d+)?)\s/.exec(`${text} `)?.[1]

const nvidiaFolder = "/proc/driver/nvidia"

const nvidiaDevices = (files: SystemFiles): ReadonlyArray<Sighting> => {
  const driver = parseNvidiaVersion((files.read(`${nvidiaFolder}/version`) ?? "").split("\n")[0]!)
  return files.list(`${nvidiaFolder}/gpus`).map((folder) => {
    const fields = parseFields(files.read(`${nvidiaFolder}/gpus/${folder}/information`) ?? "")
    const minor = fields.get("Device Minor")
    return {
      address: (fields.get("Bus Location") ?? folder).toLowerCase(),
      vendorId: "0x10de",
      ...(fields.has("Model") ? { model: fields.get("Model")! } : {}),
      ...(driver === undefined ? {} : { driver: `driver ${driver}` }),
      files: [...(minor === undefined ? [] : [`/dev/nvidia${minor}`]), "/dev/nvidiactl", "/dev/nvidia-uvm"]
    }
  })
}

const displayFolder = "/sys/class/drm"

/** Address and driver of the device behind a folder of /sys/class/drm. */
const behind = (files: SystemFiles, name: string) => {
  const event = files.read(`${displayFolder}/${name}/device/uevent`) ?? ""
  const field = (key: string) => new RegExp(`^${key}=(.+)$`, "m").exec(event)?.[1]
  return { address: field("PCI_SLOT_NAME"), driver: field("DRIVER") }
}

const displayDevices = (files: SystemFiles): ReadonlyArray<Sighting> => {
  const names = files.list(displayFolder)
  const nodes = new Map(
    names
      .filter((name) => /^renderD\d+$/.test(name))
      .map((name) => [behind(files, name).address, `/dev/dri/${name}`] as const)
  )
  return names
    .filter((name) => /^card\d+$/.test(name))
    .flatMap((name) => {
      const vendorId = files.read(`${displayFolder}/${name}/device/vendor`)
      const { address, driver } = behind(files, name)
      if (vendorId === undefined || address === undefined) return []
      const deviceId = files.read(`${displayFolder}/${name}/device/device`)
      const node = nodes.get(address)
      return [
        {
          address: address.toLowerCase(),
          vendorId,
          ...(deviceId === undefined ? {} : { model: `device ${deviceId}` }),
          ...(driver === undefined ? {} : { driver: `driver ${driver}` }),
          // NVIDIA's libraries reach their devices through files of their own.
          files: vendorId === "0x10de" || node === undefined ? [] : [node]
        }
      ]
    })
}

const computeFolder = "/sys/class/kfd/kfd/topology/nodes"
const hex = (value: number, digits: number): string => value.toString(16).padStart(digits, "0")

/** Bus address from the two numbers that AMD's compute driver states. */
export const addressOfLocation = (domain: number, location: number): string =>
  `${hex(domain, 4)}:${hex((location >> 8) & 0xff, 2)}:${hex((location >> 3) & 0x1f, 2)}.${location & 7}`

const computeDevices = (files: SystemFiles): ReadonlyArray<Sighting> =>
  files.list(computeFolder).flatMap((node) => {
    const text = files.read(`${computeFolder}/${node}/properties`) ?? ""
    const number = (key: string) => Number(new RegExp(`^${key} (\\d+)$`, "m").exec(text)?.[1] ?? 0)
    // Nodes without such units are processors.
    if (number("simd_count") === 0) return []
    const minor = number("drm_render_minor")
    const target = number("gfx_target_version")
    return [
      {
        address: addressOfLocation(number("domain"), number("location_id")),
        vendorId: `0x${hex(number("vendor_id"), 4)}`,
        ...(target === 0
          ? {}
          : { model: `gfx${Math.floor(target / 1e4)}${Math.floor(target / 100) % 100}${hex(target % 100, 1)}` }),
        files: ["/dev/kfd", ...(minor === 0 ? [] : [`/dev/dri/renderD${minor}`])]
      }
    ]
  })

/** All devices that drivers report; what several say of one is merged, the vendor's own words first. */
export const findDevices = (files: SystemFiles): ReadonlyArray<FoundDevice> => {
  const byAddress = new Map<string, Array<Sighting>>()
  for (const sighting of [...nvidiaDevices(files), ...computeDevices(files), ...displayDevices(files)]) {
    byAddress.set(sighting.address, [...(byAddress.get(sighting.address) ?? []), sighting])
  }
  return [...byAddress]
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([address, sightings]) => {
      const vendor = vendors[sightings[0]!.vendorId]
      const models = sightings.flatMap(({ model }) => (model === undefined ? [] : [model]))
      const own = models.filter((model) => !model.startsWith("device 0x"))
      return {
        address,
        vendor: vendor?.name ?? `vendor ${sightings[0]!.vendorId}`,
        family: vendor?.family,
        model: (own.length > 0 ? own : models)[0] ?? "unknown model",
        driver: sightings.find(({ driver }) => driver !== undefined)?.driver,
        files: [...new Set(sightings.flatMap((sighting) => sighting.files))].map((file) => ({
          file,
          access: files.access(file)
        }))
      }
    })
}

const remedyFor = (device: FoundDevice): string | undefined => {
  if (device.family === undefined) return undefined
  const named = (access: Access): string =>
    device.files
      .filter((file) => file.access === access)
      .map(({ file }) => file)
      .join(", ")
  const [absent, denied] = [named("absent"), named("denied")]
  if (absent !== "") return `${absent} is missing: load the driver, or pass the device into the container.`
  return denied === ""
    ? undefined
    : `This user may not open ${denied}: join the group that owns the file (ls -l), often video or render.`
}

export const deviceFacts = (devices: ReadonlyArray<FoundDevice>): ReadonlyArray<Fact> =>
  devices.map((device) => {
    const usable = device.files.filter(({ access }) => access === "read-write")
    const opened = device.files.length === 0 ? [] : [`${usable.length} of ${device.files.length} device files usable`]
    const parts = [
      `${device.vendor} ${device.model}`,
      ...(device.driver === undefined ? [] : [device.driver]),
      ...opened,
      ...(device.family === undefined ? ["no backend supports it"] : [])
    ]
    return fact(device.address, parts.join(", "), { ...device }, remedyFor(device))
  })
