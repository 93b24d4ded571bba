// SPDX-License-Identifier: Apache-2.0
/** Folder to put on the include path of an addon: `#include <tensorferry/napi_status.h>`. */
export declare const includeDirectory: string
/** Folder for CMAKE_MODULE_PATH: `include(TensorferryAddon)`. */
export declare const cmakeDirectory: string
