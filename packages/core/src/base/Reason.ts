// SPDX-License-Identifier: Apache-2.0
/**
 * The shape of a failure's reason, shared by all services: what happened, to which thing, and what to do about it.
 *
 * Each service has one tagged error whose `reason` is a union of tagged reasons made here. All reasons carry the same
 * optional fields, so that a report can be printed, sent to other ranks and decoded there without knowing the reason.
 */
import * as Schema from "effect/Schema"

/** How much is broken: this operation, everything with this peer, or the service until it is rebuilt. */
export const Scope = Schema.Literals(["op", "peer", "service"])
export type Scope = typeof Scope.Type

const reasonFields = {
  /** What happened, with the values that disagree. */
  detail: Schema.String,
  /** What the reader can do. */
  remedy: Schema.String,
  scope: Scope,
  isRetryable: Schema.Boolean,
  backend: Schema.optionalKey(Schema.String),
  rank: Schema.optionalKey(Schema.Int),
  peer: Schema.optionalKey(Schema.Int),
  op: Schema.optionalKey(Schema.String),
  paramName: Schema.optionalKey(Schema.String),
  taskId: Schema.optionalKey(Schema.Int),
  slot: Schema.optionalKey(Schema.Int),
  file: Schema.optionalKey(Schema.String),
  nativeCode: Schema.optionalKey(Schema.Int)
}

/** A tagged reason with the common fields. */
export const reason = <Tag extends string>(tag: Tag) => Schema.TaggedStruct(tag, reasonFields)

/** The common fields without a tag. */
export const ReasonFields = Schema.Struct(reasonFields)
export type ReasonFields = typeof ReasonFields.Type

/** What a caller states; scope and retryability default to "op" and false. */
export type ReasonInput = Omit<ReasonFields, "scope" | "isRetryable"> &
  Partial<Pick<ReasonFields, "scope" | "isRetryable">>

/** Completes the fields of a reason. */
export const reasonOf = <Tag extends string>(tag: Tag, input: ReasonInput): { readonly _tag: Tag } & ReasonFields => ({
  scope: "op",
  isRetryable: false,
  ...input,
  _tag: tag
})

/** One line for people: tag, the things named, what happened, the remedy. */
export const describeReason = (value: { readonly _tag: string } & ReasonFields): string => {
  const named = [
    value.backend === undefined ? undefined : `backend ${value.backend}`,
    value.rank === undefined ? undefined : `rank ${value.rank}`,
    value.peer === undefined ? undefined : `peer ${value.peer}`,
    value.op === undefined ? undefined : `op ${value.op}`,
    value.paramName === undefined ? undefined : `parameter ${value.paramName}`,
    value.taskId === undefined ? undefined : `task ${value.taskId}`,
    value.slot === undefined ? undefined : `slot ${value.slot}`,
    value.file === undefined ? undefined : `file ${value.file}`,
    value.nativeCode === undefined ? undefined : `native code ${value.nativeCode}`
  ].filter((part) => part !== undefined)
  const where = named.length === 0 ? "" : ` (${named.join(", ")})`
  return `${value._tag}${where}: ${value.detail} ${value.remedy}`.trimEnd()
}

/**
 * The class of a service's errors: tagged, with a reason of the union, `more` fields where it needs them, and the line for
 * people as the message: `class XError extends ReasonError<XError>()("XError", XReason) {}`.
 */
export const ReasonError =
  <Self>() =>
  <
    Tag extends string,
    Reason extends Schema.Top & { readonly Type: { readonly _tag: string } & ReasonFields },
    More extends Schema.Struct.Fields = Record<never, never>
  >(
    tag: Tag,
    union: Reason,
    more?: More
  ) => {
    const Made = Schema.TaggedError<Self>()(tag, { reason: union, ...(more as More) })
    Object.defineProperty((Made as { readonly prototype: object }).prototype, "message", {
      configurable: true,
      get(this: { readonly reason: Reason["Type"] }) {
        return describeReason(this.reason)
      }
    })
    return Made
  }
