"""Training: three loops over one chunk driver, and what surrounds them on the host.

The package is callable: `worldloom.train(...)` is a function until something imports this package,
which then takes its place in the namespace of `worldloom`. The call must mean the same ever after.
"""

import sys
from types import ModuleType
from typing import Any

_train = sys.modules["worldloom"].train  # the function that this package is about to hide


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **settings: Any) -> Any:
        return _train(*args, **settings)


sys.modules[__name__].__class__ = _CallablePackage
