// SPDX-License-Identifier: Apache-2.0
/*
 * The groups of functions that the addon exports. JS thread only.
 */
#pragma once

#include <tensorferry/addon.h>

namespace tensorferry {

void bindMemory(Functions& functions);
void bindMoves(Functions& functions);

}  // namespace tensorferry
