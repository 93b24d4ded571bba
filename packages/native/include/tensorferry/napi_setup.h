// SPDX-License-Identifier: Apache-2.0
/*
 * The one place that includes Node's C++ wrapper, so that all addons agree on its settings: C++ exceptions never cross
 * into JavaScript, and the binary runs on every Node with version 9 of the interface. While a worker thread is being
 * terminated no JavaScript can run; calls that fail for that reason are ignored instead of ending the process.
 */
#pragma once

#ifndef NAPI_DISABLE_CPP_EXCEPTIONS
#define NAPI_DISABLE_CPP_EXCEPTIONS
#endif
#ifndef NAPI_VERSION
#define NAPI_VERSION 9
#endif

#ifndef NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS
#define NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS
#endif

#include <napi.h>
