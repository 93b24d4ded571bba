// SPDX-License-Identifier: Apache-2.0
/*
 * Functions that addons of wires export alike: peers, flows and transfers of their endpoint. JS thread only; bytes move on the
 * endpoint's threads.
 */
#pragma once

#include "../functions.h"
#include "byte_stream.h"

namespace tensorferry::wire {

template <typename Endpoint, typename Peer>
Status closePeer(const Call&, Held<Endpoint> endpoint, Held<Peer> peer) {
  endpoint->closePeer(peer);
  return {};
}

template <typename Endpoint, typename Peer, typename ConnectJob>
Answer connectPeer(const Call& call, Open<Endpoint> endpoint, Held<Peer> peer, Napi::Function callback) {
  const std::shared_ptr<Endpoint> owner(endpoint);
  auto job = std::make_shared<ConnectJob>(owner, peer);
  const Napi::Value handle = Jobs::of(call.env)->begin(owner, job, callback);
  owner->connect(job);
  return handle;
}

template <typename Endpoint, typename Flow>
Status closeFlow(const Call&, Held<Endpoint> endpoint, Held<Flow> flow) {
  endpoint->closeFlow(flow);
  return {};
}

template <typename Endpoint, typename Flow, typename Transfer>
Answer startTransfer(const Call& call, Open<Endpoint> endpoint, std::vector<Held<Flow>> flows,
                     Napi::Function callback) {
  if (flows.empty()) return call.refusal();
  const std::shared_ptr<Endpoint> owner(endpoint);
  auto transfer = std::make_shared<Transfer>(owner);
  const Napi::Value handle = Jobs::of(call.env)->begin(owner, transfer, callback);
  owner->start(transfer, {flows.begin(), flows.end()});
  return handle;
}

/** Exports what an addon's endpoint does for peers that were added, and its end. */
template <typename Endpoint, typename Peer, typename ConnectJob>
void bindPeers(Functions& functions) {
  functions.add<close<Held<Endpoint>>>("closeEndpoint", "(endpoint)")
      .template add<closePeer<Endpoint, Peer>>("closePeer", "(endpoint, peer)")
      .template add<connectPeer<Endpoint, Peer, ConnectJob>>("connectPeer", "(endpoint, peer, callback)");
}

/** Exports what an addon's endpoint does for flows that were added. */
template <typename Endpoint, typename Flow, typename Transfer>
void bindTransfers(Functions& functions) {
  functions.add<closeFlow<Endpoint, Flow>>("closeFlow", "(endpoint, flow)")
      .template add<startTransfer<Endpoint, Flow, Transfer>>("startTransfer", "(endpoint, flows, callback)");
}

}  // namespace tensorferry::wire
