"""Runs shown in MLflow and TensorBoard."""
