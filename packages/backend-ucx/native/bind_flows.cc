// SPDX-License-Identifier: Apache-2.0
/*
 * Flows and transfers for JavaScript. JS thread only; bytes move on the endpoint's thread.
 */
#include "bindings.h"
#include "endpoint.h"

namespace tensorferry::ucx {
namespace {

Answer addFlow(const Call& call, Open<Endpoint> endpoint, Held<Peer> peer, Whole<0xffffffff> program, bool isSending,
               Big digest, Napi::BigUint64Array table, std::vector<Held<Region>> regions) {
  auto stream = wire::ByteStream::parse(table.Data(), table.ElementLength());
  if (!stream.ok()) return stream.status();
  if (stream.value().byteLength() == 0) return failure(Code::InvalidArgument, "addFlow", "The flow has no bytes.");
  auto flow = std::make_shared<Flow>();
  flow->program = static_cast<uint32_t>(program.value);
  flow->isSending = isSending;
  flow->digest = digest;
  flow->stream = std::move(stream.value());
  flow->peer = peer;
  flow->regions.assign(regions.begin(), regions.end());
  endpoint->addFlow(flow);
  return wrap(call.env, std::move(flow));
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
  endpoint->start(transfer, {flows.begin(), flows.end()});
  return handle;
}

}  // namespace

void bindFlows(Functions& functions) {
  functions.add<addFlow>("addFlow", "(endpoint, peer, program, isSending, digest, table, regions)")
      .add<closeFlow>("closeFlow", "(endpoint, flow)")
      .add<startTransfer>("startTransfer", "(endpoint, flows, callback)");
}

}  // namespace tensorferry::ucx
