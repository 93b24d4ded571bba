// SPDX-License-Identifier: Apache-2.0
/**
 * A port for a test whose processes must know it before one of them listens. Whoever can, listens at port 0 and tells the
 * others instead: nothing can take that one.
 */
import { createServer } from "node:net"

/** Linux gives connections the ports from 32,768 on, so that one below is taken only by who asks for it. */
const [first, end] = [20_000, 32_768]

const listens = (port: number): Promise<boolean> =>
  new Promise((resolve) => {
    const server = createServer()
    server.once("error", () => resolve(false))
    server.listen(port, "127.0.0.1", () => server.close(() => resolve(true)))
  })

/** A port of 127.0.0.1 that is free now, and that no connection of another process is given meanwhile. */
export const freePort = async (): Promise<number> => {
  const port = first + Math.floor(Math.random() * (end - first))
  return (await listens(port)) ? port : freePort()
}
