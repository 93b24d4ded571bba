// SPDX-License-Identifier: Apache-2.0
/*
 * Clients at the other end of Unix sockets, and their memory, for JavaScript. JS thread only.
 *
 * Invariant: an array buffer shares ownership of its mapping; `closePeerMemory` detaches it first. Bytes that a script has
 * transferred to another buffer stay mapped until that one is gone.
 */
#include "bindings.h"
#include "peer_memory.h"

namespace tensorferry {
namespace {

Answer peerOf(const Call& call, Whole<2147483647> socket) {
  return answerOf(peerCredentials(static_cast<int>(socket)), [&](const PeerCredentials& peer) {
    Napi::Object object = Napi::Object::New(call.env);
    object.Set("pid", Napi::Number::New(call.env, peer.pid));
    object.Set("isOwnUser", Napi::Boolean::New(call.env, peer.uid == ownUser()));
    return object;
  });
}

Answer openPeerMemory(const Call& call, Whole<2147483647> pid, Whole<2147483647> descriptor, Big inode,
                      Whole<> byteLength) {
  auto opened = PeerMemory::open(static_cast<int32_t>(pid), static_cast<int32_t>(descriptor), inode, byteLength);
  return answerOf(std::move(opened), [&](const std::shared_ptr<PeerMemory>& memory) {
    Napi::Object object = Napi::Object::New(call.env);
    object.Set("memory", wrap(call.env, memory));
    object.Set("address", bigint(call.env, memory->bytes()));
    // An array buffer over nothing counts as detached.
    const auto buffer =
        byteLength == 0 ? Napi::ArrayBuffer() : sharedBuffer(call.env, memory->bytes(), byteLength, memory);
    if (!buffer.IsEmpty()) object.Set("buffer", buffer);
    return object;
  });
}

Status closePeerMemory(const Call& call, std::shared_ptr<PeerMemory> memory, Napi::ArrayBuffer buffer) {
  if (buffer.IsDetached()) return {};
  if (buffer.Data() != memory->bytes() && buffer.ByteLength() > 0)
    return call.refusal("(memory, the memory's own buffer)");
  buffer.Detach();
  memory->close();
  return {};
}

Answer isPeerMemoryCut(const Call& call, std::shared_ptr<PeerMemory> memory) {
  return Napi::Boolean::New(call.env, memory->isCut()).As<Napi::Value>();
}

}  // namespace

void bindPeer(Functions& functions) {
  functions.add<peerOf>("peerOf", "(descriptor of a Unix socket)")
      .add<openPeerMemory>("openPeerMemory", "(pid, descriptor, inode, byteLength)")
      .add<closePeerMemory>("closePeerMemory", "(memory, its buffer)")
      .add<isPeerMemoryCut>("isPeerMemoryCut", "(memory)");
}

}  // namespace tensorferry
