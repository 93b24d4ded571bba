// SPDX-License-Identifier: Apache-2.0
/**
 * Who may ask the server of the page. It listens on loopback, which keeps other machines out; what is here keeps out pages of
 * other sites in the same browser, and other users of the machine.
 *
 * - A request is for this server by name: a name that an attacker lets point to 127.0.0.1 is not one of ours. Any port is
 *   taken, since tunnels have others.
 * - A request that names its origin comes from the page itself.
 * - What is of the fleet is answered to those who prove the token. It stands in a header and never in a path, so that no log
 *   and no history of a browser has it; the fragment of an address is not sent.
 */
import { createHash, timingSafeEqual } from "node:crypto"
import type { IncomingHttpHeaders } from "node:http"

const ownNames = new Set(["127.0.0.1", "localhost", "[::1]"])

/** Without its port; undefined where it is no host at all. */
const nameOf = (host: string): string | undefined => /^(\[[0-9a-f:]+\]|[a-z0-9.-]+)(?::\d{1,5})?$/i.exec(host)?.[1]

const digestOf = (text: string): Buffer => createHash("sha256").update(text).digest()

/** Takes the same time for every wrong token. */
export const isToken = (stated: string, token: string): boolean => timingSafeEqual(digestOf(stated), digestOf(token))

/** Why a request is not answered at all; undefined where it may be. */
export const strangerFault = ({ host, origin }: IncomingHttpHeaders): string | undefined => {
  const name = nameOf(host ?? "")?.toLowerCase()
  if (name === undefined || !ownNames.has(name)) return "This server answers to 127.0.0.1 and localhost only."
  if (origin !== undefined && origin.toLowerCase() !== `http://${host!.toLowerCase()}`) {
    return "This server answers to its own page only."
  }
  return undefined
}

/** Whether the request carries this token as a bearer. */
export const provesToken = ({ authorization }: IncomingHttpHeaders, token: string): boolean => {
  const stated = /^Bearer ([\x21-\x7e]{1,512})$/i.exec(authorization ?? "")?.[1]
  return stated !== undefined && isToken(stated, token)
}
