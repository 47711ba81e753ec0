"""Parameters from flax dictionaries to PyTorch modules, the inverse of `torch_trainer.to_flax`.

PyTorch keeps weights as (out, in), flax as (in, out) under the name `kernel`. The rest of a
parameter's path is the same in both: `ff_1.sigma_weight` is `["ff_1"]["sigma_kernel"]`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

if TYPE_CHECKING:
    from torch import nn

    from worldloom.nn.iqn import Noise as FlaxNoise
    from worldloom.suites.grid.torch_iqn import Noise as TorchNoise


def from_flax(params: Mapping[str, Any], module: "nn.Module") -> None:
    """Copies flax variables into the parameters of `module`, in place."""
    given = flatten_dict(dict(params["params"]), sep=".")
    expected = {
        name.replace("weight", "kernel"): parameter for name, parameter in module.named_parameters()
    }
    if given.keys() != expected.keys():
        raise ValueError(
            f"from_flax: the parameters {sorted(given.keys() ^ expected.keys())} are on one side "
            "only; both networks need the same layers"
        )
    for name, parameter in expected.items():
        array = np.asarray(given[name])
        array = array.T if name.endswith("kernel") else array
        if array.shape != tuple(parameter.shape):
            raise ValueError(
                f"from_flax: {name} has shape {array.shape}, {tuple(parameter.shape)} is needed "
                "(as PyTorch counts: out, in)"
            )
        parameter.data.copy_(parameter.data.new_tensor(array))


def noise_to_flax(noise: "TorchNoise") -> "FlaxNoise":
    """The perturbations of noisy layers: (out, in) to (in, out)."""
    return {
        name: (jnp.array(weight.numpy().T), jnp.array(bias.numpy()))
        for name, (weight, bias) in noise.items()
    }
