// SPDX-License-Identifier: Apache-2.0
/*
 * Shared memory and process identity for JavaScript. JS thread only, except that memory is made on a pool thread:
 * filling it with zeros takes time.
 *
 * Invariant: an array buffer shares ownership of its mapping, so that no view can outlive the memory; `closeMemory`
 * detaches it first, which turns all views into empty ones.
 */
#include <sys/random.h>

#include <array>

#include <tensorferry/napi_jobs.h>

#include "bindings.h"
#include "memory.h"
#include "remote.h"

namespace tensorferry {
namespace {

Napi::Value bigint(Napi::Env env, uint64_t value) { return Napi::BigInt::New(env, value); }

uint64_t addressOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

/** A whole number in a JavaScript number; `limit` is the largest allowed. */
bool readNumber(Napi::Value value, uint64_t limit, uint64_t& out) {
  if (!value.IsNumber()) return false;
  const double number = value.As<Napi::Number>().DoubleValue();
  if (!(number >= 0 && number <= static_cast<double>(limit)) ||
      number != static_cast<double>(static_cast<uint64_t>(number)))
    return false;
  out = static_cast<uint64_t>(number);
  return true;
}

bool readBigint(Napi::Value value, uint64_t& out) {
  if (!value.IsBigInt()) return false;
  bool lossless = false;
  out = value.As<Napi::BigInt>().Uint64Value(&lossless);
  return lossless;
}

constexpr uint64_t exact = (1ull << 53) - 1;
constexpr uint64_t positive = (1ull << 31) - 1;

Napi::Value describe(Napi::Env env, const std::shared_ptr<Memory>& memory, bool expose) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("memory", wrap(env, memory));
  object.Set("address", bigint(env, addressOf(memory->mapping.address())));
  object.Set("byteLength", static_cast<double>(memory->mapping.length()));
  object.Set("descriptor", memory->descriptor.get());
  object.Set("inode", bigint(env, memory->inode));
  if (expose) {
    auto* held = new std::shared_ptr<Memory>(memory);
    auto buffer = Napi::ArrayBuffer::New(
        env, memory->mapping.address(), memory->mapping.length(),
        [](Napi::Env, void*, std::shared_ptr<Memory>* owner) { delete owner; }, held);
    if (buffer.IsEmpty()) {
      held->reset();  // as in type_tags.h: a thread that is being terminated gets no buffer
    } else {
      object.Set("buffer", buffer);
    }
  }
  return object;
}

class CreateJob final : public Job {
 public:
  explicit CreateJob(uint64_t byteLength) : byteLength_(byteLength) {}
  void run(size_t) noexcept override {
    Status status = caught("memfd", [&] {
      auto made = createMemory(byteLength_);
      if (made.ok()) memory_ = made.value();
      return made.ok() ? Status{} : made.status();
    });
    if (!status.ok()) fail(std::move(status));
  }
  Napi::Value value(Napi::Env env) override { return describe(env, memory_, true); }

 private:
  uint64_t byteLength_;
  std::shared_ptr<Memory> memory_;
};

Napi::Value startCreateMemory(const Napi::CallbackInfo& info) {
  return guarded(info, "startCreateMemory", [&]() -> Napi::Value {
    uint64_t byteLength = 0;
    auto pool = info.Length() == 3 ? unwrap<JobPool>(info[0]) : nullptr;
    if (pool == nullptr || !readNumber(info[1], exact, byteLength) || byteLength == 0 || !info[2].IsFunction())
      return toJs(info.Env(), badArgument("startCreateMemory", "(pool, byteLength, callback)"));
    return Jobs::of(info.Env())->start(pool, std::make_shared<CreateJob>(byteLength), info[2].As<Napi::Function>());
  });
}

Napi::Value closeMemory(const Napi::CallbackInfo& info) {
  return guarded(info, "closeMemory", [&]() -> Napi::Value {
    auto memory = info.Length() == 2 ? unwrap<Memory>(info[0]) : nullptr;
    if (memory == nullptr) return toJs(info.Env(), badArgument("closeMemory", "(memory, buffer or undefined)"));
    if (info[1].IsArrayBuffer()) {
      auto buffer = info[1].As<Napi::ArrayBuffer>();
      const bool isOurs = buffer.Data() == memory->mapping.address() || buffer.IsDetached();
      if (!isOurs) return toJs(info.Env(), badArgument("closeMemory", "(memory, the memory's own buffer)"));
      if (!buffer.IsDetached()) buffer.Detach();
    }
    memory->descriptor.reset();
    memory->mapping.reset();
    return succeed(info.Env());
  });
}

Napi::Value openMemoryOf(const Napi::CallbackInfo& info) {
  return guarded(info, "openMemory", [&]() -> Napi::Value {
    uint64_t pid = 0, start = 0, descriptor = 0, inode = 0, byteEnd = 0;
    const bool valid = info.Length() == 7 && readNumber(info[0], positive, pid) && readBigint(info[1], start) &&
                       readNumber(info[2], positive, descriptor) && readBigint(info[3], inode) &&
                       readNumber(info[4], exact, byteEnd) && info[5].IsBoolean() && info[6].IsBoolean();
    if (!valid)
      return toJs(info.Env(),
                  badArgument("openMemory", "(pid, processStart, descriptor, inode, byteEnd, expose, shared)"));
    const bool expose = info[5].As<Napi::Boolean>().Value();
    const MapAccess access = info[6].As<Napi::Boolean>().Value() ? MapAccess::shared
                             : expose                            ? MapAccess::copyOnWrite
                                                                 : MapAccess::readOnly;
    auto memory =
        openMemory({static_cast<int32_t>(pid), start, static_cast<int32_t>(descriptor), inode, byteEnd}, access);
    if (!memory.ok()) return toJs(info.Env(), memory.status());
    return succeed(info.Env(), describe(info.Env(), memory.value(), expose));
  });
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

Napi::Value identity(const Napi::CallbackInfo& info) {
  return guarded(info, "identity", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto start = processStart(getpid());
    if (!start.ok()) return toJs(env, start.status());
    auto space = processSpace();
    if (!space.ok()) return toJs(env, space.status());
    Napi::Object object = Napi::Object::New(env);
    object.Set("pid", getpid());
    object.Set("processStart", bigint(env, start.value()));
    object.Set("space", space.value());
    object.Set("cookieAddress", bigint(env, addressOf(cookie().data())));
    object.Set("cookie", Napi::Buffer<uint8_t>::Copy(env, cookie().data(), cookie().size()));
    return succeed(env, object);
  });
}

Napi::Value processStartOf(const Napi::CallbackInfo& info) {
  return guarded(info, "processStart", [&]() -> Napi::Value {
    uint64_t pid = 0;
    if (info.Length() != 1 || !readNumber(info[0], positive, pid))
      return toJs(info.Env(), badArgument("processStart", "(pid)"));
    auto start = processStart(static_cast<int32_t>(pid));
    if (!start.ok()) return toJs(info.Env(), start.status());
    return succeed(info.Env(), bigint(info.Env(), start.value()));
  });
}

bool isBytes(Napi::Value value) {
  return value.IsTypedArray() && value.As<Napi::TypedArray>().TypedArrayType() == napi_uint8_array;
}

Napi::Value addressOfBytes(const Napi::CallbackInfo& info) {
  return guarded(info, "addressOf", [&]() -> Napi::Value {
    if (info.Length() != 1 || !isBytes(info[0])) return toJs(info.Env(), badArgument("addressOf", "(Uint8Array)"));
    return succeed(info.Env(), bigint(info.Env(), addressOf(info[0].As<Napi::Uint8Array>().Data())));
  });
}

Napi::Value readProcessInto(const Napi::CallbackInfo& info) {
  return guarded(info, "readProcess", [&]() -> Napi::Value {
    uint64_t pid = 0, address = 0;
    if (info.Length() != 3 || !readNumber(info[0], positive, pid) || !readBigint(info[1], address) || !isBytes(info[2]))
      return toJs(info.Env(), badArgument("readProcess", "(pid, address, Uint8Array)"));
    auto into = info[2].As<Napi::Uint8Array>();
    return toJs(info.Env(), readProcess(static_cast<int32_t>(pid), address, into.Data(), into.ElementLength()));
  });
}

}  // namespace

void bindMemory(Napi::Env env, Napi::Object exports) {
  exports.Set("startCreateMemory", Napi::Function::New(env, startCreateMemory));
  exports.Set("closeMemory", Napi::Function::New(env, closeMemory));
  exports.Set("openMemory", Napi::Function::New(env, openMemoryOf));
  exports.Set("identity", Napi::Function::New(env, identity));
  exports.Set("processStart", Napi::Function::New(env, processStartOf));
  exports.Set("addressOf", Napi::Function::New(env, addressOfBytes));
  exports.Set("readProcess", Napi::Function::New(env, readProcessInto));
}

}  // namespace tensorferry
