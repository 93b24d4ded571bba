# SPDX-License-Identifier: Apache-2.0
"""Registries of engines by name; a second registration of a name raises."""

import importlib


class _Factory:
    engines: dict

    @classmethod
    def register_engine(cls, name, module_or_class, class_name=None):
        if name in cls.engines:
            raise ValueError(f"Engine '{name}' is already registered")
        cls.engines[name] = (module_or_class, class_name)

    @classmethod
    def get(cls, name):
        module, class_name = cls.engines[name]
        return module if class_name is None else getattr(importlib.import_module(module), class_name)


class WeightTransferEngineFactory(_Factory):
    engines = {}


class WeightTransferTrainerFactory(_Factory):
    engines = {}
