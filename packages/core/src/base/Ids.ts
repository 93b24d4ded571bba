// SPDX-License-Identifier: Apache-2.0
/**
 * Names of the things that operations refer to. A task id is global: both ends of one transfer carry the same one.
 */

import * as Schema from "effect/Schema"
import { Natural } from "./Numbers.ts"

/** A process of the job, counted from 0. Sparse sets of ranks are legal. */
export const Rank = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 2 ** 31 - 1 }))
/** Number of a process in its job, from 0. */
export type Rank = number

/** Identity of one transfer, equal on both ends and stable when ranks are appended. */
export const TaskId = Natural
/** Number of a transfer, equal on both ends of it. */
export type TaskId = number

/** Which tensor of a task, for tasks that move several (data and scale); 0 by default. */
export const Part = Natural
/** Number of a piece of a transfer, from 0. */
export type Part = number
