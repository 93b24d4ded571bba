// SPDX-License-Identifier: Apache-2.0
/** What the tests of pages share: scripts that check them, and the reports of the conformance kit. */
import { spawnSync } from "node:child_process"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { ConformanceReport } from "@tensorferry/testing"
import * as Schema from "effect/Schema"

export const root = fileURLToPath(new URL("../../../../", import.meta.url))

/** Runs a script of the workspace. */
export const script = (name: string, ...args: ReadonlyArray<string>) =>
  spawnSync(process.execPath, [join(root, "scripts", name), ...args], {
    encoding: "utf8",
    cwd: root,
    timeout: 1_200_000
  })

export const reports = join(root, "docs/backends")
export const decode = Schema.decodeUnknownSync(Schema.fromJsonString(Schema.toCodecJson(ConformanceReport)))
