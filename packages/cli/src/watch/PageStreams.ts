// SPDX-License-Identifier: Apache-2.0
/**
 * The open pages, and what each of them lacks. A page that does not take what it is sent is sent no more until it has; then
 * it gets everything anew, so that what waits for a slow reader does not grow.
 */
import type { ServerResponse } from "node:http"
import { beginEvents } from "./httpServer.ts"
import { changeBetween, type PageView } from "./pageView.ts"

/** Bytes that may wait for one page. */
const mostQueued = 4 * 2 ** 20
/** Pages that may be open. */
const mostPages = 16

const eventText = (what: object): string => `data: ${JSON.stringify(what)}\n\n`

export class PageStreams {
  #view: PageView
  /** Whether each page lacks something that it was not sent. */
  readonly #pages = new Map<ServerResponse, { isBehind: boolean }>()

  constructor(view: PageView) {
    this.#view = view
  }

  /** Pages that are open. */
  get size(): number {
    return this.#pages.size
  }

  /** Sends everything now and changes later; false where too many pages are open. */
  open(response: ServerResponse): boolean {
    if (this.#pages.size >= mostPages) return false
    const page = { isBehind: false }
    this.#pages.set(response, page)
    response.on("close", () => this.#pages.delete(response))
    response.on("drain", () => {
      if (!page.isBehind) return
      page.isBehind = false
      response.write(eventText({ whole: this.#view }))
    })
    beginEvents(response)
    response.write(eventText({ whole: this.#view }))
    return true
  }

  /** Sends what has changed to all pages. */
  show(view: PageView): void {
    const change = changeBetween(this.#view, view)
    this.#view = view
    if (change === undefined) return
    const text = eventText({ change })
    for (const [response, page] of this.#pages) {
      if (page.isBehind || response.writableLength > mostQueued) page.isBehind = true
      else response.write(text)
    }
  }

  /** Says that the connection still stands. */
  beat(): void {
    for (const response of this.#pages.keys()) if (response.writableLength === 0) response.write(":\n\n")
  }
}
