// SPDX-License-Identifier: Apache-2.0
/*
 * PyTorch's shared memory for JavaScript. JS thread only.
 *
 * Invariant: an array buffer shares ownership of its mapping; `closeTorchMemory` detaches it first. Bytes that a script has
 * transferred to another buffer stay mapped until that one is gone.
 */
#include "bindings.h"
#include "torch_memory.h"

namespace tensorferry {
namespace {

Answer openTorchMemory(const Call& call, std::string name, Whole<largestExact - 64> byteLength) {
  return answerOf(TorchMemory::open(name, byteLength), [&](const std::shared_ptr<TorchMemory>& memory) {
    Napi::Object object = Napi::Object::New(call.env);
    object.Set("memory", wrap(call.env, memory));
    object.Set("address", bigint(call.env, memory->payload()));
    const auto buffer = sharedBuffer(call.env, memory->payload(), byteLength, memory);
    if (!buffer.IsEmpty()) object.Set("buffer", buffer);
    return object;
  });
}

Status closeTorchMemory(const Call& call, std::shared_ptr<TorchMemory> memory, Napi::ArrayBuffer buffer) {
  const bool isElsewhere = buffer.IsDetached();
  if (!isElsewhere) {
    if (buffer.Data() != memory->payload() && buffer.ByteLength() > 0)
      return call.refusal("(memory, the memory's own buffer)");
    buffer.Detach();
  }
  memory->giveBackCount();
  if (!isElsewhere) memory->close();
  return {};
}

Status returnCount(const Call&, std::string name, Whole<> index) { return returnCudaCount(name, index); }

Status removeCounts(const Call&, std::string name) {
  removeCudaCounts(name);
  return {};
}

Answer isTorchMemoryCut(const Call& call, std::shared_ptr<TorchMemory> memory) {
  return Napi::Boolean::New(call.env, memory->isCut()).As<Napi::Value>();
}

}  // namespace

void bindTorch(Functions& functions) {
  functions.add<openTorchMemory>("openTorchMemory", "(name, byteLength)")
      .add<closeTorchMemory>("closeTorchMemory", "(memory, its buffer)")
      .add<isTorchMemoryCut>("isTorchMemoryCut", "(memory)")
      .add<returnCount>("returnCudaCount", "(name, index)")
      .add<removeCounts>("removeCudaCounts", "(name)");
}

}  // namespace tensorferry
