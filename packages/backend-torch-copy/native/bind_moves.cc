// SPDX-License-Identifier: Apache-2.0
/*
 * Pools, copies, reductions, block scaling, products, changes, digests and replay rings for JavaScript. JS thread only; the
 * work itself runs on pool threads.
 */
#include <vector>

#include "bindings.h"
#include "digests/digest.h"
#include "moves.h"
#include "patches/changes.h"
#include "patches/products.h"
#include "patches/ring.h"
#include "quantize.h"
#include "reduce.h"

namespace tensorferry {
namespace {

using Pool = std::shared_ptr<JobPool>;

Answer startMoves(const Call& call, Pool pool, Napi::BigUint64Array table, bool refuseOverlap,
                  Napi::Function callback) {
  auto items = parseItems(table.Data(), table.ElementLength(), refuseOverlap);
  if (!items.ok()) return items.status();
  return call.start(pool, makeMoveJob(std::move(items.value())), callback);
}

/** Runs moves within this process at once: for so few bytes that waking a thread takes longer. */
Status runMoves(const Call&, Napi::BigUint64Array table) {
  auto items = parseItems(table.Data(), table.ElementLength(), false);
  if (!items.ok()) return items.status();
  for (size_t i = 0; i < items.value().size(); i++) {
    const Move move = items.value().at(i);
    if (move.pid != 0) return failure(Code::InvalidArgument, "copy", "A move reads another process.");
  }
  for (size_t i = 0; i < items.value().size(); i++) runLocalMove(items.value().at(i), false);
  return {};
}

/** Starts the job that `makeJob` makes of a table. */
template <Result<std::shared_ptr<Job>> (*makeJob)(const uint64_t* words, size_t count)>
Answer startTable(const Call& call, Pool pool, Napi::BigUint64Array table, Napi::Function callback) {
  auto job = makeJob(table.Data(), table.ElementLength());
  if (!job.ok()) return job.status();
  return call.start(pool, std::move(job.value()), callback);
}

}  // namespace

void bindMoves(Functions& functions) {
  bindPools(functions);
  bindJobControls<std::shared_ptr<Job>>(functions);
  functions.add<startMoves>("startMoves", "(pool, table, refuseOverlap, callback)")
      .add<runMoves>("runMoves", "(table)")
      .add<startTable<makeReduceJob>>("startReduce", "(pool, table, callback)")
      .add<startTable<makeQuantizeJob>>("startQuantize", "(pool, table, callback)")
      .add<startTable<makeProductJob>>("startProduct", "(pool, table, callback)")
      .add<startTable<makeChangeJob>>("startChanges", "(pool, table, callback)")
      .add<startTable<makeDigestJob>>("startDigest", "(pool, table, callback)")
      .add<startTable<makeRingJob>>("startRing", "(pool, table, callback)");
}

}  // namespace tensorferry
