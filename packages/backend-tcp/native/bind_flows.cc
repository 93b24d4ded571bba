// SPDX-License-Identifier: Apache-2.0
/*
 * Flows for JavaScript. JS thread only.
 */
#include <tensorferry/wire/bindings.h>

#include "bindings.h"
#include "endpoint.h"

namespace tensorferry::tcp {
namespace {

Answer addFlow(const Call& call, Open<Endpoint> endpoint, Held<Peer> peer, Whole<0xffffffff> program, bool isSending,
               Napi::BigUint64Array table) {
  auto stream = wire::ByteStream::parse(table.Data(), table.ElementLength());
  if (!stream.ok()) return stream.status();
  auto flow = endpoint->addFlow(peer, static_cast<uint32_t>(program.value), isSending, std::move(stream.value()));
  return answerOf(std::move(flow), [&](const auto& made) { return wrap(call.env, made); });
}

/** True where the transfer has ended well; its callback is not called then. */
Answer attendTransfer(const Call& call, Held<Endpoint> endpoint, Held<Job> job) {
  const auto transfer = std::dynamic_pointer_cast<Transfer>(std::shared_ptr<Job>(job));
  if (transfer == nullptr) return call.refusal();
  const bool isDone = endpoint->attend(transfer) && transfer->status().ok() && Jobs::of(call.env)->take(transfer.get());
  return Napi::Value(Napi::Boolean::New(call.env, isDone));
}

Status endAttending(const Call&, Held<Endpoint> endpoint) {
  endpoint->endAttending();
  return {};
}

}  // namespace

void bindFlows(Functions& functions) {
  wire::bindTransfers<Endpoint, Flow, Transfer>(functions);
  functions.add<addFlow>("addFlow", "(endpoint, peer, program, isSending, table)")
      .add<attendTransfer>("attendTransfer", "(endpoint, job)")
      .add<endAttending>("endAttending", "(endpoint)");
}

}  // namespace tensorferry::tcp
