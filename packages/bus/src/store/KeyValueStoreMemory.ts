// SPDX-License-Identifier: Apache-2.0
/** A store within one process, for agents that share it. */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import * as Stream from "effect/Stream"
import { KeyValueMap } from "./KeyValueMap.ts"
import { checkEntry, KeyValueStore, type KeyValueStoreShape } from "./KeyValueStore.ts"

/** The view of one process on a map; its ephemeral entries go with its scope. */
export const viewOf = (map: KeyValueMap) =>
  Effect.map(
    Effect.acquireRelease(
      Effect.sync(() => ({})),
      (owner) => Effect.sync(() => map.disown(owner))
    ),
    (owner): KeyValueStoreShape => ({
      put: (key, value, options = {}) =>
        Effect.tap(checkEntry(key, value), () =>
          Effect.sync(() => map.put(key, value, options.isEphemeral === true ? owner : undefined))
        ),
      create: (key, value) =>
        Effect.andThen(
          checkEntry(key, value),
          Effect.sync(() => map.create(key, value))
        ),
      get: (key) => Effect.sync(() => map.get(key)),
      remove: (key) => Effect.sync(() => map.remove(key)),
      list: (prefix) => Effect.sync(() => map.list(prefix)),
      watch: (prefix) =>
        Stream.callback<void>(
          (queue) =>
            Effect.acquireRelease(
              Effect.sync(() => {
                Queue.offerUnsafe(queue, undefined)
                return map.watch(prefix, () => Queue.offerUnsafe(queue, undefined))
              }),
              (stop) => Effect.sync(stop)
            ),
          // One mark that something changed is as good as many.
          { bufferSize: 1, strategy: "dropping" }
        ).pipe(Stream.map(() => map.list(prefix)))
    })
  )

/** A store within this process: one map for all who share the layer. */
export const layerMemory: Layer.Layer<KeyValueStore> = Layer.effect(
  KeyValueStore,
  Effect.suspend(() => viewOf(new KeyValueMap()))
)
