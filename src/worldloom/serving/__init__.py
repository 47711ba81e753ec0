"""Policies on their way out of the laboratory: bundles that run without training code."""
