// SPDX-License-Identifier: Apache-2.0
/**
 * What addons of wires export alike, as `tensorferry/wire/bindings.h` does, and the part of a `Wire` that needs no more.
 */
import type { AddonIdentity, Done, NativeAnswer, NativeHandle } from "../NativeAddon.ts"
import { type JobControl, type NativeJobHandle, runJob } from "../NativeJob.ts"
import type { Wire } from "./WireDriver.ts"

/** One rank at its wire, until `closeEndpoint`. */
export type NativeEndpoint = NativeHandle<"endpoint">
/** A rank that the endpoint was told of. */
export type NativePeer = NativeHandle<"peer">
/** All that a program sends to a peer, or gets from it. */
export type NativeFlow = NativeHandle<"flow">

/** An addon of a wire, apart from how endpoints, peers and flows of its own are made. */
export interface WireAddon extends AddonIdentity, JobControl {
  /** Ends its threads; what is under way fails with Cancelled. */
  readonly closeEndpoint: (endpoint: NativeEndpoint) => NativeAnswer<undefined>
  /** Fails what is under way with the peer. */
  readonly closePeer: (endpoint: NativeEndpoint, peer: NativePeer) => NativeAnswer<undefined>
  /** Ends when the peer can be reached. The item of a failure is the peer's rank, in `startTransfer` too. */
  readonly connectPeer: (
    endpoint: NativeEndpoint,
    peer: NativePeer,
    done: Done<undefined>
  ) => NativeAnswer<NativeJobHandle>
  /** A run under way fails. When this returns, memory of the flow is not touched any more. */
  readonly closeFlow: (endpoint: NativeEndpoint, flow: NativeFlow) => NativeAnswer<undefined>
  /** Begins a run of each flow. */
  readonly startTransfer: (
    endpoint: NativeEndpoint,
    flows: ReadonlyArray<NativeFlow>,
    done: Done<undefined>
  ) => NativeAnswer<NativeJobHandle>
}

/** What every wire does with an endpoint of its addon in the same way. */
export const endpointCalls = (
  addon: WireAddon,
  endpoint: NativeEndpoint
): Pick<Wire<unknown, NativePeer, NativeFlow>, "connect" | "closeFlow" | "start"> => ({
  connect: (peer) =>
    runJob<undefined>(
      addon,
      (done) => addon.connectPeer(endpoint, peer, done),
      () => {}
    ),
  closeFlow: (flow) => {
    addon.closeFlow(endpoint, flow)
  },
  start: (flows, done) => addon.startTransfer(endpoint, flows, done)
})
