"""PyTorch: modules as models, data as tensors, metrics."""
