// SPDX-License-Identifier: Apache-2.0
/*
 * Flows for JavaScript. JS thread only.
 */
#include <tensorferry/wire/bindings.h>

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

}  // namespace

void bindFlows(Functions& functions) {
  wire::bindTransfers<Endpoint, Flow, Transfer>(functions);
  functions.add<addFlow>("addFlow", "(endpoint, peer, program, isSending, digest, table, regions)");
}

}  // namespace tensorferry::ucx
