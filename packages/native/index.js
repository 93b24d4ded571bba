import { fileURLToPath } from "node:url"

/** Folder to put on the include path of an addon: `#include <tensorferry/napi_status.h>`. */
export const includeDirectory = fileURLToPath(new URL("./include", import.meta.url))
