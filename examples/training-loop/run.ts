// SPDX-License-Identifier: Apache-2.0
/**
 * Starts the three ranks of the example as a launcher would, ends all when one fails, and ends as they do.
 *
 * Usage: node run.ts
 */
import { spawn } from "node:child_process"
import { createServer } from "node:net"
import * as path from "node:path"

const ranks = 3

/**
 * A port below those that Linux gives to connections, so that none takes it meanwhile. The group meets at the one after
 * MASTER_PORT, so TENSORFERRY_PORT says it outright.
 */
const freePort = (): Promise<number> =>
  new Promise((resolve) => {
    const port = 20_000 + Math.floor(Math.random() * 12_000)
    const server = createServer()
    server.once("error", () => resolve(freePort()))
    server.listen(port, "127.0.0.1", () => server.close(() => resolve(port)))
  })

const port = await freePort()
const file = path.join(import.meta.dirname, "rank.ts")
const children = Array.from({ length: ranks }, (_, rank) =>
  spawn(process.execPath, [file], {
    stdio: "inherit",
    env: {
      ...process.env,
      RANK: String(rank),
      WORLD_SIZE: String(ranks),
      LOCAL_RANK: String(rank),
      LOCAL_WORLD_SIZE: String(ranks),
      MASTER_ADDR: "127.0.0.1",
      MASTER_PORT: String(port),
      TENSORFERRY_PORT: String(port)
    }
  })
)
const codes = await Promise.all(
  children.map(
    (child) =>
      new Promise<number>((resolve) =>
        child.once("exit", (code) => {
          // Without one of them the job cannot end well; a rank that never joined would be waited for in vain.
          if (code !== 0) for (const other of children) other.kill()
          resolve(code ?? 1)
        })
      )
  )
)
process.exitCode = Math.max(...codes)
