// SPDX-License-Identifier: Apache-2.0
/**
 * A server of HTTP on loopback for a page or for metrics. Requests are short, answers are not kept by anybody, and strangers
 * are turned away before anything else is looked at.
 */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http"
import { type ModelError, modelError } from "@tensorferry/model/ModelError"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { strangerFault } from "./guard.ts"

/** Headers of every answer. */
const always = {
  "Cache-Control": "no-store",
  "X-Content-Type-Options": "nosniff",
  "Referrer-Policy": "no-referrer",
  "Cross-Origin-Resource-Policy": "same-origin",
  "Cross-Origin-Opener-Policy": "same-origin"
}

/** Connections at once: a few pages and a few readers of metrics. */
const mostConnections = 64

/** A whole answer. */
export const answer = (
  response: ServerResponse,
  status: number,
  type: string,
  body: string,
  headers: Readonly<Record<string, string>> = {}
): void => {
  response.writeHead(status, {
    ...always,
    "Content-Type": type,
    "Content-Length": String(Buffer.byteLength(body)),
    ...headers
  })
  response.end(body)
}

/** An answer in words. */
export const refuse = (
  response: ServerResponse,
  status: number,
  text: string,
  headers: Readonly<Record<string, string>> = {}
): void => answer(response, status, "text/plain; charset=utf-8", `${text}\n`, headers)

/** Begins an answer that goes on: events, one after another. */
export const beginEvents = (response: ServerResponse): void => {
  response.writeHead(200, { ...always, "Content-Type": "text/event-stream; charset=utf-8" })
  response.flushHeaders()
}

/** By path, who answers it. */
export type Routes = Readonly<Record<string, (request: IncomingMessage, response: ServerResponse) => void>>

const handle = (routes: Routes, request: IncomingMessage, response: ServerResponse): void => {
  const fault = strangerFault(request.headers)
  const [path = ""] = (request.url ?? "").split("?")
  const route = Object.hasOwn(routes, path) ? routes[path] : undefined
  if (fault !== undefined) refuse(response, 403, fault)
  else if (request.method !== "GET") refuse(response, 405, "Only GET is answered.", { Allow: "GET" })
  else if (route === undefined) refuse(response, 404, "There is nothing here.")
  else route(request, response)
}

/** Listens on 127.0.0.1 until the scope closes; answers the port. Fails where the port cannot be had. */
export const serveHttp = (port: number, routes: Routes): Effect.Effect<number, ModelError, Scope.Scope> =>
  Effect.map(
    Effect.acquireRelease(
      Effect.callback<ReturnType<typeof createServer>, ModelError>((resume) => {
        const server = createServer({ maxHeaderSize: 8192, headersTimeout: 5000, requestTimeout: 10_000 })
        server.maxConnections = mostConnections
        server.on("request", (request, response) => handle(routes, request, response))
        server.once("error", (error) => {
          const detail = `Port ${port} of 127.0.0.1 cannot be served: ${error.message}.`
          resume(Effect.fail(modelError("InvalidUsage", { detail, remedy: "Choose another, or 0 for any free one." })))
        })
        server.listen(port, "127.0.0.1", () => resume(Effect.succeed(server)))
      }),
      (server) =>
        Effect.sync(() => {
          server.close()
          server.closeAllConnections()
        })
    ),
    (server) => {
      const address = server.address()
      return typeof address === "object" && address !== null ? address.port : port
    }
  )
