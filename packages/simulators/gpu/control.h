// SPDX-License-Identifier: Apache-2.0
/*
 * What other files need of the control interface.
 */
#pragma once

#include <string>

namespace tensorferry::gpu::simulator {

struct World;

/** Sets everything to what the environment says. Needs the lock, or nobody else inside. */
void readEnvironment(World&);

/** The report as JSON. Needs the lock. */
std::string reportText(World&);

/** Drops everything. Needs the lock. */
void resetWorld(World&);

}  // namespace tensorferry::gpu::simulator
