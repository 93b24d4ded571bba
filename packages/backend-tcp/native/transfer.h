// SPDX-License-Identifier: Apache-2.0
/*
 * Flows, runs and transfers of this wire. All fields are guarded by the endpoint's mutex, except those that are constant.
 */
#pragma once

#include <tensorferry/wire/transfers.h>

#include "frame.h"

namespace tensorferry::tcp {

class Endpoint;
struct Peer;
struct Flow;
struct Run;
using Transfer = wire::TransferOf<Endpoint, Run>;
using ConnectJob = wire::ConnectJobOf<Endpoint, Peer>;

struct Run : wire::RunOf<Transfer, Flow> {};

struct Flow : wire::FlowOf<Peer, Run, chunkBytes> {
  static constexpr napi_type_tag typeTag{0x5b1f0c6ad4824e37, 0xb6c9e5108ad27f43};
};

}  // namespace tensorferry::tcp
