// SPDX-License-Identifier: Apache-2.0
/**
 * A page in a real browser, where the machine has one: opened from its file or from a server of this machine, asked by
 * expressions. The browser has a folder of its own and no network beyond 127.0.0.1; it ends with the page.
 */
import { type ChildProcess, spawn, spawnSync } from "node:child_process"
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { pathToFileURL } from "node:url"
import { eventually } from "./command.ts"

/** The browser's program, or undefined. */
export const findBrowser = (): string | undefined =>
  ["chromium", "chromium-browser", "google-chrome"].find((name) => spawnSync(name, ["--version"]).status === 0)

/** Milliseconds after which a browser counts as hanging. */
const limit = 60_000

interface Answer {
  readonly id?: number
  readonly method?: string
  readonly params?: unknown
  readonly result?: {
    readonly result?: { readonly value?: unknown }
    readonly exceptionDetails?: { readonly text: string }
  } & Record<string, unknown>
  readonly error?: { readonly message: string }
}

export interface Page {
  /** The value of an expression, as JSON carries it; waits for promises. */
  readonly ask: (expression: string) => Promise<unknown>
  readonly call: (method: string, params?: object) => Promise<Record<string, unknown>>
  /** What the page or the browser complained about. */
  readonly complaints: ReadonlyArray<string>
  readonly close: () => Promise<void>
}

const connect = async (address: string, complaints: Array<string>) => {
  const socket = new WebSocket(address)
  const waiting = new Map<
    number,
    { readonly resolve: (answer: Answer) => void; readonly reject: (error: Error) => void }
  >()
  socket.addEventListener("message", ({ data }) => {
    const answer = JSON.parse(String(data)) as Answer
    if (answer.id !== undefined) waiting.get(answer.id)?.resolve(answer)
    if (answer.method === "Runtime.exceptionThrown" || answer.method === "Log.entryAdded") {
      complaints.push(JSON.stringify(answer.params))
    }
  })
  await new Promise<void>((resolve, reject) => {
    socket.addEventListener("open", () => resolve())
    socket.addEventListener("error", () => reject(new Error(`No connection to ${address}`)))
  })
  let last = 0
  const call = async (method: string, params: object = {}): Promise<NonNullable<Answer["result"]>> => {
    last += 1
    const id = last
    const answer = await new Promise<Answer>((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`${method} got no answer within ${limit} ms`)), limit)
      waiting.set(id, {
        reject,
        resolve: (value) => {
          clearTimeout(timer)
          resolve(value)
        }
      })
      socket.send(JSON.stringify({ id, method, params }))
    })
    if (answer.error !== undefined) throw new Error(`${method}: ${answer.error.message}`)
    return answer.result ?? {}
  }
  return { call, close: () => socket.close() }
}

const ended = (child: ChildProcess): Promise<void> =>
  new Promise((resolve) => {
    if (child.exitCode !== null || child.signalCode !== null) return resolve()
    child.once("exit", () => resolve())
  })

/** Opens a file in a browser and waits until it is loaded. */
export const openPage = (browser: string, file: string): Promise<Page> => openAddress(browser, pathToFileURL(file).href)

/** Opens an address in a browser and waits until it is loaded. */
export const openAddress = async (browser: string, url: string): Promise<Page> => {
  const folder = mkdtempSync(join(tmpdir(), "tensorferry-browser-"))
  const child = spawn(
    browser,
    [
      "--headless",
      "--no-sandbox",
      "--disable-gpu",
      "--no-first-run",
      "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
      "--remote-debugging-port=0",
      `--user-data-dir=${folder}`,
      "about:blank"
    ],
    { stdio: "ignore" }
  )
  const complaints: Array<string> = []
  const stop = async (): Promise<void> => {
    child.kill("SIGKILL")
    await ended(child)
    rmSync(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 50 })
  }
  try {
    const portFile = join(folder, "DevToolsActivePort")
    const port = await eventually("the browser's port", limit, () => {
      const text = existsSync(portFile) ? readFileSync(portFile, "utf8") : ""
      return text.includes("\n") ? text.split("\n")[0] : undefined
    })
    const targets = (await (await fetch(`http://127.0.0.1:${port}/json/list`)).json()) as ReadonlyArray<{
      readonly type: string
      readonly webSocketDebuggerUrl: string
    }>
    const { call, close } = await connect(targets.find(({ type }) => type === "page")!.webSocketDebuggerUrl, complaints)
    const ask = async (expression: string): Promise<unknown> => {
      const answer = await call("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true })
      if (answer.exceptionDetails !== undefined) throw new Error(`${expression}: ${JSON.stringify(answer)}`)
      return answer.result?.value
    }
    await call("Runtime.enable")
    await call("Log.enable")
    await call("Page.enable")
    await call("Page.navigate", { url })
    const { protocol } = new URL(url)
    await eventuallyAsync("the page", () =>
      ask(`document.readyState === 'complete' && location.protocol === '${protocol}'`)
    )
    return {
      ask,
      call,
      complaints,
      close: async () => {
        close()
        await stop()
      }
    }
  } catch (error) {
    await stop()
    throw error
  }
}

const eventuallyAsync = async (what: string, look: () => Promise<unknown>): Promise<void> => {
  const end = performance.now() + limit
  while ((await look()) !== true) if (performance.now() > end) throw new Error(`${what}: not within ${limit} ms`)
}
