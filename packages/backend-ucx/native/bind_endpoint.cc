// SPDX-License-Identifier: Apache-2.0
/*
 * The library, endpoints and peers for JavaScript. JS thread only; UCX works on the endpoint's thread.
 */
#include <tensorferry/wire/bindings.h>

#include "bindings.h"
#include "endpoint.h"

namespace tensorferry::ucx {
namespace {

/** The library in JavaScript hands. */
struct LibraryHandle {
  static constexpr napi_type_tag typeTag{0x1f6a70bd82c94e35, 0x93c85ad20e47f61b};
  static constexpr const char* kind = "library";
  std::shared_ptr<const Library> library;
};

Napi::Value bytes(Napi::Env env, const std::string& text) {
  return Napi::Buffer<uint8_t>::Copy(env, reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

Answer open(const Call& call, std::vector<std::string> names) {
  const auto opened = openLibrary(names);
  Napi::Object object = Napi::Object::New(call.env);
  object.Set("tried", toJs(call.env, opened.opening.tried));
  object.Set("problem", opened.opening.problem);
  if (opened.library == nullptr) return Napi::Value(object);
  const auto& library = *opened.library;
  object.Set("library", wrap(call.env, std::make_shared<LibraryHandle>(LibraryHandle{opened.library})));
  object.Set("path", library.path);
  object.Set("version", library.version);
  object.Set("interface", std::to_string(library.major) + "." + std::to_string(library.minor));
  return Napi::Value(object);
}

Answer createEndpoint(const Call& call, Held<LibraryHandle> handle, Whole<0xffffffff> rank,
                      Whole<(uint64_t{1} << 40), 1> deadlineMillis, Whole<65536, 1> slots, Whole<0xffffffff> peers,
                      Whole<3> way, std::vector<std::string> names, std::vector<std::string> values) {
  if (names.size() != values.size()) return call.refusal();
  Settings settings;
  settings.rank = static_cast<uint32_t>(rank.value);
  settings.deadline = std::chrono::milliseconds(deadlineMillis.value);
  settings.slots = slots;
  settings.peers = peers;
  settings.way = static_cast<Way>(way.value);
  for (size_t i = 0; i < names.size(); i++) settings.config.emplace_back(names[i], values[i]);
  auto endpoint = std::make_shared<Endpoint>(handle->library, std::move(settings));
  if (const Status status = endpoint->open(); !status.ok()) return status;
  Jobs::of(call.env)->closeAtEnd(endpoint);
  Napi::Object object = Napi::Object::New(call.env);
  object.Set("endpoint", wrap(call.env, endpoint));
  object.Set("address", bytes(call.env, endpoint->address()));
  object.Set("transports", toJs(call.env, endpoint->transports()));
  return Napi::Value(object);
}

Answer addPeer(const Call& call, Open<Endpoint> endpoint, Whole<0xffffffff> rank, Bytes address, BytesOf<Ticket> ours,
               BytesOf<Ticket> theirs) {
  if (address.value.empty()) return call.refusal();
  auto peer = std::make_shared<Peer>();
  peer->rank = static_cast<uint32_t>(rank.value);
  peer->address = std::move(address.value);
  peer->ours = ours.value;
  peer->theirs = theirs.value;
  endpoint->addPeer(peer);
  return wrap(call.env, std::move(peer));
}

Answer describePeer(const Call& call, Held<Endpoint> endpoint, Held<Peer> peer) {
  const auto [lanes, isPutting] = endpoint->describe(peer);
  Napi::Object object = Napi::Object::New(call.env);
  object.Set("lanes", lanes);
  object.Set("isPutting", isPutting);
  return Napi::Value(object);
}

Answer registerMemory(const Call& call, Open<Endpoint> endpoint, Big address, Whole<largestExact, 1> length) {
  return wrap(call.env, endpoint->remember(address, length));
}

Status unregisterMemory(const Call&, Held<Endpoint> endpoint, Held<Region> region) {
  endpoint->forget(region);
  return {};
}

}  // namespace

void bindEndpoint(Functions& functions) {
  wire::bindPeers<Endpoint, Peer, ConnectJob>(functions);
  functions.add<open>("openLibrary", "(names)")
      .add<createEndpoint>("createEndpoint",
                           "(library, rank, deadlineMillis, slots, peers, way: 0 to 3, names, values)")
      .add<addPeer>("addPeer", "(endpoint, rank, address, own ticket, ticket of the peer)")
      .add<describePeer>("describePeer", "(endpoint, peer)")
      .add<registerMemory>("registerMemory", "(endpoint, address, length)")
      .add<unregisterMemory>("unregisterMemory", "(endpoint, region)");
}

}  // namespace tensorferry::ucx
