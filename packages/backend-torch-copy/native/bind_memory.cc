// SPDX-License-Identifier: Apache-2.0
/*
 * Shared memory and process identity for JavaScript. JS thread only, except that memory is made on a pool thread:
 * filling it with zeros takes time.
 *
 * Invariant: an array buffer shares ownership of its mapping, so that no view can outlive the memory; `closeMemory`
 * detaches it first, which turns all views into empty ones. Bytes that a script has transferred to another buffer stay
 * mapped until that one is gone.
 */
#include <sys/random.h>

#include <array>

#include "bindings.h"
#include "memory.h"
#include "remote.h"

namespace tensorferry {
namespace {

/** Numbers that the system's calls take as an `int`. */
using Int = Whole<(uint64_t{1} << 31) - 1>;

Napi::Value describe(Napi::Env env, const std::shared_ptr<Memory>& memory, bool expose) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("memory", wrap(env, memory));
  object.Set("address", bigint(env, memory->mapping.address()));
  object.Set("byteLength", static_cast<double>(memory->mapping.length()));
  object.Set("descriptor", memory->descriptor.get());
  object.Set("inode", bigint(env, memory->inode));
  if (expose) {
    const auto buffer = sharedBuffer(env, memory->mapping.address(), memory->mapping.length(), memory);
    if (!buffer.IsEmpty()) object.Set("buffer", buffer);
  }
  return object;
}

Answer startCreateMemory(const Call& call, std::shared_ptr<JobPool> pool, Whole<largestExact, 1> byteLength,
                         Napi::Function callback) {
  const auto create = [byteLength](Job&) { return createMemory(byteLength); };
  const auto give = [](Napi::Env env, const auto& memory) { return describe(env, memory, true); };
  return call.start(pool, makeJob("memfd", create, give), callback);
}

Status closeMemory(const Call& call, std::shared_ptr<Memory> memory, std::optional<Napi::ArrayBuffer> buffer) {
  const bool isElsewhere = buffer && buffer->IsDetached();
  if (buffer && !isElsewhere) {
    if (buffer->Data() != memory->mapping.address()) return call.refusal("(memory, the memory's own buffer)");
    buffer->Detach();
  }
  memory->descriptor.reset();
  if (!isElsewhere) memory->mapping.reset();
  return {};
}

Answer openMemoryOf(const Call& call, Int pid, Big start, Int descriptor, Big inode, Whole<> byteEnd, bool expose,
                    bool shared) {
  const MapAccess access = shared ? MapAccess::shared : expose ? MapAccess::copyOnWrite : MapAccess::readOnly;
  // Scripts look at no bytes of a file that may become shorter.
  const Sealing sealing = access == MapAccess::readOnly ? Sealing::none : Sealing::required;
  auto memory =
      openMemory({static_cast<int32_t>(pid), start, static_cast<int32_t>(descriptor), inode, byteEnd}, access, sealing);
  return answerOf(std::move(memory), [&](const auto& opened) { return describe(call.env, opened, expose); });
}

Answer isMemoryCut(const Call& call, std::shared_ptr<Memory> memory) {
  return Napi::Boolean::New(call.env, memory->mapping.isCut()).As<Napi::Value>();
}

/** How many mappings of other processes' files were found too short so far. */
Answer memoryCuts(const Call& call) {
  return Napi::Number::New(call.env, static_cast<double>(truncationCuts())).As<Napi::Value>();
}

/** Sixteen random bytes at a fixed address: who reads them there has found this very process. */
const std::array<uint8_t, 16>& cookie() {
  static const std::array<uint8_t, 16> bytes = [] {
    std::array<uint8_t, 16> made{};
    if (getrandom(made.data(), made.size(), 0) != static_cast<ssize_t>(made.size())) made.fill(0);
    return made;
  }();
  return bytes;
}

Answer identity(const Call& call) {
  auto start = processStart(getpid());
  if (!start.ok()) return start.status();
  auto space = processSpace();
  if (!space.ok()) return space.status();
  Napi::Object object = Napi::Object::New(call.env);
  object.Set("pid", getpid());
  object.Set("processStart", bigint(call.env, start.value()));
  object.Set("space", space.value());
  object.Set("cookieAddress", bigint(call.env, cookie().data()));
  object.Set("cookie", Napi::Buffer<uint8_t>::Copy(call.env, cookie().data(), cookie().size()));
  return object;
}

Answer processStartOf(const Call& call, Int pid) {
  return answerOf(processStart(static_cast<int32_t>(pid)), [&](uint64_t start) { return bigint(call.env, start); });
}

Status readProcessInto(const Call&, Int pid, Big address, Napi::Uint8Array into) {
  return readProcess(static_cast<int32_t>(pid), address, into.Data(), into.ElementLength());
}

}  // namespace

void bindMemory(Functions& functions) {
  functions.add<startCreateMemory>("startCreateMemory", "(pool, byteLength, callback)")
      .add<closeMemory>("closeMemory", "(memory, buffer or undefined)")
      .add<openMemoryOf>("openMemory", "(pid, processStart, descriptor, inode, byteEnd, expose, shared)")
      .add<isMemoryCut>("isMemoryCut", "(memory)")
      .add<memoryCuts>("memoryCuts", "()")
      .add<identity>("identity", "()")
      .add<processStartOf>("processStart", "(pid)")
      .add<addressOf>("addressOf", "(Uint8Array)")
      .add<readProcessInto>("readProcess", "(pid, address, Uint8Array)");
}

}  // namespace tensorferry
