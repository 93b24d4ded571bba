// SPDX-License-Identifier: Apache-2.0
/*
 * The functions of the simulated driver, as the tables hand them to the loader.
 */
#pragma once

#include <tensorferry_xpu/level_zero_api.h>

namespace tensorferry::xpu::simulator {

#define TENSORFERRY_SIMULATED(member, name, ...) extern ze::Entry<__VA_ARGS__> member##Entry;
TENSORFERRY_LEVEL_ZERO_FUNCTIONS(TENSORFERRY_SIMULATED)
#undef TENSORFERRY_SIMULATED

/** The entry of a function that has the member's name. */
#define TENSORFERRY_ENTRY(member) decltype(member##Entry) member##Entry{"", member};

}  // namespace tensorferry::xpu::simulator
