// SPDX-License-Identifier: Apache-2.0
/** The calls of the bus's store as effect's rpc would have them, for the comparison in `store.ts`. */

import * as Rpc from "effect/rpc/Rpc"
import * as RpcGroup from "effect/rpc/RpcGroup"
import * as Schema from "effect/Schema"

const Pairs = Schema.Array(Schema.Tuple([Schema.String, Schema.String]))

export class StoreCalls extends RpcGroup.make(
  Rpc.make("Put", { payload: { key: Schema.String, value: Schema.String }, success: Schema.Void }),
  Rpc.make("Get", { payload: { key: Schema.String }, success: Schema.NullOr(Schema.String) }),
  Rpc.make("Watch", { payload: { prefix: Schema.String }, success: Pairs, stream: true })
) {}
