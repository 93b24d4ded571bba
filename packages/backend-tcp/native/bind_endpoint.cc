// SPDX-License-Identifier: Apache-2.0
/*
 * Endpoints and peers for JavaScript. JS thread only; connections are made by the endpoint's threads.
 */
#include <tensorferry/wire/bindings.h>

#include "bindings.h"
#include "endpoint.h"

namespace tensorferry::tcp {
namespace {

using Port = Whole<65535>;

Status notAnAddress(const std::string& text) {
  return failure(Code::InvalidArgument, "inet_pton", text + " is no address of IPv4 or IPv6.");
}

Result<std::vector<Address>> addressesOf(const std::vector<std::string>& texts, const std::vector<Port>& ports) {
  std::vector<Address> addresses;
  for (size_t i = 0; i < texts.size(); i++) {
    const auto address = Address::parse(texts[i], static_cast<uint16_t>(i < ports.size() ? ports[i].value : 0));
    if (!address) return notAnAddress(texts[i]);
    addresses.push_back(*address);
  }
  return addresses;
}

Answer createEndpoint(const Call& call, Whole<0xffffffff> rank, BytesOf<wire::EndpointId> id,
                      BytesOf<wire::Bytes32> key, Whole<16, 1> threads, Whole<64, 1> lanes,
                      Whole<(uint64_t{1} << 40), 1> deadlineMillis, std::vector<std::string> hosts, Port port) {
  auto addresses = addressesOf(hosts, std::vector<Port>(hosts.size(), port));
  if (!addresses.ok()) return addresses.status();
  Settings settings;
  settings.rank = static_cast<uint32_t>(rank.value);
  settings.id = id.value;
  settings.key = key.value;
  settings.threads = threads;
  settings.lanes = lanes;
  settings.deadline = std::chrono::milliseconds(deadlineMillis.value);
  auto endpoint = std::make_shared<Endpoint>(settings);
  auto listening = endpoint->open(addresses.value());
  if (!listening.ok()) return listening.status();
  Jobs::of(call.env)->closeAtEnd(endpoint);
  Napi::Object object = Napi::Object::New(call.env);
  object.Set("endpoint", wrap(call.env, endpoint));
  Napi::Array ports = Napi::Array::New(call.env);
  for (const auto& address : listening.value()) ports.Set(ports.Length(), Napi::Number::New(call.env, address.port()));
  object.Set("ports", ports);
  return Napi::Value(object);
}

/** Ways from an address of this host, or from any where the text is empty, each to an address of the peer. */
Answer addPeer(const Call& call, Open<Endpoint> endpoint, Whole<0xffffffff> rank, BytesOf<wire::EndpointId> id,
               BytesOf<wire::Bytes32> key, std::vector<std::string> from, std::vector<std::string> hosts,
               std::vector<Port> ports) {
  if (from.size() != hosts.size() || ports.size() != hosts.size()) return call.refusal();
  auto targets = addressesOf(hosts, ports);
  if (!targets.ok()) return targets.status();
  std::vector<Path> paths;
  for (size_t i = 0; i < from.size(); i++) {
    const auto source = Address::parse(from[i], 0);
    if (!source && !from[i].empty()) return notAnAddress(from[i]);
    paths.push_back({source, targets.value()[i], {}, false, false, {}});
  }
  return wrap(call.env, endpoint->addPeer(static_cast<uint32_t>(rank.value), id.value, key.value, std::move(paths)));
}

Answer describePeer(const Call& call, Held<Endpoint> endpoint, Held<Peer> peer) {
  return Napi::Value(toJs(call.env, endpoint->describe(peer)));
}

}  // namespace

void bindEndpoint(Functions& functions) {
  wire::bindPeers<Endpoint, Peer, ConnectJob>(functions);
  functions.add<createEndpoint>("createEndpoint", "(rank, id, key, threads, lanes, deadlineMillis, addresses, port)")
      .add<addPeer>("addPeer", "(endpoint, rank, id, key, own addresses or empty texts, addresses, ports)")
      .add<describePeer>("describePeer", "(endpoint, peer)");
}

}  // namespace tensorferry::tcp
