# SPDX-License-Identifier: Apache-2.0
"""Layerwise reload: what was begun and ended, in order."""

calls = []


def initialize_layerwise_reload(model):
    calls.append(("initialize", model))


def finalize_layerwise_reload(model, model_config):
    calls.append(("finalize", model))
