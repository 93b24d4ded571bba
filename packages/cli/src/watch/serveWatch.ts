// SPDX-License-Identifier: Apache-2.0
/** Serves the page of a fleet and its metrics, each to those who prove the token that is for it. */
import { metricsType } from "@tensorferry/fleet/view/fleetMetrics"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import { provesToken } from "./guard.ts"
import { answer, refuse, serveHttp } from "./httpServer.ts"
import { PageStreams } from "./PageStreams.ts"
import { watchPage } from "./page.ts"
import type { PageView } from "./pageView.ts"

/** Between two signs of life to an open page. */
const beat = "15 seconds"

/** What is served. */
export interface WatchServerOptions {
  /** 0 takes any free port. */
  readonly port: number
  /** Who has it sees the fleet. */
  readonly token: string
  /** Who has it reads `/metrics`; without one nobody does. */
  readonly metricsToken: string | undefined
  readonly first: PageView
  readonly metrics: () => string
}

const challenge = { "WWW-Authenticate": 'Bearer realm="tensorferry watch"' }

/** Serves until the scope closes; answers the port, and what shows a view to all open pages. */
export const serveWatch = Effect.fnUntraced(function* (options: WatchServerOptions) {
  const streams = new PageStreams(options.first)
  const { html, policy } = watchPage()
  const port = yield* serveHttp(options.port, {
    // Of the fleet there is nothing in it.
    "/": (_, response) =>
      answer(response, 200, "text/html; charset=utf-8", html, {
        "Content-Security-Policy": policy,
        "X-Frame-Options": "DENY"
      }),
    "/events": (request, response) => {
      if (!provesToken(request.headers, options.token)) {
        refuse(response, 401, "Open the address that tensorferry watch printed, with its token.", challenge)
      } else if (!streams.open(response)) refuse(response, 503, "Too many pages are open.")
    },
    "/metrics": (request, response) => {
      if (options.metricsToken === undefined) {
        refuse(
          response,
          401,
          "Start tensorferry watch with TENSORFERRY_METRICS_TOKEN, or with --metrics-port.",
          challenge
        )
      } else if (!provesToken(request.headers, options.metricsToken)) {
        refuse(response, 401, "The bearer token is not TENSORFERRY_METRICS_TOKEN.", challenge)
      } else answer(response, 200, metricsType, options.metrics())
    }
  })
  const sign = Effect.sync(() => streams.beat())
  yield* Effect.forkScoped(Effect.repeat(sign, Schedule.spaced(beat)))
  return { port, show: (view: PageView) => Effect.sync(() => streams.show(view)) }
})

/** Serves metrics alone, to everybody who reaches loopback; answers the port. */
export const serveMetrics = (port: number, metrics: () => string) =>
  serveHttp(port, { "/metrics": (_, response) => answer(response, 200, metricsType, metrics()) })
