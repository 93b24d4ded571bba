// SPDX-License-Identifier: Apache-2.0
/**
 * What must hold of slots and tensors before a device hears of them, and the errors where it does not.
 */
import { equalShapes, formatShape } from "../../base/Region.ts"
import {
  type ReplayTransferError,
  type ReplayTransferReason,
  replayTransferError
} from "../../service/ReplayTransferBackend.ts"
import { cpu, type Device, equalDevices, formatDevice } from "../../tensor/Device.ts"
import { isContiguous, type Tensor, tensorByteLength, tensorFault } from "../../tensor/Tensor.ts"

const describe = (tensor: Tensor): string => `${tensor.dtype}${formatShape(tensor.shape)}`

export interface ReplayRefusals {
  readonly refuse: (
    tag: ReplayTransferReason["_tag"],
    op: string,
    detail: string,
    remedy: string,
    slot?: number
  ) => ReplayTransferError
  readonly outOfRange: (op: string, slot: number) => ReplayTransferError
  readonly busy: (slot: number, isRecorded: boolean) => ReplayTransferError
  readonly closed: (op: string, slot?: number) => ReplayTransferError
  readonly late: (op: string, slot: number, what: string, waited: string) => ReplayTransferError
}

/** Errors that name the backend, the device and the slot. */
export const makeRefusals = (backend: string | undefined, device: Device, depth: number): ReplayRefusals => {
  const where = formatDevice(device)
  const refuse: ReplayRefusals["refuse"] = (tag, op, detail, remedy, slot) =>
    replayTransferError(tag, {
      ...(backend === undefined ? {} : { backend }),
      op,
      ...(slot !== undefined && Number.isSafeInteger(slot) ? { slot } : {}),
      detail,
      remedy,
      isRetryable: tag === "SlotBusy" || tag === "DeadlineExceeded"
    })
  return {
    refuse,
    outOfRange: (op, slot) =>
      refuse(
        "SlotOutOfRange",
        op,
        `There is no slot ${slot}: the ring of ${where} has ${depth}.`,
        depth === 0
          ? "Build the backend with a ring depth of at least 1."
          : `Use slots 0 to ${depth - 1}, or build the backend with a greater ring depth.`,
        slot
      ),
    busy: (slot, isRecorded) =>
      refuse(
        "SlotBusy",
        "submitH2d",
        isRecorded
          ? `A submission into slot ${slot} of ${where} waits for its consumer.`
          : `The copy into slot ${slot} of ${where} is running.`,
        isRecorded
          ? "Have the consumer wait for it, or clear the slot."
          : "Wait for the slot, or submit into another one.",
        slot
      ),
    closed: (op, slot) =>
      refuse("DeviceFailure", op, `The replay backend of ${where} was closed.`, "Build it again.", slot),
    late: (op, slot, what, waited) =>
      refuse(
        "DeadlineExceeded",
        op,
        `${what} slot ${slot} of ${where} for ${waited}.`,
        "Look at who submits into the slot and at the device; raise the deadline if they are merely slow.",
        slot
      )
  }
}

const freedRemedy = "Keep the scope that allocated the storage open while it is used."

type Objection = ReplayTransferError | undefined

/** What may be asked of every tensor; `role` names it in errors. */
const makeTensorCheck =
  ({ refuse }: ReplayRefusals) =>
  (op: string, role: string, tensor: Tensor, device: Device, slot: number): Objection => {
    if (tensor.storage.isFreed()) {
      return refuse("FreedStorage", op, `The storage of the ${role} ${describe(tensor)} was freed.`, freedRemedy, slot)
    }
    if (!equalDevices(tensor.device, device) || !equalDevices(tensor.storage.device, device)) {
      const place = formatDevice(equalDevices(tensor.device, device) ? tensor.storage.device : tensor.device)
      return refuse(
        "DeviceMismatch",
        op,
        `The ${role} ${describe(tensor)} is on ${place}, not on ${formatDevice(device)}.`,
        "Copies go from host slots to slots of the backend's device.",
        slot
      )
    }
    const fault = tensorFault(tensor, role === "destination")
    if (fault !== undefined) {
      return refuse(
        "ShapeMismatch",
        op,
        `The ${role} cannot be used: ${fault}.`,
        "Make views with tensorView or sliceTensor.",
        slot
      )
    }
    return isContiguous(tensor)
      ? undefined
      : refuse(
          "ShapeMismatch",
          op,
          `The ${role} ${describe(tensor)} has strides [${tensor.strides.join(",")}].`,
          "Give dense tensors: pack the rows into a slot of their own first.",
          slot
        )
  }

/** Checks of the backend of one device. */
export const makeReplayChecks = (refusals: ReplayRefusals, device: Device, origin: Device = cpu) => {
  const { refuse } = refusals
  const checkTensor = makeTensorCheck(refusals)

  /** Freed memory, the one thing that may change of a pair that was found right. */
  const freed = (slot: number, destination: Tensor, source: Tensor): Objection => {
    const op = "submitH2d"
    return destination.storage.isFreed()
      ? checkTensor(op, "destination", destination, device, slot)
      : source.storage.isFreed()
        ? checkTensor(op, "source", source, origin, slot)
        : undefined
  }

  const pair = (slot: number, destination: Tensor, source: Tensor): Objection => {
    const op = "submitH2d"
    const objection =
      checkTensor(op, "destination", destination, device, slot) ?? checkTensor(op, "source", source, origin, slot)
    if (objection !== undefined) return objection
    if (destination.dtype !== source.dtype) {
      return refuse(
        "DTypeMismatch",
        op,
        `The destination ${describe(destination)} and the source ${describe(source)} differ in type.`,
        "Give both the same element type; this transfer does not convert.",
        slot
      )
    }
    return equalShapes(destination.shape, source.shape)
      ? undefined
      : refuse(
          "ShapeMismatch",
          op,
          `The destination ${describe(destination)} and the source ${describe(source)} differ in shape.`,
          "Give both the same shape.",
          slot
        )
  }

  /** Host slots that a list registers: each of the host, dense and alive, no two over the same bytes. */
  const hostSlots = (slots: ReadonlyArray<Tensor>): Objection => {
    const op = "registerHostSlots"
    for (const [index, slot] of slots.entries()) {
      const objection = checkTensor(op, "host slot", slot, origin, index)
      if (objection !== undefined) return objection
    }
    const ranges = slots
      .map((slot, index) => {
        const start = slot.storage.address + BigInt(slot.byteOffset)
        return { index, start, end: start + BigInt(tensorByteLength(slot)) }
      })
      .filter(({ start, end }) => start < end)
      .sort((a, b) => (a.start < b.start ? -1 : a.start > b.start ? 1 : a.index - b.index))
    for (const [at, range] of ranges.entries()) {
      const next = ranges[at + 1]
      if (next !== undefined && next.start < range.end) {
        const later = Math.max(range.index, next.index)
        return refuse(
          "RegistrationFailed",
          op,
          `Host slots ${Math.min(range.index, next.index)} and ${later} share bytes.`,
          "Register each host slot once, in memory of its own.",
          later
        )
      }
    }
    return undefined
  }

  return { freed, pair, hostSlots }
}
