// SPDX-License-Identifier: Apache-2.0
/*
 * Flows and transfers for JavaScript. JS thread only; bytes move on the endpoint's threads.
 */
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

Status closeFlow(const Call&, Held<Endpoint> endpoint, Held<Flow> flow) {
  endpoint->closeFlow(flow);
  return {};
}

Answer startTransfer(const Call& call, Open<Endpoint> endpoint, std::vector<Held<Flow>> flows,
                     Napi::Function callback) {
  if (flows.empty()) return call.refusal();
  auto transfer = std::make_shared<Transfer>(endpoint);
  const Napi::Value handle = Jobs::of(call.env)->begin(std::shared_ptr<Endpoint>(endpoint), transfer, callback);
  const Status status = endpoint->start(transfer, {flows.begin(), flows.end()});
  if (!status.ok()) {
    transfer->fail(status);
    transfer->done();
  }
  return handle;
}

}  // namespace

void bindFlows(Functions& functions) {
  functions.add<addFlow>("addFlow", "(endpoint, peer, program, isSending, table)")
      .add<closeFlow>("closeFlow", "(endpoint, flow)")
      .add<startTransfer>("startTransfer", "(endpoint, flows, callback)");
}

}  // namespace tensorferry::tcp
