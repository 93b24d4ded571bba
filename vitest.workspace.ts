import { defineConfig } from "vitest/config"

/** One project per package; test files live in `packages/NAME/test`. */
export default defineConfig({
  test: {
    projects: ["packages/core", "packages/backend-torch-copy", "packages/cli"],
    testTimeout: 60_000
  }
})
