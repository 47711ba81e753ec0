"""What every learner reports of one update."""

from flax import struct

from worldloom.core.types import Array


class LearnMetrics(struct.PyTreeNode):
    """All () float32; NaN throughout means "did not learn".

    loss: what the update lowered. grad_norm: the size of the step it asked for, before clipping
    and learning rate. q_mean: the mean value of the actions in the batch.
    """

    loss: Array
    grad_norm: Array
    q_mean: Array
