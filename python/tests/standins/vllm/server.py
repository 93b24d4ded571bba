# SPDX-License-Identifier: Apache-2.0
"""A server with its workers, as a trainer's client sees it: each call goes to all workers at once, in the order that the
workers insist on. Not a part of vLLM; its worker's states are."""

import concurrent.futures


class Server:
    def __init__(self, workers):
        self.workers = workers
        self.log = []
        self.is_updating = False

    def _all(self, call):
        with concurrent.futures.ThreadPoolExecutor(len(self.workers)) as pool:
            for done in [pool.submit(call, worker) for worker in self.workers]:
                done.result()

    def init_weight_transfer_engine(self, init_info):
        self.log.append("init")
        self._all(lambda worker: worker.init_transfer_engine(worker.parse_init_info(dict(init_info))))

    def start_weight_update(self):
        if self.is_updating:
            raise RuntimeError("an update is under way")
        self.log.append("start")
        self._all(lambda worker: worker.start_weight_update())
        self.is_updating = True

    def update_weights(self, update_info):
        if not self.is_updating:
            raise RuntimeError("no update was started")
        self.log.append("update")
        try:
            self._all(lambda worker: worker.update_weights(dict(update_info)))
        except BaseException:
            # A failing update closes the session.
            self.is_updating = False
            raise

    def finish_weight_update(self):
        if not self.is_updating:
            raise RuntimeError("no update was started")
        self.log.append("finish")
        self._all(lambda worker: worker.finish_weight_update())
        self.is_updating = False

    def pause(self):
        self.log.append("pause")

    def resume(self):
        self.log.append("resume")
