// SPDX-License-Identifier: Apache-2.0
/** A folder that goes with the scope. */
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import * as Effect from "effect/Effect"

/** An empty folder of this test. */
export const scratchFolder = Effect.acquireRelease(
  Effect.sync(() => mkdtempSync(path.join(tmpdir(), "tensorferry-fleet-"))),
  (folder) => Effect.sync(() => rmSync(folder, { recursive: true, force: true }))
)
