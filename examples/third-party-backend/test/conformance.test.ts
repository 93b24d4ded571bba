// SPDX-License-Identifier: Apache-2.0
/** The kit's cases on this driver: ranks are fibers of this process, every message is a file. */
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { TensorEngine } from "@tensorferry/backend-torch-copy"
import { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import { type ClusterOf, runCopyCase, runCopyDriverCase } from "@tensorferry/testing"
import { describeCopyDriver, describeCopyService } from "@tensorferry/testing/vitest"
import * as Layer from "effect/Layer"
import { afterAll } from "vitest"
import { descriptors, spoolDriver } from "../src/index.ts"

const work = mkdtempSync(path.join(tmpdir(), "spool-"))
afterAll(() => rmSync(work, { recursive: true, force: true }))

const clusterOf: ClusterOf<unknown> = () => {
  const folder = mkdtempSync(path.join(work, "case-"))
  return {
    driver: () => Layer.effect(CopyDriver, spoolDriver(folder)),
    engine: TensorEngine.layer()
  }
}

const options = { stated: descriptors[0]!.capabilities }
describeCopyService("spool", runCopyCase(clusterOf), options)
describeCopyDriver("spool", runCopyDriverCase(clusterOf), options)
