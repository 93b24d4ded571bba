// SPDX-License-Identifier: Apache-2.0
/**
 * Where the headers and the CMake module for addons lie. For build scripts; nothing at run time needs it.
 */
import { fileURLToPath } from "node:url"

/** Folder to put on the include path of an addon: `#include <tensorferry/napi_status.h>`. */
export const includeDirectory = fileURLToPath(new URL("./include", import.meta.url))

/** Folder for CMAKE_MODULE_PATH: `include(TensorferryAddon)`. */
export const cmakeDirectory = fileURLToPath(new URL("./cmake", import.meta.url))
