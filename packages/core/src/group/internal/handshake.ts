// SPDX-License-Identifier: Apache-2.0
/**
 * How the two ends of a connection prove to each other that they hold the same token, without sending it: each answers
 * the other's fresh challenge with a keyed code over both challenges, the claimed rank and size, and its own role, so no
 * answer can be replayed or reflected. It guards joining; traffic afterwards is neither encrypted nor authenticated.
 */
import { createHmac, randomBytes, timingSafeEqual } from "node:crypto"
import { canonicalJson } from "../../base/Digest.ts"
import type { Hello } from "./frames.ts"

export const protocolName = "tensorferry-process-group"
export const protocolVersion = 2

export const freshNonce = (): string => randomBytes(32).toString("hex")

/** The code of one end. Without a token the key is empty, and the codes only prove that both ends have none. */
export const proofOf = (token: string | undefined, role: "member" | "hub", hello: Hello, hubNonce: string): string =>
  createHmac("sha256", token ?? "")
    .update(canonicalJson({ role, hello, hubNonce }))
    .digest("hex")

/** Compares two codes of equal length in constant time. */
export const equalProofs = (left: string, right: string): boolean =>
  left.length === right.length && timingSafeEqual(Buffer.from(left), Buffer.from(right))
