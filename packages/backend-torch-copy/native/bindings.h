// SPDX-License-Identifier: Apache-2.0
/*
 * The groups of functions that the addon exports. JS thread only.
 */
#pragma once

#include <tensorferry/napi_setup.h>

namespace tensorferry {

void bindMemory(Napi::Env env, Napi::Object exports);
void bindMoves(Napi::Env env, Napi::Object exports);

}  // namespace tensorferry
