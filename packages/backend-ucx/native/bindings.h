// SPDX-License-Identifier: Apache-2.0
/*
 * What each file of bindings adds to the addon. JS thread only.
 */
#pragma once

#include <tensorferry/functions.h>

namespace tensorferry::ucx {

void bindEndpoint(Functions& functions);
void bindFlows(Functions& functions);

}  // namespace tensorferry::ucx
